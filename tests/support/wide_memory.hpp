// A large range of addresses over little memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace troupe::testing {

/// Memory of zeroes. All but the last bytes (at least `tail`) is one file of 32 MiB that is mapped
/// many times: a write there is visible at every distance of 32 MiB. Not for sanitizers, which keep
/// memory of their own for each address.
class wide_memory {
public:
  wide_memory(std::size_t size, std::size_t tail) : size_{size} {
    constexpr std::size_t window = std::size_t{32} << 20;
    const int file = memfd_create("wide", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, window) != 0) throw std::bad_alloc{};
    auto* at = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc{};
    bytes_ = static_cast<std::uint8_t*>(at);
    for (std::size_t from = 0; from + window + tail <= size; from += window)
      if (mmap(bytes_ + from, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
          bytes_ + from)
        throw std::bad_alloc{};
    close(file);
  }
  ~wide_memory() { munmap(bytes_, size_); }
  wide_memory(const wide_memory&) = delete;
  wide_memory& operator=(const wide_memory&) = delete;
  std::uint8_t* data() { return bytes_; }
  std::size_t size() const { return size_; }

private:
  std::size_t size_;
  std::uint8_t* bytes_ = nullptr;
};

}  // namespace troupe::testing
