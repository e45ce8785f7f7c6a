// A file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace troupe {

/// Closes the descriptor when it is destroyed. A negative number is no descriptor.
class file_descriptor {
public:
  explicit file_descriptor(int number = -1) noexcept : number_(number) {}
  file_descriptor(file_descriptor&& other) noexcept : number_(other.release()) {}
  file_descriptor& operator=(file_descriptor&& other) noexcept {
    if (&other != this) reset(other.release());
    return *this;
  }
  ~file_descriptor() { reset(); }

  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  /// The caller becomes the owner.
  int release() noexcept { return std::exchange(number_, -1); }
  void reset(int number = -1) noexcept {
    if (const int old = std::exchange(number_, number); old >= 0) ::close(old);
  }

private:
  int number_;
};

}  // namespace troupe
