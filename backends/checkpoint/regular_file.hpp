// A regular file opened for reading. Its path is in every error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace troupe {

/// Throws user_error(errc::checkpoint): `<path>: <why>`.
[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why);

/// Thread-safe after construction (positioned reads only). Throws user_error(errc::checkpoint).
class regular_file {
public:
  enum class links { follow, refuse };

  /// Refuses anything but a regular file (a pipe would block, a folder has no bytes) and, if asked,
  /// a symbolic link at the end of the path.
  explicit regular_file(std::filesystem::path path, links policy = links::follow);
  ~regular_file();
  regular_file(const regular_file&) = delete;
  regular_file& operator=(const regular_file&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The size at opening, in bytes.
  std::uint64_t size() const { return size_; }
  /// Fills `out`. Throws if the file has become shorter.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;
  /// The whole file. Throws if it has more than `limit` bytes.
  std::vector<std::byte> read_all(std::uint64_t limit) const;
  /// XXH3-128 of the whole file, read in pieces.
  std::string hash() const;
  /// `<path>: <why>`, as an exception.
  [[noreturn]] void refuse(const std::string& why) const;

private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace troupe
