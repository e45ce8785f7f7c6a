// Holds a running job: its status and its events; stop, abort, scale.
#pragma once

#include "troupe/job_status.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace troupe {

class event_stream;

/// A job that a program holds. It comes from `with_handle` (troupe/job.hpp), from
/// job_context::started or from session::jobs().
/// 1. Thread-safe. Copies mean the same job. A handle that was made by itself means none: its id is
///    0 and its state `ended`.
/// 2. No call waits for the job. stop, abort and scale send a request, on which the job acts later.
/// 3. A handle may outlive its job and its session, and keeps neither alive. After the job has
///    ended, requests change nothing, and the status is the last one.
/// 4. A handle that is destroyed does not end the job. To cancel by completion token, use the slot
///    of session::async_run: it makes the same requests.
class job_handle {
public:
  job_handle() = default;

  /// Counts the jobs of a session from 1; those that were refused count, too.
  std::uint64_t id() const;
  /// False for a handle that was made by itself; still true when the job has ended.
  explicit operator bool() const { return of_ != nullptr; }
  friend bool operator==(const job_handle&, const job_handle&) = default;

  /// How the job stands, as far as its events have been processed: an instant after a rank has made
  /// a step. It is `ended` before the completion handler of the job is called. Copies at most 512
  /// metrics and 16 failures under a lock that the job's ranks do not take.
  job_status status() const;
  /// The events from now on go into `stream` as well, until the job ends; then the stream ends.
  /// Nothing of a job that has ended. A stream that is destroyed is forgotten. Throws user_error
  /// (bad_usage): the stream has a job, or wants hooks, which are for job_context::events.
  void follow(const std::shared_ptr<event_stream>& stream) const;

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
  explicit job_handle(std::shared_ptr<target> of) : of_(std::move(of)) {}

  std::shared_ptr<target> of_;
};

}  // namespace troupe
