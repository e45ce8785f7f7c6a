#include "backends/local/file_operations.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

namespace fs = std::filesystem;

// An operation that ended in an error; becomes its result.
struct failed_operation {
  std::error_code error;
  std::string text;
};

std::string fix_for(const std::error_code& error) {
  if (error == std::errc::permission_denied || error == std::errc::operation_not_permitted)
    return "; check its owner and mode, or choose another folder";
  if (error == std::errc::read_only_file_system) return "; choose a folder that can be written";
  if (error == std::errc::no_space_on_device || error.value() == EDQUOT)
    return "; free some space, or choose a folder on another disk";
  if (error == std::errc::not_a_directory)
    return "; a part of this path is a file: move it away, or choose another folder";
  if (error == std::errc::is_a_directory) return "; there is a folder of this name: move it away";
  if (error == std::errc::file_too_large) return "; a limit on file size is in force: raise it";
  return {};
}

[[noreturn]] void fail(std::error_code error, const fs::path& path, const std::string& why = {}) {
  throw failed_operation{error, fmt::format("{}: {}{}", path.string(),
                                            why.empty() ? error.message() : why, fix_for(error))};
}
[[noreturn]] void fail_errno(const fs::path& path) { fail({errno, std::generic_category()}, path); }

// A descriptor with its path. After writing, `close` is checked, because it can report lost data.
class descriptor {
public:
  descriptor(fs::path path, int flags) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
    if (fd_ < 0) fail_errno(path_);
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;

  int get() const { return fd_; }
  void write(const std::vector<std::byte>& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
      const auto done = ::write(fd_, bytes.data() + at, bytes.size() - at);
      if (done < 0 && errno != EINTR) fail_errno(path_);
      if (done > 0) at += static_cast<std::size_t>(done);
    }
  }
  void sync() {
    if (::fsync(fd_) != 0) fail_errno(path_);
  }
  void close() {
    const int fd = std::exchange(fd_, -1);
    if (::close(fd) != 0 && errno != EINTR) fail_errno(path_);
  }

private:
  fs::path path_;
  int fd_ = -1;
};

fs::path hidden_beside(const fs::path& path) {
  return path.parent_path() / fmt::format(".{}.part", path.filename().string());
}

void sync_folder(const fs::path& path) {
  descriptor folder{path, O_RDONLY | O_DIRECTORY};
  // Some network file systems cannot sync a folder and say EINVAL; they have no cache of entries.
  // One that is read-only has nothing to sync.
  if (::fsync(folder.get()) != 0 && errno != EINVAL && errno != EROFS) fail_errno(path);
}

void rename_entry(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(to);
}

void remove_whole(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(error, path);
}

// What `symlink` says on a file system that has none.
bool has_no_links(int error) { return error == EPERM || error == EOPNOTSUPP || error == ENOSYS; }

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

class operations {
public:
  explicit operations(const fs::path& root) : root_(root) {}

  storage_result operator()(const storage_ops::write& op) {
    const auto path = place(op.path);
    const auto part = hidden_beside(path);
    try {
      descriptor file{part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW};
      for (const auto& chunk : op.chunks) file.write(*chunk);
      file.sync();
      file.close();
      rename_entry(part, path);
    } catch (const failed_operation& e) {
      ::unlink(part.c_str());  // a disk that is full needs the space back
      fail(e.error, path);
    }
    return {};
  }

  storage_result operator()(const storage_ops::rename& op) {
    const auto from = place(op.from);
    const auto to = place(op.to);
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    const std::error_code error{errno, std::generic_category()};
    if (error == std::errc::no_such_file_or_directory) {
      if (is_there(from)) fail(error, to);
      if (is_there(to)) return {};  // was done before
      fail(error, from);
    }
    if (error != std::errc::directory_not_empty && error != std::errc::file_exists) fail(error, to);
    if (*from.lexically_relative(to).begin() != "..")  // moving `to` aside would take `from` along
      fail(std::make_error_code(std::errc::invalid_argument), to,
           fmt::format("holds {}: it cannot be replaced by a part of itself", from.string()));
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      // Sync first: the replaced folder must not be removed while a crash could still restore it.
      sync_folder(to.parent_path());
      if (from.parent_path() != to.parent_path()) sync_folder(from.parent_path());
      remove_whole(from);
      return {};
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail_errno(to);
    const auto aside = hidden_beside(to);
    remove_whole(aside);
    rename_entry(to, aside);
    rename_entry(from, to);
    sync_folder(to.parent_path());
    remove_whole(aside);
    return {};
  }

  storage_result operator()(const storage_ops::sync_folder& op) {
    sync_folder(place(op.path));
    return {};
  }

  storage_result operator()(const storage_ops::make_folder& op) {
    const auto path = place(op.path);
    std::vector<std::pair<fs::path, bool>> parents;  // second: the folder gets a new entry
    for (auto p = path; p.has_relative_path(); p = p.parent_path())
      parents.emplace_back(p.has_parent_path() ? p.parent_path() : ".", !is_there(p));
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail(error, path);
    // Outermost first, because a folder whose own entry is lost takes the others with it. Folders
    // that existed before are synced too: the process that created them may have been killed before
    // they were durable. A folder that cannot be opened was not created by Troupe.
    for (auto p = parents.rbegin(); p != parents.rend(); ++p)
      if (p->second || ::access(p->first.c_str(), R_OK) == 0) sync_folder(p->first);
    return {};
  }

  storage_result operator()(const storage_ops::remove& op) {
    const auto path = place(op.path);
    if (path == root_ || path == path.root_path())
      fail(std::make_error_code(std::errc::invalid_argument), path, "is not removed: the root");
    remove_whole(path);
    return {};
  }

  storage_result operator()(const storage_ops::link& op) {
    const auto path = place(op.path);
    if (op.target.empty() || fs::path{op.target}.is_absolute())
      fail(std::make_error_code(std::errc::invalid_argument), path, "a link's target is relative");
    if (!fs::path{op.path}.is_absolute())
      place((fs::path{op.path}.parent_path() / op.target).string());
    const auto part = hidden_beside(path);
    ::unlink(part.c_str());  // left by a crash
    if (::symlink(op.target.c_str(), part.c_str()) != 0) {
      const int error = errno;
      if (has_no_links(error) && !is_there(path)) return {};
      fail({error, std::generic_category()}, path);
    }
    if (::rename(part.c_str(), path.c_str()) == 0) return {};
    const std::error_code error{errno, std::generic_category()};
    ::unlink(part.c_str());
    fail(error, path);
  }

  storage_result operator()(const storage_ops::read& op) {
    const auto path = place(op.path);
    descriptor file{path, O_RDONLY | O_NONBLOCK};  // opening a pipe must not wait for its writer
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) fail_errno(path);
    if (!S_ISREG(facts.st_mode))
      fail(std::make_error_code(std::errc::invalid_argument), path, "is not a file");
    if (static_cast<std::uintmax_t>(facts.st_size) > op.limit)
      fail(std::make_error_code(std::errc::value_too_large), path,
           fmt::format("has {} bytes, more than the {} allowed", facts.st_size, op.limit));
    auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(facts.st_size));
    std::size_t filled = 0;
    while (filled < bytes->size()) {
      const auto got = ::read(file.get(), bytes->data() + filled, bytes->size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno(path);
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
    }
    bytes->resize(filled);
    return {{}, {}, std::move(bytes), {}};
  }

  storage_result operator()(const storage_ops::list& op) {
    const auto path = place(op.path);
    storage_result result;
    std::error_code error;
    for (fs::directory_iterator it{path, error}, end; !error && it != end; it.increment(error))
      result.names.push_back(it->path().filename().string());
    if (error) fail(error, path);
    std::sort(result.names.begin(), result.names.end());
    return result;
  }

private:
  // The path on disk; one that leaves the root is refused before anything is touched.
  fs::path place(const std::string& given) const {
    const fs::path path{given};
    const auto normal = (root_ / path).lexically_normal();
    const auto relative = normal.lexically_relative(root_);
    if (given.empty() || given.find('\0') != std::string::npos ||
        (!path.is_absolute() && (relative.empty() || *relative.begin() == "..")))
      fail(std::make_error_code(std::errc::invalid_argument), path,
           fmt::format("leaves {}; give an absolute path if it is meant", root_.string()));
    return normal.has_filename() ? normal : normal.parent_path();
  }

  const fs::path& root_;
};

}  // namespace

storage_result perform(const std::filesystem::path& root, const storage_op& op) {
  try {
    return std::visit(operations{root}, op);
  } catch (const failed_operation& e) {
    return {e.error, e.text, nullptr, {}};
  } catch (const std::bad_alloc&) {
    return {std::make_error_code(std::errc::not_enough_memory), "not enough memory", nullptr, {}};
  } catch (const fs::filesystem_error& e) {
    return {e.code(), e.what(), nullptr, {}};
  }
}

}  // namespace troupe
