#include "backends/telemetry/line_file.hpp"

#include "messages/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

namespace troupe {

namespace {

[[noreturn]] void cannot_write(const std::string& path) {
  throw user_error(errc::bad_configuration,
                   fmt::format("cannot write {}: {}; choose a folder that you may write to, with "
                               "room on its disk",
                               path, std::strerror(errno)));
}

void write_all(int file, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw std::system_error(errno, std::generic_category(), "writing " + path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

line_file::line_file(std::string path, start how) : path_(std::move(path)) {
  const int mode = how == start::fresh ? O_TRUNC : O_APPEND;
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0666);
  if (file_ < 0) cannot_write(path_);
}

line_file::~line_file() { ::close(file_); }

void line_file::add(std::string_view text) { write_all(file_, path_, text); }

std::string read_text_file(const std::string& path) {
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
