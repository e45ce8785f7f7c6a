// How an operation is cut into slices that threads claim one by one.
#pragma once

#include <algorithm>
#include <cstddef>

namespace troupe {

/// Elements [first, first + count) of one piece.
struct slice {
  std::size_t piece = 0;
  std::size_t first = 0;
  std::size_t count = 0;
  friend bool operator==(const slice&, const slice&) = default;
};

/// Pieces of equal length, each cut into slices of whole cache lines; the last slice of a piece is
/// what is left.
class slices {
public:
  /// The least bytes of each buffer in a slice. Smaller slices take longer to claim than to do.
  static constexpr std::size_t least_bytes = 4096;

  slices() = default;
  /// One slice with all elements of one piece. Without elements there is no slice.
  static slices one(std::size_t elements) {
    slices all;
    all.elements_ = elements;
    all.each_ = std::max<std::size_t>(elements, 1);
    all.per_piece_ = all.total_ = elements != 0 ? 1 : 0;
    return all;
  }
  /// `touched`: buffers that one slice reads or writes. A slice is about `work` bytes of them, so
  /// that an abort is seen after that much; never less than `least_bytes` of each.
  slices(std::size_t pieces, std::size_t elements, std::size_t element_bytes, std::size_t touched,
         std::size_t work)
      : elements_(elements) {
    constexpr std::size_t line = 64;
    const auto bytes = std::max<std::size_t>(work / touched / line * line, least_bytes);
    each_ = bytes / element_bytes;
    per_piece_ = elements / each_ + (elements % each_ != 0);
    total_ = pieces * per_piece_;
  }

  std::size_t total() const { return total_; }
  /// The slice at `index` and those that follow it in its piece, `most` at most.
  slice run(std::size_t index, std::size_t most) const {
    const auto at = index % per_piece_;
    const auto first = at * each_;
    const auto count = std::min(each_ * std::min(most, per_piece_ - at), elements_ - first);
    return {index / per_piece_, first, count};
  }
  /// How many slices a run is made of.
  std::size_t length(const slice& run) const {
    return run.count / each_ + (run.count % each_ != 0);
  }

private:
  std::size_t elements_ = 0;
  std::size_t each_ = 1;
  std::size_t per_piece_ = 0;
  std::size_t total_ = 0;
};

}  // namespace troupe
