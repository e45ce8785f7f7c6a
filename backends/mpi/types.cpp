#include "backends/mpi/types.hpp"

#include "backends/collective/canonical_kernels.hpp"
#include "backends/collective/canonical_reduction.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace troupe::mpi {

namespace {

constexpr std::size_t reduction_count = 5;

template <std::size_t Index>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  constexpr auto type = static_cast<dtype>(Index / reduction_count);
  constexpr auto wanted = static_cast<reduction>(Index % reduction_count);
  constexpr auto operation = wanted == reduction::mean ? reduction::sum : wanted;
  const std::array<const void*, 2> sources{inout, in};
  const std::array<void*, 1> targets{inout};
  canonical_reduce(type, operation, sources, targets, static_cast<std::size_t>(*count));
}

template <std::size_t... Index>
constexpr auto combiners(std::index_sequence<Index...>) {
  return std::array<MPI_User_function*, sizeof...(Index)>{&combine<Index>...};
}

template <class T>
void divide_all(void* data, std::size_t count, double by) {
  auto* values = static_cast<T*>(data);
  const auto divisor = static_cast<T>(by);
  for (std::size_t i = 0; i < count; ++i) values[i] /= divisor;
}

void divide(dtype travelling, void* data, std::size_t count, double by) {
  switch (travelling) {
    case dtype::f32: return divide_all<float>(data, count, by);
    case dtype::f64: return divide_all<double>(data, count, by);
    case dtype::c64: return divide_all<float>(data, 2 * count, by);
    case dtype::c128: return divide_all<double>(data, 2 * count, by);
    default: throw internal_error("a mean of what has none");
  }
}

}  // namespace

std::string error_text(int result) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(result, text.data(), &size);
  return {text.data(), static_cast<std::size_t>(size)};
}

dtype travel_type(dtype type) {
  return type == dtype::f16 || type == dtype::bf16 ? dtype::f32 : type;
}

MPI_Datatype datatype_of(dtype travelling) {
  switch (travelling) {
    case dtype::u8:
    case dtype::boolean: return MPI_UINT8_T;
    case dtype::i8: return MPI_INT8_T;
    case dtype::i16: return MPI_INT16_T;
    case dtype::i32: return MPI_INT32_T;
    case dtype::i64: return MPI_INT64_T;
    case dtype::f32: return MPI_FLOAT;
    case dtype::f64: return MPI_DOUBLE;
    case dtype::c64: return MPI_C_FLOAT_COMPLEX;
    case dtype::c128: return MPI_C_DOUBLE_COMPLEX;
    case dtype::f16:
    case dtype::bf16: break;
  }
  throw internal_error("an element type that does not travel through MPI");
}

operations::operations() {
  static constexpr auto functions = combiners(std::make_index_sequence<dtypes * reductions>{});
  constexpr int commutes = 1;
  for (std::size_t i = 0; i < made_.size(); ++i) MPI_Op_create(functions[i], commutes, &made_[i]);
}

operations::~operations() {
  for (auto& one : made_) MPI_Op_free(&one);
}

MPI_Op operations::of(dtype travelling, reduction operation) const {
  return made_.at(static_cast<std::size_t>(travelling) * reductions +
                  static_cast<std::size_t>(operation));
}

void widen(dtype type, const void* from, float* to, std::size_t count) {
  // The kernel adds to `to`. x + -0 is x for every x, also for x = -0; x + 0 is not.
  std::fill(to, to + count, -0.0f);
  const auto kernels = detail::kernels_of(type, reduction::sum, best_instruction_set());
  kernels.leaf(to, from, count);
}

void narrow(dtype type, const float* from, void* to, std::size_t count) {
  detail::kernels_of(type, reduction::sum, best_instruction_set()).store(from, to, count);
}

void shrink_for_mean(dtype travelling, void* data, std::size_t count, std::size_t ranks) {
  divide(travelling, data, count, static_cast<double>(std::bit_ceil(ranks)));
}

void finish_mean(dtype travelling, void* data, std::size_t count, std::size_t ranks) {
  divide(travelling, data, count,
         static_cast<double>(ranks) / static_cast<double>(std::bit_ceil(ranks)));
}

}  // namespace troupe::mpi
