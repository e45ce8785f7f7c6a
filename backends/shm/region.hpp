// One generation's shared memory as one process sees it.
#pragma once

#include "backends/shm/layout.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace troupe::shm {

/// Memory for [offset, offset + bytes) of the file, or a user_error that says what it was for. The
/// file grows with it and never shrinks.
void reserve(int file, std::size_t offset, std::size_t bytes, const char* what);

/// A mapping of a generation's region. Thread-safe, except for the content of the memory.
class region {
public:
  /// Throws user_error if the addresses are not to be had.
  region(int file, std::size_t offset, const region_layout& layout, bool huge_pages);
  /// Only the control part: for a rank that cannot take part and has to report it. Throws likewise.
  static std::shared_ptr<region> words(int file, std::size_t offset, const region_layout& layout);
  ~region();
  region(const region&) = delete;
  region& operator=(const region&) = delete;

  const region_layout& layout() const { return layout_; }
  abort_block& abort() const { return at<abort_block>(0); }
  rank_block& rank(std::int32_t r) const { return at<rank_block>(layout_.rank(index(r))); }
  channel_block& channel(std::size_t c) const { return at<channel_block>(layout_.channel(c)); }
  seat_block& seat(std::size_t c, std::int32_t r) const {
    return at<seat_block>(layout_.seat(c, index(r)));
  }
  std::byte* slot(std::size_t c, std::int32_t r, std::uint64_t set) const {
    return base_ + layout_.slots(c, index(r)) + set * layout_.slot_bytes();
  }
  std::byte* place(std::size_t offset) const { return base_ + offset; }

  /// Gets memory for the words and slots of a rank in a channel. Throws user_error.
  void reserve_seat(std::size_t c, std::int32_t r) const;
  /// Gets memory for a part of the rank's registered memory; false if there is none.
  bool reserve_registered(std::size_t offset, std::size_t bytes) const;

private:
  region(int file, std::size_t offset, const region_layout& layout, std::size_t bytes);
  static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  template <class T>
  T& at(std::size_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  const int file_;
  const std::size_t offset_;
  const region_layout layout_;
  std::byte* base_ = nullptr;
  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

/// The memory that `allocate` gives one rank. Each block is given out once, so memory to which
/// peers may still write after an abort never gets another owner. Freed blocks return to the
/// kernel.
class registered_memory : public std::enable_shared_from_this<registered_memory> {
public:
  registered_memory(std::shared_ptr<region> in, std::int32_t rank);
  /// Null when there is no more.
  std::shared_ptr<void> allocate(std::size_t bytes);
  /// Where `data` lies in the region, if all of it lies in memory given out.
  std::optional<std::size_t> place(const void* data, std::size_t bytes) const;

private:
  const std::shared_ptr<region> region_;
  const std::size_t begin_;
  mutable std::mutex mutex_;
  std::size_t used_ = 0;
};

}  // namespace troupe::shm
