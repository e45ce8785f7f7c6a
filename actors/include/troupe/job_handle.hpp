// Steers a running job: stop, abort, scale.
#pragma once

#include "troupe/outcome.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace troupe {

/// The way to a running job. A program gets it through job_context::started.
/// - Thread-safe. Copies mean the same job. A handle that was made by itself means none.
/// - A call sends a request and returns: the job acts on it later.
/// - After the job has ended, calls change nothing. A handle keeps neither the job nor its session
///   alive.
class job_handle {
public:
  job_handle() = default;
  /// Ends the run at a step boundary that all ranks agree on, with a checkpoint (status `stopped`).
  /// The first reason counts: another call changes nothing.
  void stop(stop_reason why = stop_reason::caller) const;
  /// Ends the run at once, with a failure of the kind aborted and this text. Steps since the last
  /// checkpoint are lost.
  void abort(const std::string& why = "the caller has aborted the job") const;
  /// Asks for so many processes of ranks, from the next agreed step on. Throws user_error
  /// (bad_usage) for less than one.
  void scale(std::int32_t ranks) const;

private:
  friend class session;
  struct target;
  explicit job_handle(std::weak_ptr<target> to) : to_(std::move(to)) {}

  std::weak_ptr<target> to_;
};

}  // namespace troupe
