#include "apps/troupe/output_file.hpp"

#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace troupe::program {

namespace {

[[noreturn]] void refuse_output(const std::string& path, std::string_view why,
                                std::string_view fix) {
  throw user_error(errc::bad_configuration, fmt::format("cannot write {}: {}; {}", path, why, fix));
}

[[noreturn]] void output_failed(const std::string& path) {
  refuse_output(path, std::strerror(errno), "choose a folder that has room and may be written to");
}

[[noreturn]] void refuse_existing(const std::string& path) {
  refuse_output(path, "it is there already",
                "replace it with --force, or choose another name with --output");
}

std::string_view kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return "it is a folder";
    case S_IFCHR:
    case S_IFBLK: return "it is a device";
    case S_IFIFO: return "it is a pipe";
    case S_IFSOCK: return "it is a socket";
    case S_IFLNK: return "it is a symbolic link";
    default: return "it is no regular file";
  }
}

// A new file in the folder of the output, so that a rename can replace the output. Removed unless
// it was renamed.
class new_file {
public:
  explicit new_file(const std::string& wanted) : wanted_(wanted) {
    constexpr int names = 100;  // a killed process of the same number may have left some
    for (int i = 0; i < names && file_ < 0; ++i) {
      name_ = fmt::format("{}.{}-{}.new", wanted, ::getpid(), i);
      file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file_ < 0 && errno != EEXIST) break;
    }
    if (file_ < 0) output_failed(wanted_);
  }
  ~new_file() {
    ::close(file_);
    if (!placed_) ::unlink(name_.c_str());
  }
  new_file(const new_file&) = delete;
  new_file& operator=(const new_file&) = delete;

  void add(std::string_view text) {
    while (!text.empty()) {
      const auto written = ::write(file_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) output_failed(wanted_);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void place(bool replace) {
    if (::fsync(file_) != 0) output_failed(wanted_);
    if (!replace) {
      const int done =
          ::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, wanted_.c_str(), RENAME_NOREPLACE);
      placed_ = done == 0;
      if (placed_) return;
      if (errno == EEXIST) refuse_existing(wanted_);
      if (errno != EINVAL && errno != ENOSYS) output_failed(wanted_);
    }
    // With `replace`, or on a file system that cannot rename without replacing.
    check_output(wanted_, replace);
    if (::rename(name_.c_str(), wanted_.c_str()) != 0) output_failed(wanted_);
    placed_ = true;
  }

private:
  std::string wanted_, name_;
  int file_ = -1;
  bool placed_ = false;
};

}  // namespace

void check_output(const std::string& path, bool replace) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return;
    output_failed(path);
  }
  if (!S_ISREG(found.st_mode))
    refuse_output(path, kind_of(found.st_mode), "name a regular file with --output");
  if (!replace) refuse_existing(path);
}

void check_is_like(std::string_view flag, const std::string& path, std::string_view head) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream in{path, std::ios::binary};
  std::string begin(head.size(), '\0');
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(in.gcount()));
  if (begin.empty() || begin == head) return;
  refuse_output(path, "it is there already, and it is no file that this flag has written",
                fmt::format("name another file with {}", flag));
}

void write_output(const std::string& path, const std::vector<std::string_view>& pieces,
                  bool replace) {
  check_output(path, replace);
  new_file file{path};
  for (const auto piece : pieces) file.add(piece);
  file.place(replace);
}

}  // namespace troupe::program
