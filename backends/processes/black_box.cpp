#include "backends/processes/black_box.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "troupe/failure.hpp"

namespace troupe {

// Two entries are written in turn, so that a writer that dies in one leaves the other whole.
struct alignas(64) black_box::rank_slot {
  struct entry {
    std::int64_t epoch;
    std::int64_t step;
    std::array<char, 48> name;
  };
  std::atomic<std::int32_t> owner;     ///< the rank and one; 0: none yet
  std::atomic<std::uint64_t> written;  ///< entries so far; the last one is at (written - 1) % 2
  std::array<entry, 2> entries;
};

// Slots start as zeros, which is their empty state. Memory is used for the slots that ranks have.
struct black_box::page {
  pthread_mutex_t life;  ///< robust, of processes
  std::array<rank_slot, ranks_max> slots;
  std::array<char, 256> why_left;
};

black_box black_box::create() {
  const int file = ::memfd_create("troupe-black-box", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, sizeof(page)) != 0) {
    const auto why = std::string{std::strerror(errno)};
    if (file >= 0) ::close(file);
    throw user_error(errc::job_failed, "no memory for a rank's process: " + why);
  }
  auto made = adopt(file);
  pthread_mutexattr_t how;
  pthread_mutexattr_init(&how);
  pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&made.page_->life, &how);
  pthread_mutexattr_destroy(&how);
  return made;
}

black_box black_box::adopt(int descriptor) {
  struct stat about {};
  void* at = MAP_FAILED;
  if (::fstat(descriptor, &about) == 0 && about.st_size >= static_cast<off_t>(sizeof(page)))
    at = ::mmap(nullptr, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) throw internal_error("an inherited descriptor is no black box");
  return {descriptor, static_cast<page*>(at)};
}

black_box::black_box(black_box&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      page_(std::exchange(other.page_, nullptr)),
      shows_life_(std::exchange(other.shows_life_, {})) {}

black_box::~black_box() {
  if (shows_life_ == std::this_thread::get_id()) pthread_mutex_unlock(&page_->life);
  if (page_) ::munmap(page_, sizeof(page));
  if (file_ >= 0) ::close(file_);
}

// The rank's slot, or a free one that becomes the rank's. Null: all belong to other ranks.
black_box::rank_slot* black_box::slot_of(std::int32_t rank) noexcept {
  const auto own = rank + 1;
  for (std::size_t i = 0; i < ranks_max; ++i) {
    auto& one = page_->slots[(static_cast<std::size_t>(rank) + i) % ranks_max];
    std::int32_t owner = one.owner.load(std::memory_order_relaxed);
    if (owner == own) return &one;
    if (owner == 0 && one.owner.compare_exchange_strong(owner, own)) return &one;
  }
  return nullptr;
}

void black_box::enter(std::int32_t rank, const hook& what) noexcept {
  auto* const slot = slot_of(rank);
  if (!slot) return;
  const auto count = slot->written.load(std::memory_order_relaxed);
  auto& into = slot->entries[count % 2];
  const auto& at = where(what);
  into.epoch = at.epoch;
  into.step = at.step;
  const auto word = name(what);
  const auto size = std::min(word.size(), into.name.size() - 1);
  std::memcpy(into.name.data(), word.data(), size);
  into.name[size] = '\0';
  slot->written.store(count + 1, std::memory_order_release);
}

void black_box::show_life() noexcept {
  if (pthread_mutex_lock(&page_->life) == 0) shows_life_ = std::this_thread::get_id();
}

bool black_box::life_ended() noexcept {
  const int got = pthread_mutex_trylock(&page_->life);
  if (got == EBUSY) return false;
  if (got == EOWNERDEAD) pthread_mutex_consistent(&page_->life);
  pthread_mutex_unlock(&page_->life);
  return got == EOWNERDEAD;
}

void black_box::leave(std::string_view why) noexcept {
  auto& into = page_->why_left;
  const auto size = std::min(why.size(), into.size() - 1);
  std::memcpy(into.data(), why.data(), size);
  into[size] = '\0';
}

std::string black_box::why_left() const {
  const auto& from = page_->why_left;
  return {from.data(), ::strnlen(from.data(), from.size())};
}

std::vector<last_hook> black_box::read() const {
  std::vector<last_hook> all;
  for (const auto& slot : page_->slots) {
    const auto count = slot.written.load(std::memory_order_acquire);
    if (count == 0) continue;
    const auto& from = slot.entries[(count - 1) % 2];
    all.push_back({slot.owner - 1,
                   std::string{from.name.data(), ::strnlen(from.name.data(), from.name.size())},
                   from.epoch, from.step});
  }
  std::ranges::sort(all, {}, &last_hook::rank);
  return all;
}

}  // namespace troupe
