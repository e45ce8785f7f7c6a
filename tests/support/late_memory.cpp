#include "tests/support/late_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

namespace troupe::testing {

namespace {

constexpr std::size_t region = std::size_t{1} << 30;
constexpr std::size_t alignment = 64;

std::byte* mapped(int file, int access) {
  void* at = ::mmap(nullptr, region, access, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return static_cast<std::byte*>(at);
}

}  // namespace

late_memory& late_memory::of_process() {
  static auto* const memory = new late_memory;  // tensors may outlive every static object
  return *memory;
}

late_memory::late_memory() {
  const int file = ::memfd_create("late memory", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, region) != 0)
    throw std::system_error(errno, std::generic_category(), "memfd_create");
  hidden_ = mapped(file, PROT_NONE);
  readable_ = mapped(file, PROT_READ | PROT_WRITE);
  ::close(file);
  free_.emplace(0, region);
}

void* late_memory::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const auto wanted = (bytes + alignment - 1) / alignment * alignment;
  std::size_t offset = 0;
  {
    const std::lock_guard lock{mutex_};
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& one) { return one.second >= wanted; });
    if (found == free_.end()) throw std::bad_alloc();
    offset = found->first;
    const auto rest = found->second - wanted;
    free_.erase(found);
    if (rest > 0) free_.emplace(offset + wanted, rest);
    used_.emplace(offset, wanted);
    in_use_ += wanted;
    most_ = std::max(most_, in_use_);
  }
  std::memset(readable_ + offset, 0xff, wanted);
  return hidden_ + offset;
}

void late_memory::free(void* where) noexcept {
  if (!where) return;
  const std::lock_guard lock{mutex_};
  const auto found = used_.find(static_cast<std::size_t>(static_cast<std::byte*>(where) - hidden_));
  if (found == used_.end()) return;
  in_use_ -= found->second;
  auto [at, size] = *found;
  used_.erase(found);
  const auto next = free_.lower_bound(at);
  if (next != free_.end() && at + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.begin())
    if (const auto before = std::prev(after); before->first + before->second == at) {
      before->second += size;
      return;
    }
  free_.emplace(at, size);
}

std::byte* late_memory::readable(const void* where) const {
  return where ? readable_ + (static_cast<const std::byte*>(where) - hidden_) : nullptr;
}

bool late_memory::owns(const void* where) const {
  const auto* at = static_cast<const std::byte*>(where);
  return at >= hidden_ && at < hidden_ + region;
}

std::size_t late_memory::in_use() const {
  const std::lock_guard lock{mutex_};
  return in_use_;
}

std::size_t late_memory::most_in_use() const {
  const std::lock_guard lock{mutex_};
  return most_;
}

}  // namespace troupe::testing
