// What a process of ranks shows its launcher in memory that outlives it: the hooks that its ranks
// are in, that its first thread ends, and why it ends by itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backends/launcher.hpp"

namespace troupe {

/// Memory shared by two processes. Each rank has one thread that writes. The other process reads
/// once the writers are dead: it finds the last whole entry of each.
class black_box {
public:
  /// The hooks of more ranks are not recorded.
  static constexpr std::size_t ranks_max = 64;

  /// A new one, with a descriptor to hand on (closed on exec). Throws user_error.
  static black_box create();
  /// From an inherited descriptor, which it owns from here on. Throws internal_error.
  static black_box adopt(int descriptor);

  black_box(black_box&& other) noexcept;
  black_box& operator=(black_box&&) = delete;
  ~black_box();

  int descriptor() const { return file_; }
  /// One thread at a time for each rank.
  void enter(std::int32_t rank, const hook& what) noexcept;
  /// In the process: the calling thread shows from now on that it lives, until it ends or this
  /// object is destroyed by it.
  void show_life() noexcept;
  /// In the launcher: true once that thread has ended and has not destroyed the object. The kernel
  /// shows this before it releases the memory of a process, which takes seconds for gigabytes.
  bool life_ended() noexcept;
  /// In the process, in one thread: why it is about to end by itself. A longer text is cut.
  void leave(std::string_view why) noexcept;
  /// What `leave` was called with; empty: it was not.
  std::string why_left() const;
  /// The ranks that have entered a hook, ascending.
  std::vector<last_hook> read() const;

private:
  struct rank_slot;
  struct page;
  black_box(int file, page* at) : file_(file), page_(at) {}
  rank_slot* slot_of(std::int32_t rank) noexcept;

  int file_;
  page* page_;
  std::thread::id shows_life_;  ///< the thread that called show_life; none before
};

}  // namespace troupe
