// A run's folder: its lock, its files, and how it is resumed.
#pragma once

#include "backends/local/file_descriptor.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troupe::program {

/// The folder of runs when --run-dir is not given.
inline constexpr const char* runs_folder = "runs";

/// `runs/mlp-20261121T074601Z-0c4f`. The names of one model's runs sort by time.
std::string fresh_run_folder(const std::string& model, std::chrono::system_clock::time_point now,
                             std::uint64_t drawn);
/// Whether `folder` has any file of a run.
bool holds_run(const std::filesystem::path& folder);
/// The run under `runs` that was started last, by the time in its name.
std::optional<std::string> latest_run(const std::filesystem::path& runs);
/// The run whose checkpoint this is: `RUN` of `RUN/checkpoints/step-...`, if it holds a run.
std::optional<std::string> run_of_checkpoint(const std::filesystem::path& checkpoint);

/// A run's folder that only this process writes to. It locks (flock) the folder and the file `lock`
/// there, because NFS shows locks of folders to their own host only. The kernel releases both when
/// the process ends for any reason. Where a file system has no locks of files, or `lock` belongs to
/// another user, the folder is locked for this host alone.
class run_folder {
public:
  /// Creates what is missing. Throws user_error (bad_configuration): the folder cannot be made or
  /// written to, or another program runs in it.
  explicit run_folder(std::string path);

  const std::string& path() const { return path_; }
  std::string file(const char* name) const;
  /// Prepares the folder for a run that continues from step `step`: removes result.json and the
  /// rows of metrics.csv and figures.csv after that step.
  void resume_at(std::int64_t step) const;
  /// False: the folder was moved or removed since. `path` then names another folder, or none.
  bool is_in_place() const;
  /// Replaces config.toml or result.json, by rename.
  void write(const char* name, const std::string& text) const;

private:
  std::string path_;
  file_descriptor folder_;
  file_descriptor lock_;
};

/// Whether the folder is that of a job of troupe_service, which has its events and metrics in one
/// file.
bool is_job_of_service(const std::filesystem::path& folder);

/// Whether a program runs in this folder now. Of a job of troupe_service: whether a service runs
/// that holds the job, and the job has no result.
bool is_running(const std::filesystem::path& folder);

/// The other host on which a program runs in this folder; nothing if none runs, if it runs here, or
/// if its host is not known.
std::optional<std::string> other_host(const std::filesystem::path& folder);

/// Locked while a program runs in the folder; its first line is the host of the last one.
inline constexpr const char* lock_file = "lock";
inline constexpr const char* config_file = "config.toml";
inline constexpr const char* metrics_file = "metrics.csv";
/// What reports show besides metrics.csv, in the same form.
inline constexpr const char* figures_file = "figures.csv";
inline constexpr const char* events_file = "events.jsonl";
inline constexpr const char* result_file = "result.json";
/// Files of a troupe_service job: job.json replaces config.toml, journal.jsonl replaces metrics.csv
/// and events.jsonl.
inline constexpr const char* job_file = "job.json";
inline constexpr const char* journal_file = "journal.jsonl";

}  // namespace troupe::program
