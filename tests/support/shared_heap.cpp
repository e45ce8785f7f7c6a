#include "tests/support/shared_heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>

// Sanitizers have their own heap.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

namespace {

// Blocks with sizes of powers of two from one mapping. Free blocks are kept in lists.
class heap {
public:
  void* allocate(std::size_t bytes) {
    if (bytes > room / 2) throw std::bad_alloc{};
    const auto kind = kind_of(bytes);
    const std::lock_guard hold{mutex_};
    given_ += std::size_t{1} << kind;
    if (auto* block = free_[kind]) {
      free_[kind] = block->next;
      return block;
    }
    if (!begin_) begin_ = map();
    const auto size = std::size_t{1} << kind;
    const auto from = (used_ + size - 1) & ~(std::min(size, std::size_t{4096}) - 1);
    if (from + size > room) throw std::bad_alloc{};
    used_ = from + size;
    *reinterpret_cast<std::size_t*>(begin_ + from) = kind;
    return begin_ + from + header;
  }
  bool owns(const void* at) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return begin_ && byte >= begin_ && byte < begin_ + room;
  }
  void release(void* at) {
    const auto kind = *reinterpret_cast<std::size_t*>(static_cast<std::byte*>(at) - header);
    const std::lock_guard hold{mutex_};
    free_[kind] = new (at) node{free_[kind]};
    given_ -= std::size_t{1} << kind;
  }
  std::size_t given() {
    const std::lock_guard hold{mutex_};
    return given_;
  }

private:
  struct node {
    node* next;
  };
  static constexpr std::size_t room = std::size_t{64} << 30;
  static constexpr std::size_t header = 64;

  static std::size_t kind_of(std::size_t bytes) {
    return static_cast<std::size_t>(std::countr_zero(std::bit_ceil(bytes + header)));
  }
  static std::byte* map() {
    auto* at = mmap(nullptr, room, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc{};
    return static_cast<std::byte*>(at);
  }

  std::mutex mutex_;
  std::byte* begin_ = nullptr;
  std::size_t used_ = 0;
  std::size_t given_ = 0;
  std::array<node*, 48> free_{};
};

heap& shared() {
  alignas(heap) static std::array<std::byte, sizeof(heap)> room;
  static heap* const one = new (room.data()) heap;
  return *one;
}

std::atomic<bool> left{false};

}  // namespace

void* operator new(std::size_t bytes) {
  if (!left.load(std::memory_order_relaxed)) return shared().allocate(bytes);
  if (auto* at = std::malloc(bytes != 0 ? bytes : 1)) return at;
  throw std::bad_alloc{};
}
void operator delete(void* at) noexcept {
  if (!at) return;
  if (!shared().owns(at))
    std::free(at);
  else if (!left.load(std::memory_order_relaxed))
    shared().release(at);
}
void operator delete(void* at, std::size_t) noexcept { operator delete(at); }

void troupe::testing::leave_shared_heap() noexcept { left.store(true); }
std::size_t troupe::testing::shared_heap_bytes() noexcept { return shared().given(); }

#else
void troupe::testing::leave_shared_heap() noexcept {}
std::size_t troupe::testing::shared_heap_bytes() noexcept { return 0; }
#endif
