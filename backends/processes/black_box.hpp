// Records the hook that a rank is in, in a page of memory that outlives the rank's process.
#pragma once

#include "troupe/hooks.hpp"

#include <string>

namespace troupe {

/// The hook that a lane entered last.
struct last_hook {
  std::string name;  ///< empty: none yet
  std::int64_t epoch = undefined;
  std::int64_t step = undefined;
  friend bool operator==(const last_hook&, const last_hook&) = default;
};

/// A page shared by two processes. One thread writes, another process reads once the writer is
/// dead: it finds the last whole entry.
class black_box {
public:
  /// A new one, with a descriptor to hand on (closed on exec). Throws user_error.
  static black_box create();
  /// From an inherited descriptor, which it owns from here on. Throws internal_error.
  static black_box adopt(int descriptor);

  black_box(black_box&& other) noexcept;
  black_box& operator=(black_box&&) = delete;
  ~black_box();

  int descriptor() const { return file_; }
  void enter(const hook& what) noexcept;
  last_hook read() const;

private:
  struct page;
  black_box(int file, page* at) : file_(file), page_(at) {}

  int file_;
  page* page_;
};

}  // namespace troupe
