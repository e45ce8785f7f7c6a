// The events of a job as the service keeps them: in a file, and the newest ones in memory.
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

  explicit journal(std::string path);
  journal(const journal&) = delete;
  journal& operator=(const journal&) = delete;

  void add(const std::string& kind, const nlohmann::json& what);
  std::uint64_t newest() const { return first_ + lines_.size() - 1; }
  /// The kept lines after number `after` as server-sent events, at most about 64 KiB of them.
  /// `after` becomes the number of the last one.
  std::string events_after(std::uint64_t& after) const;

  /// Calls `wake` after each line, for as long as the caller holds the returned key.
  std::shared_ptr<void> watch(std::function<void()> wake);
  /// Calls the watchers: something else has changed.
  void wake();

private:
  struct line {
    std::string kind, json;
  };
  void keep(line one);

  std::ofstream file_;
  std::uint64_t first_ = 1;  // the number of lines_.front()
  std::deque<line> lines_;
  std::list<std::weak_ptr<std::function<void()>>> watchers_;
};

}  // namespace service
