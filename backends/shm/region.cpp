#include "backends/shm/region.hpp"

#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troupe::shm {

void reserve(int file, std::size_t offset, std::size_t bytes, const char* what) {
  // Growing a file past this limit is a signal that ends the process, not an error.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < offset + bytes)
    throw user_error(errc::device,
                     fmt::format("shm: no {}: files of this process may have {} bytes at most; "
                                 "raise the limit (ulimit -f unlimited)",
                                 what, limit.rlim_cur));
  // In pieces: before Linux 6.10 a signal undoes what a call has reserved, so that a large call
  // would not end while a profiler's timer sends one each millisecond.
  constexpr std::size_t piece = std::size_t{2} << 20;
  for (std::size_t done = 0; done < bytes;) {
    const auto part = std::min(piece, bytes - done);
    if (fallocate(file, 0, static_cast<off_t>(offset + done), static_cast<off_t>(part)) == 0)
      done += part;
    else if (errno != EINTR)
      throw user_error(errc::device,
                       fmt::format("shm: no {} bytes of shared memory for {}: {}; give the job "
                                   "more memory or use fewer ranks",
                                   bytes, what, std::strerror(errno)));
  }
}

region::region(int file, std::size_t offset, const region_layout& layout, bool huge_pages)
    : region(file, offset, layout, layout.bytes()) {
  // Only a hint: without huge pages memory is slower but works the same.
  if (huge_pages)
    madvise(base_ + layout.slots(0, 0), layout.bytes() - layout.slots(0, 0), MADV_HUGEPAGE);
}

std::shared_ptr<region> region::words(int file, std::size_t offset, const region_layout& layout) {
  return std::shared_ptr<region>{new region{file, offset, layout, layout.slots(0, 0)}};
}

region::region(int file, std::size_t offset, const region_layout& layout, std::size_t bytes)
    : file_(file), offset_(offset), layout_(layout) {
  // A huge page needs an address that fits its place in the file.
  constexpr auto align = region_layout::huge_page;
  mapped_bytes_ = bytes + align;
  mapped_ =
      mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* at = MAP_FAILED;
  if (mapped_ != MAP_FAILED) {
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped_);
    base_ = static_cast<std::byte*>(mapped_) + (align - begin % align) % align;
    at = mmap(base_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
              static_cast<off_t>(offset));
  }
  if (at == MAP_FAILED) {
    const int why = errno;
    if (mapped_ != MAP_FAILED) munmap(mapped_, mapped_bytes_);
    throw user_error(
        errc::device,
        fmt::format("shm: no {} MiB of addresses for a generation of {} ranks: {}; "
                    "raise the limit (ulimit -v unlimited), use --communicator tcp, or create "
                    "the rendezvous with fewer registered_bytes",
                    bytes >> 20, layout.world(), std::strerror(why)));
  }
}

region::~region() { munmap(mapped_, mapped_bytes_); }

void region::reserve_seat(std::size_t c, std::int32_t r) const {
  reserve(file_, offset_ + layout_.seat(c, index(r)), sizeof(seat_block), "a subgroup's state");
  reserve(file_, offset_ + layout_.slots(c, index(r)), slot_sets * layout_.slot_bytes(),
          "a rank's slots");
}

bool region::reserve_registered(std::size_t offset, std::size_t bytes) const {
  try {
    reserve(file_, offset_ + offset, bytes, "registered memory");
  } catch (const user_error&) {
    madvise(base_ + offset, bytes, MADV_REMOVE);  // of pieces that were there
    return false;
  }
  // Its pages exist: mapping them now is cheaper than one by one when they are first touched.
  madvise(base_ + offset, bytes, MADV_POPULATE_WRITE);
  return true;
}

registered_memory::registered_memory(std::shared_ptr<region> in, std::int32_t rank)
    : region_(std::move(in)),
      begin_(region_->layout().registered(static_cast<std::size_t>(rank))) {}

std::shared_ptr<void> registered_memory::allocate(std::size_t bytes) {
  constexpr std::size_t page = 4096;
  constexpr std::size_t huge_from = std::size_t{4} << 20;
  const auto align = bytes >= huge_from ? region_layout::huge_page : page;
  const auto most = region_->layout().registered_bytes();
  if (bytes > most) return nullptr;
  const auto rounded = (std::max<std::size_t>(bytes, 1) + align - 1) / align * align;
  const std::lock_guard hold{mutex_};
  const auto from = (used_ + align - 1) / align * align;
  if (from > most || rounded > most - from) return nullptr;
  if (!region_->reserve_registered(begin_ + from, rounded)) return nullptr;
  used_ = from + rounded;
  auto* at = region_->place(begin_ + from);
  // MADV_REMOVE returns the pages to the kernel even if other processes have them mapped.
  return {at, [region = region_, rounded](void* block) { madvise(block, rounded, MADV_REMOVE); }};
}

std::optional<std::size_t> registered_memory::place(const void* data, std::size_t bytes) const {
  const auto* begin = region_->place(begin_);
  const auto* first = static_cast<const std::byte*>(data);
  const std::less<const std::byte*> before;
  const std::lock_guard hold{mutex_};
  if (before(first, begin) || !before(first, begin + used_)) return std::nullopt;
  const auto from = static_cast<std::size_t>(first - begin);
  if (bytes > used_ - from) return std::nullopt;
  return begin_ + from;
}

}  // namespace troupe::shm
