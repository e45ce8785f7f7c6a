// All groups of one backend, and the thread that watches them.
#pragma once

#include "backends/nccl/channel.hpp"

#include <condition_variable>
#include <map>
#include <thread>

namespace troupe::nccl {

/// One generation on one rank. Lanes submit, abort and close; the watcher steps. Thread-safe.
class group {
public:
  group(std::shared_ptr<const library> functions, std::shared_ptr<communicator> control,
        int device);

  communicator& control() { return *control_; }
  int device() const { return device_; }

  /// For the owning lane only. Throws user_error when too many are in flight.
  std::shared_ptr<operation> submit(const std::vector<std::int32_t>& members, submission what,
                                    std::chrono::nanoseconds deadline);
  /// Ends the operation if its group has ended.
  void settle(operation& what) const;
  void abort(std::string_view why) noexcept;
  bool aborted() const noexcept { return end_.aborted() || control_->aborted(); }
  bool quiescent() const noexcept;
  std::string why() const;
  void close();

  // Called by the watcher's thread.

  /// True while something is under way.
  bool step();
  /// Closed, and nothing of it is left on the GPU.
  bool over() const { return over_; }

private:
  channel& channel_of(const subgroup& among, const std::vector<std::int32_t>& members);
  bool step_channels();
  bool in_flight() const;
  void drop_ended();
  void end_all();

  const std::shared_ptr<const library> functions_;
  const std::shared_ptr<communicator> control_;
  const int device_;
  collectives::group_end end_;
  mutable std::mutex mutex_;  // of the list of channels
  std::vector<std::shared_ptr<channel>> channels_;
  std::vector<std::weak_ptr<operation>> flying_;  // ended ones, too, until the watcher looks
  std::atomic<bool> ended_{false};                // by the watcher, after an abort
  std::atomic<bool> quiet_{false};                // and nothing runs on the GPU any more
  std::atomic<bool> closed_{false};
  bool over_ = false;
};

/// Thread-safe.
class hub {
public:
  hub();
  /// Ends the watcher's thread, also while groups are open.
  ~hub();
  hub(const hub&) = delete;
  hub& operator=(const hub&) = delete;

  void add(std::shared_ptr<group> fresh);
  /// There is something new to do.
  void wake() noexcept;
  /// Waits until the watcher has stepped all groups, or for a moment.
  void wait_turn();

private:
  void run();

  std::mutex mutex_;
  std::condition_variable rung_;
  std::condition_variable turned_;
  bool woken_ = false;
  std::uint64_t turns_ = 0;
  bool ending_ = false;
  std::vector<std::shared_ptr<group>> groups_;
  std::thread thread_;
};

}  // namespace troupe::nccl
