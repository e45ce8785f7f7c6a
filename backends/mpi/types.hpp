// MPI's names for our element types and reductions.
#pragma once

#include "troupe/communicator.hpp"

#include <mpi.h>

#include <array>
#include <cstddef>
#include <string>

namespace troupe::mpi {

/// What elements travel as: f16 and bf16 as f32, the others as they are.
dtype travel_type(dtype type);
MPI_Datatype datatype_of(dtype travelling);
/// MPI's own text for what a call returned.
std::string error_text(int result);

/// MPI operations whose arithmetic is canonical_reduce's. To be made after MPI_Init and freed
/// before MPI_Finalize. `mean` is a sum.
class operations {
public:
  operations();
  ~operations();
  operations(const operations&) = delete;
  operations& operator=(const operations&) = delete;

  MPI_Op of(dtype travelling, reduction operation) const;

private:
  static constexpr std::size_t dtypes = 12;
  static constexpr std::size_t reductions = 5;
  std::array<MPI_Op, dtypes * reductions> made_;
};

/// f16 and bf16 to f32 and back, rounding to nearest even.
void widen(dtype type, const void* from, float* to, std::size_t count);
void narrow(dtype type, const float* from, void* to, std::size_t count);
/// The mean of `ranks` leaves without overflow: each leaf is made smaller by a power of two before
/// the sum, which is exact but for subnormal numbers, and the sum divided by what is left of
/// `ranks`. `count` elements of a travelling type (floating or complex).
void shrink_for_mean(dtype travelling, void* data, std::size_t count, std::size_t ranks);
void finish_mean(dtype travelling, void* data, std::size_t count, std::size_t ranks);

}  // namespace troupe::mpi
