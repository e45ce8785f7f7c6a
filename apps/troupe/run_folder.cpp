#include "apps/troupe/run_folder.hpp"

#include "apps/command_line/descriptors.hpp"
#include "backends/telemetry/csv_logger.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/failure.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

namespace troupe::program {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void cannot_use(const std::string& path, const std::string& why) {
  throw user_error(
      errc::bad_configuration,
      fmt::format("cannot write to the run folder {}: {}; choose another with --run-dir", path,
                  why));
}

file_descriptor open_folder(const fs::path& folder) {
  return file_descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
}

// Another user's file can be read only, which is enough for a lock, but for NFS.
file_descriptor open_lock(const fs::path& folder) {
  const auto path = folder / lock_file;
  file_descriptor lock{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)};
  if (lock || errno != EACCES) return lock;
  lock.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock) errno = EACCES;
  return lock;
}

// No lock of files on this file system, or none of this one.
bool has_no_file_locks(int error) {
  return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EBADF;
}

// Creates no file.
file_descriptor open_to_look(const fs::path& folder) {
  std::error_code ignored;
  const auto path = fs::weakly_canonical(folder / lock_file, ignored);
  return file_descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
}

bool is_locked(const file_descriptor& file) {
  return file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string{name.data()} : "";
}

// The start time in a run's name, or nothing: `NAME-20261121T074601Z-0c4f`.
std::string time_in_name(const std::string& name) {
  constexpr std::size_t time_size = 16, hex_size = 4, tail = time_size + hex_size + 2;
  if (name.size() <= tail) return {};
  const auto rest = name.substr(name.size() - tail);
  const bool looks_right = rest[0] == '-' && rest[9] == 'T' && rest[16] == 'Z' && rest[17] == '-';
  return looks_right ? rest.substr(1, time_size) : std::string{};
}

}  // namespace

std::string fresh_run_folder(const std::string& model, std::chrono::system_clock::time_point now,
                             std::uint64_t drawn) {
  return fmt::format("{}/{}-{:%Y%m%dT%H%M%SZ}-{:04x}", runs_folder, model,
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), drawn & 0xffff);
}

bool holds_run(const fs::path& folder) {
  std::error_code ignored;
  for (const auto* name :
       {config_file, metrics_file, events_file, result_file, journal_file, checkpoints_folder})
    if (fs::exists(folder / name, ignored)) return true;
  return false;
}

std::optional<std::string> latest_run(const fs::path& runs) {
  std::string best, best_time;
  std::error_code error;
  for (fs::directory_iterator it{runs, error}, end; !error && it != end; it.increment(error)) {
    const auto time = time_in_name(it->path().filename().string());
    if (time.empty() || time < best_time || !holds_run(it->path())) continue;
    best_time = time;
    best = it->path().string();
  }
  return best.empty() ? std::nullopt : std::optional{best};
}

std::optional<std::string> run_of_checkpoint(const fs::path& checkpoint) {
  std::error_code ignored;
  // A link may lead to the checkpoint, or from the run to the folder of its checkpoints.
  for (const auto& whole : {fs::absolute(checkpoint / ".", ignored).lexically_normal(),
                            fs::weakly_canonical(checkpoint / ".", ignored)}) {
    const auto folder = whole.filename().empty() ? whole.parent_path() : whole;
    if (folder.parent_path().filename() != checkpoints_folder) continue;
    const auto run = folder.parent_path().parent_path();
    if (!holds_run(run)) continue;
    const auto near = fs::proximate(run, ignored);
    return near.empty() ? run.string() : near.string();
  }
  return std::nullopt;
}

run_folder::run_folder(std::string path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) cannot_use(path_, error.message());
  folder_ = open_folder(path_);
  if (folder_) lock_ = open_lock(path_);
  if (!lock_) cannot_use(path_, std::strerror(errno));
  const auto take = [&](const file_descriptor& one) {
    if (lock_alone(one.get())) return;
    if (has_no_file_locks(errno) && &one == &lock_) return;
    if (errno != EWOULDBLOCK) cannot_use(path_, std::strerror(errno));
    const auto host = other_host(path_);
    cannot_use(path_, "another program is running there" + (host ? ", on host " + *host : ""));
  };
  take(folder_);
  take(lock_);
  const auto line = host_name() + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 || ::pwrite(lock_.get(), line.data(), line.size(), 0) < 0)
    return;  // without the name of its host the lock holds all the same
}

std::string run_folder::file(const char* name) const { return (fs::path{path_} / name).string(); }

void run_folder::resume_at(std::int64_t step) const {
  std::error_code error;
  fs::remove(file(result_file), error);
  if (error) cannot_use(path_, error.message());
  cut_metrics(file(metrics_file), step);
  cut_metrics(file(figures_file), step);
}

bool run_folder::is_in_place() const {
  struct stat mine {};
  struct stat named {};
  return ::fstat(folder_.get(), &mine) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

void run_folder::write(const char* name, const std::string& text) const {
  replace_text_file(file(name), text);
}

bool is_job_of_service(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / journal_file, ignored);
}

bool is_running(const fs::path& folder) {
  std::error_code ignored;
  // A service locks a file beside the folder of its jobs, `SERVICE/lock` of `SERVICE/jobs/NAME`.
  const bool of_service = is_job_of_service(folder);
  if (of_service && fs::exists(folder / result_file, ignored)) return false;
  if (!of_service) return is_locked(open_folder(folder)) || is_locked(open_to_look(folder));
  return is_locked(open_to_look(folder / ".." / ".."));
}

std::optional<std::string> other_host(const fs::path& folder) {
  if (is_job_of_service(folder) || !is_running(folder)) return std::nullopt;
  std::ifstream file{folder / lock_file};
  std::string host;
  if (!std::getline(file, host) || host.empty() || host == host_name()) return std::nullopt;
  return host;
}

}  // namespace troupe::program
