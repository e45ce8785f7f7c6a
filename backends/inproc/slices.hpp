// How an operation is cut into slices that threads claim one by one.
#pragma once

#include <algorithm>
#include <cstddef>

namespace troupe::inproc {

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
  slices() = default;
  /// `touched`: buffers that one slice reads or writes. A slice is about `work` bytes of them, so
  /// that an abort is seen after that much; never less than 4 KiB of each, which is dearer to claim
  /// than to do.
  slices(std::size_t pieces, std::size_t elements, std::size_t element_bytes, std::size_t touched,
         std::size_t work)
      : elements_(elements) {
    constexpr std::size_t line = 64;
    const auto bytes = std::max<std::size_t>(work / touched / line * line, 64 * line);
    each_ = bytes / element_bytes;
    per_piece_ = elements / each_ + (elements % each_ != 0);
    total_ = pieces * per_piece_;
  }

  std::size_t total() const { return total_; }
  slice operator[](std::size_t index) const {
    const auto first = index % per_piece_ * each_;
    return {index / per_piece_, first, std::min(each_, elements_ - first)};
  }

private:
  std::size_t elements_ = 0;
  std::size_t each_ = 1;
  std::size_t per_piece_ = 0;
  std::size_t total_ = 0;
};

}  // namespace troupe::inproc
