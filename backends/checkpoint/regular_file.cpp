#include "backends/checkpoint/regular_file.hpp"

#include "backends/checkpoint/digest.hpp"
#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace troupe {

namespace {

std::string system_text(int error) { return std::generic_category().message(error); }

}  // namespace

regular_file::regular_file(std::filesystem::path path, links policy) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (policy == links::refuse ? O_NOFOLLOW : 0);
  fd_ = ::open(path_.c_str(), flags);
  if (fd_ < 0)
    refuse(errno == ELOOP && policy == links::refuse ? "is a symbolic link, which is not followed"
                                                     : system_text(errno));
  struct stat facts {};
  if (::fstat(fd_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    ::close(fd_);
    refuse("is not a file");
  }
  size_ = static_cast<std::uint64_t>(facts.st_size);
}

regular_file::~regular_file() { ::close(fd_); }

void regular_file::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(system_text(errno));
    if (got == 0) refuse(fmt::format("ends at byte {}, more was expected", offset));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

std::vector<std::byte> regular_file::read_all(std::uint64_t limit) const {
  if (size_ > limit) refuse(fmt::format("has {} bytes, more than the {} allowed", size_, limit));
  std::vector<std::byte> bytes(size_);
  read_at(0, bytes);
  return bytes;
}

std::string regular_file::hash() const {
  constexpr std::uint64_t piece = std::uint64_t{1} << 20;
  std::vector<std::byte> buffer(std::min(size_, piece));
  content_hash hash;
  for (std::uint64_t at = 0; at < size_; at += buffer.size()) {
    const auto part = std::span{buffer}.first(std::min<std::uint64_t>(piece, size_ - at));
    read_at(at, part);
    hash.add(part);
  }
  return hash.hex();
}

void regular_file::refuse(const std::string& why) const { troupe::refuse(path_, why); }

void refuse(const std::filesystem::path& path, const std::string& why) {
  throw user_error(errc::checkpoint, fmt::format("{}: {}", path.string(), why));
}

}  // namespace troupe
