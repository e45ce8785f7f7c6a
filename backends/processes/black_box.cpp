#include "backends/processes/black_box.hpp"

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

// Two entries are written in turn, so that a writer that dies in one leaves the other whole. The
// page starts as zeros, which is its empty state.
struct black_box::page {
  struct entry {
    std::int64_t epoch;
    std::int64_t step;
    std::array<char, 48> name;
  };
  std::atomic<std::uint64_t> written;  ///< entries so far; the last one is at (written - 1) % 2
  std::array<entry, 2> entries;
};

black_box black_box::create() {
  const int file = ::memfd_create("troupe-black-box", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, sizeof(page)) != 0) {
    const auto why = std::string{std::strerror(errno)};
    if (file >= 0) ::close(file);
    throw user_error(errc::job_failed, "no memory for a rank's process: " + why);
  }
  return adopt(file);
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
    : file_(std::exchange(other.file_, -1)), page_(std::exchange(other.page_, nullptr)) {}

black_box::~black_box() {
  if (page_) ::munmap(page_, sizeof(page));
  if (file_ >= 0) ::close(file_);
}

void black_box::enter(const hook& what) noexcept {
  const auto count = page_->written.load(std::memory_order_relaxed);
  auto& into = page_->entries[count % 2];
  const auto& at = where(what);
  into.epoch = at.epoch;
  into.step = at.step;
  const auto word = name(what);
  const auto size = std::min(word.size(), into.name.size() - 1);
  std::memcpy(into.name.data(), word.data(), size);
  into.name[size] = '\0';
  page_->written.store(count + 1, std::memory_order_release);
}

last_hook black_box::read() const {
  const auto count = page_->written.load(std::memory_order_acquire);
  if (count == 0) return {};
  const auto& from = page_->entries[(count - 1) % 2];
  return {std::string{from.name.data(), ::strnlen(from.name.data(), from.name.size())}, from.epoch,
          from.step};
}

}  // namespace troupe
