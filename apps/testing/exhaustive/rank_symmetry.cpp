#include "apps/testing/exhaustive/rank_symmetry.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::testing {

rank_permutations::rank_permutations(std::int32_t ranks, std::int32_t fixed) {
  std::vector<std::int32_t> one(static_cast<std::size_t>(ranks));
  std::iota(one.begin(), one.end(), 0);
  do all_.push_back(one);
  while (std::next_permutation(one.begin() + fixed, one.end()));
  for (const auto& first : all_)
    for (const auto& second : all_) {
      for (std::size_t r = 0; r < one.size(); ++r)
        one[r] = second[static_cast<std::size_t>(first[r])];
      products_.push_back(static_cast<std::size_t>(std::ranges::find(all_, one) - all_.begin()));
    }
}

std::size_t rank_permutations::inverse(std::size_t permutation) const {
  std::size_t i = 0;
  while (product(permutation, i) != 0) ++i;
  return i;
}

bool image_table::link(std::uint32_t of, std::size_t permutation, std::uint32_t image) {
  if (permutation == 0) {
    if (of != image) throw not_symmetric{};
    return false;
  }
  if (images_.size() < (of + std::size_t{1}) * permutations_)
    images_.resize((of + std::size_t{1}) * permutations_, none);
  auto& known = images_[of * permutations_ + permutation];
  if (known == image) return false;
  if (known != none) throw not_symmetric{};
  known = image;
  return true;
}

bool image_table::has(std::uint32_t of, std::size_t permutation) const {
  const auto at = of * permutations_ + permutation;
  return permutation == 0 || (at < images_.size() && images_[at] != none);
}

}  // namespace troupe::testing
