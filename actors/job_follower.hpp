// Follows a job by its observations: computes the status that job_handle::status returns, and
// passes events to the streams that job_handle::follow adds while the job runs.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "troupe/session.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// Thread-safe. It is an observer behind a bounded queue, so ranks never wait for its lock.
class job_follower {
public:
  using clock = std::function<std::chrono::nanoseconds()>;

  /// `step`: where a fit that resumes begins. `now` is monotonic.
  job_follower(std::uint64_t id, const job& what, std::int64_t step, clock now);

  /// The observer of `self`'s job.
  static observer_factory observe(std::shared_ptr<job_follower> self);
  void stop_asked();
  /// The job has completed. Ends the streams. Idempotent.
  void end(const job_outcome& outcome);

  job_status status() const;
  /// Implements job_handle::follow: `stream` gets the events from now on, through `into`.
  void add(const std::shared_ptr<event_stream>& stream, std::unique_ptr<observer> into);

private:
  struct mark {
    double at = 0;  // seconds
    std::int64_t samples = 0;
    std::int64_t step = 0;
    double epochs = 0;  // done, with the part of the one that is trained
  };
  struct reader {
    std::weak_ptr<event_stream> stream;
    std::unique_ptr<observer> into;
  };

  void see(const observation& what);
  void finish(std::uint64_t dropped);
  void see(const seen::progress& what);
  void see(const seen::metrics& what);
  void see(const seen::lifecycle& what);
  void failed(const seen::lifecycle& what);
  void form_again(const seen::lifecycle& what);
  double seconds() const;
  std::optional<double> rate() const;
  std::optional<double> time_left() const;

  const clock now_;
  const std::optional<std::int64_t> max_steps_;
  const std::optional<std::chrono::nanoseconds> max_time_;
  mutable std::mutex guard_;  // guards what follows
  job_status all_;
  bool stop_asked_ = false;
  std::optional<mark> before_, since_;  // two moments of this generation, for the rate
  std::optional<mark> first_;           // of training in this generation, for the time left
  std::optional<double> began_;         // when training was first seen, in seconds
  mark last_;
  std::vector<reader> readers_;
};

}  // namespace troupe
