#include "troupe/detail/data_order.hpp"

#include "troupe/failure.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe {

namespace {

constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15;

constexpr std::uint64_t high_of_product(std::uint64_t a, std::uint64_t b) {
  __extension__ using wide = unsigned __int128;
  return static_cast<std::uint64_t>(wide{a} * b >> 64);
}

void check(const data_layout& layout) {
  if (layout.size < 0 || layout.ranks < 1 || layout.batch_size < 1)
    throw internal_error("data layout: size below 0, or ranks or batch size below 1");
  if (layout.first_batch < 0 || layout.first_sample < 0 || layout.first_sample > layout.size)
    throw internal_error("data layout: a resumed epoch that begins outside of its data");
}

}  // namespace

std::vector<std::int64_t> permutation(std::uint64_t seed, std::int64_t epoch, std::int64_t size) {
  if (size < 0 || size >= std::int64_t{1} << 40)
    throw internal_error("permutation: size outside of 0 .. 2^40 - 1");
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  auto state = mix(mix(seed) + static_cast<std::uint64_t>(epoch));
  for (auto i = order.size(); i-- > 1;) {
    std::swap(order[i], order[high_of_product(mix(state), i + 1)]);
    state += golden_gamma;
  }
  return order;
}

std::int64_t data_layout::batches() const {
  check(*this);
  const auto each = ranks * batch_size;
  const auto left = size - first_sample;
  return first_batch + left / each + (left % each != 0 ? 1 : 0);
}

piece data_layout::of_batches(std::int64_t first, std::int64_t last) const {
  first = std::max(first, first_batch);
  last = std::min(last, batches() - 1);
  if (first > last) return {size, 0};
  const auto each = ranks * batch_size;
  const auto begin = first_sample + (first - first_batch) * each;
  return {begin, std::min((last + 1 - first) * each, size - begin)};
}

piece data_layout::of_batch(std::int64_t batch) const { return of_batches(batch, batch); }

piece data_layout::of_rank(std::int64_t batch, std::int64_t rank) const {
  if (rank < 0 || rank >= ranks) throw internal_error("data layout: no such rank");
  if (batch < first_batch)
    throw internal_error("data layout: a micro-batch that was consumed before the resume");
  const auto whole = of_batch(batch);
  const auto each = whole.count / ranks;
  const auto longer = whole.count % ranks;
  return {whole.first + rank * each + std::min(rank, longer), each + (rank < longer ? 1 : 0)};
}

std::int64_t data_layout::samples(std::int64_t first, std::int64_t last) const {
  return of_batches(first, last).count;
}

}  // namespace troupe
