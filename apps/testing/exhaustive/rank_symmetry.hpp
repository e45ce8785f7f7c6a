// States of a small job that differ only in the numbers of their ranks count as one.
//
// A permutation of the ranks has an image for each part, message and queue: that which the permuted
// events lead to. small_job_tables computes an event together with its images and links what they
// lead to. A link that contradicts an earlier one, or whose ends differ in what the search reads,
// shows that the machines treat the ranks differently. Then the search begins again with fewer
// permutations. So the search checks what it assumes, at every event that it computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::testing {

/// Thrown when ranks that should be equal are not.
struct not_symmetric {};

/// The permutations of ranks that leave the first `fixed` ones in their places. Number 0 changes
/// nothing.
class rank_permutations {
public:
  rank_permutations(std::int32_t ranks, std::int32_t fixed);

  std::size_t size() const { return all_.size(); }
  std::int32_t rank(std::size_t permutation, std::int32_t r) const {
    return all_[permutation][static_cast<std::size_t>(r)];
  }
  std::size_t inverse(std::size_t permutation) const;
  /// `first`, then `second`.
  std::size_t product(std::size_t first, std::size_t second) const {
    return products_[first * all_.size() + second];
  }

private:
  std::vector<std::vector<std::int32_t>> all_;
  std::vector<std::size_t> products_;
};

/// The images of numbered things.
class image_table {
public:
  explicit image_table(std::size_t permutations) : permutations_(permutations) {}

  /// Throws not_symmetric if `of` has another image already. True: the link is new.
  bool link(std::uint32_t of, std::size_t permutation, std::uint32_t image);
  bool has(std::uint32_t of, std::size_t permutation) const;
  /// Needs the link.
  std::uint32_t at(std::uint32_t of, std::size_t permutation) const {
    return permutation == 0 ? of : images_[of * permutations_ + permutation];
  }
  std::uint64_t bytes() const { return images_.capacity() * sizeof(std::uint32_t); }

private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  std::size_t permutations_;
  std::vector<std::uint32_t> images_;
};

}  // namespace troupe::testing
