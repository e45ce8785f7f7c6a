// The events of a job as the service keeps them: in a file, and the newest ones in memory while the
// job runs or a client follows it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <string>

namespace service {

/// Lines of JSON, numbered from 1 over all runs of the job. A line is written at once; one that a
/// crash has cut is dropped when the file is read again. For one thread.
class journal {
public:
  static constexpr std::size_t kept_max = 20'000;  ///< lines in memory: the newest

  /// Counts the lines of the file, if it is there, and keeps none of them.
  explicit journal(std::string path);
  journal(const journal&) = delete;
  journal& operator=(const journal&) = delete;

  /// Before the first line of a run. Throws std::system_error: the file cannot be opened.
  void open();
  /// After the last one: of a job that has ended nothing is open or in memory.
  void close();
  /// Opens the file for this line alone if it is not open. A line that cannot be written is lost,
  /// and has no number: the numbers are those of the file's lines.
  void add(const std::string& kind, const nlohmann::json& what);
  std::uint64_t newest() const { return newest_; }
  /// The kept lines after number `after` as server-sent events, at most about 64 KiB of them.
  /// `after` becomes the number of the last one.
  std::string events_after(std::uint64_t& after);

  /// Calls `wake` after each line, for as long as the caller holds the returned key. It keeps the
  /// lines in memory if they are there, or if there are some after number `after`.
  std::shared_ptr<void> watch(std::uint64_t after, std::function<void()> wake);
  /// Calls the watchers: something else has changed.
  void wake();

private:
  using lines = std::deque<std::string>;  // the newest ones; the number of the last one is newest_
  struct watcher {
    std::function<void()> wake;
    std::shared_ptr<lines> all;  // null: the caller knew all lines, and none was in memory
  };
  static void keep(lines& all, std::string one);
  bool write(const std::string& text);
  std::shared_ptr<lines> kept();

  const std::string path_;
  std::ofstream file_;
  std::uintmax_t size_ = 0;  // of the open file
  std::uint64_t newest_ = 0;
  std::shared_ptr<lines> held_;  // while the file is open
  std::weak_ptr<lines> shared_;  // of held_ and of watchers
  std::list<std::weak_ptr<watcher>> watchers_;
};

}  // namespace service
