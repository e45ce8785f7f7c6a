#include "backends/telemetry/line_file.hpp"

#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <tuple>

namespace troupe {

namespace {

[[noreturn]] void cannot_write(const std::string& path) {
  throw user_error(errc::bad_configuration,
                   fmt::format("cannot write {}: {}; choose a folder that you may write to, with "
                               "room on its disk",
                               path, std::strerror(errno)));
}

// The end of the last whole line. A crash may have left a partial line after it.
off_t end_of_lines(int file) {
  std::array<char, 4096> part{};
  off_t end = ::lseek(file, 0, SEEK_END);
  while (end > 0) {
    const auto size = std::min<off_t>(end, static_cast<off_t>(part.size()));
    const auto begin = end - size;
    if (::pread(file, part.data(), static_cast<std::size_t>(size), begin) != size) return -1;
    const auto found = std::string_view{part.data(), static_cast<std::size_t>(size)}.rfind('\n');
    if (found != std::string_view::npos) return begin + static_cast<off_t>(found) + 1;
    end = begin;
  }
  return end;
}

// Only a regular file can be truncated after a failed write; a pipe or a terminal cannot.
void cut(int file, off_t size) {
  if (size >= 0) std::ignore = ::ftruncate(file, size);
}

}  // namespace

line_file::line_file(std::string path, start how) : path_(std::move(path)) {
  const int mode = how == start::fresh ? O_WRONLY | O_TRUNC : O_RDWR;
  file_ = ::open(path_.c_str(), O_CREAT | O_CLOEXEC | O_APPEND | mode, 0666);
  if (file_ < 0) cannot_write(path_);
  if (how == start::append) cut(file_, end_of_lines(file_));
}

line_file::~line_file() { ::close(file_); }

void line_file::add(std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto written = ::write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      if (done > 0) cut(file_, ::lseek(file_, 0, SEEK_END) - static_cast<off_t>(done));
      throw std::system_error(why, std::generic_category(), "cannot write " + path_);
    }
    done += static_cast<std::size_t>(written);
  }
}

std::string read_text_file(const std::string& path) {
  if (std::error_code none; std::filesystem::is_directory(path, none))
    throw user_error(errc::bad_configuration,
                     fmt::format("cannot read {}: it is a folder; move it away", path));
  std::ifstream in{path, std::ios::binary};
  std::string text{std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
  if (!in)
    throw user_error(
        errc::bad_configuration,
        fmt::format("cannot read {}: {}; check its name and rights", path, std::strerror(errno)));
  return text;
}

void replace_text_file(const std::string& path, std::string_view text) {
  const auto temporary = path + ".new";
  {
    line_file file{temporary, line_file::start::fresh};
    try {
      file.add(text);
    } catch (const std::system_error&) {
      ::unlink(temporary.c_str());
      cannot_write(path);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) cannot_write(path);
}

}  // namespace troupe
