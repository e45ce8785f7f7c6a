// Memory of the late device: host memory that the host cannot read at the address which tensors
// have. It is mapped twice. Tensors hold an address of the first mapping, where any access ends the
// program with SIGSEGV; the device's own threads use the second one.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace troupe::testing {

/// Thread-safe. Lives as long as the process.
class late_memory {
public:
  static late_memory& of_process();

  /// Filled with bytes 0xff, so that floating-point numbers are NaN. Throws std::bad_alloc.
  void* allocate(std::size_t bytes);
  void free(void* where) noexcept;
  /// The same byte where it can be read.
  std::byte* readable(const void* where) const;
  bool owns(const void* where) const;

  std::size_t in_use() const;
  std::size_t most_in_use() const;

private:
  late_memory();

  std::byte* hidden_ = nullptr;
  std::byte* readable_ = nullptr;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // offset to size
  std::map<std::size_t, std::size_t> used_;
  std::size_t in_use_ = 0;
  std::size_t most_ = 0;
};

}  // namespace troupe::testing
