// A job: what a session runs. Plain data and factories; the command line, the trainer and the
// simulator make the same thing.
#pragma once

#include "troupe/job_handle.hpp"
#include "troupe/learner.hpp"
#include "troupe/observer.hpp"
#include "troupe/outcome.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

class event_stream;

/// What is around a job: its files, its first weights, and the observers that follow it. A session
/// gets it with each job, a trainer once for all of its jobs.
struct job_context {
  /// Checkpoints go to `<run_folder>/checkpoints`, relative to the root of `ports::files`. Empty:
  /// no files. A fit that does not resume is refused where there is a good checkpoint already.
  std::string run_folder;
  /// The checkpoint to resume (fit), or to take the weights from (validate, test, predict):
  /// - a checkpoint's folder;
  /// - a run's folder: the newest good checkpoint of that run;
  /// - `latest`: the newest good checkpoint of `run_folder`.
  /// The last two are looked up in the initiating call, which reads the checkpoint. Unset: none. An
  /// empty path is refused: it is what an outcome without a checkpoint has.
  std::optional<std::string> resume;
  /// Weights to start with, before the first broadcast; null: the module's own.
  snapshot_ptr initial;
  /// Each makes one observer when the job starts (troupe/observer.hpp).
  std::vector<observer_factory> observers;
  /// The same events as a stream (troupe/event_stream.hpp); null: none. A stream follows one job.
  std::shared_ptr<event_stream> events;
  /// Called at entry of every hook, in the order in which each rank handles them. Lanes wait for
  /// it, so it must be cheap. Called on the lanes' threads, so it must be thread-safe; for ranks in
  /// other processes on one thread of this process, at most 256 hooks of a process later. Empty: no
  /// trace.
  std::function<void(std::int32_t rank, const hook& what)> trace;
  /// Gets the job's handle once the job has started, in the initiating call. An exception of it
  /// aborts the job. Empty: no handle. It is not called for a job that is refused. Most programs
  /// use with_handle (below).
  std::function<void(job_handle)> started;
};

/// One job, for session::async_run and session::run.
struct job : job_context {
  /// train (fit), validate, test, predict or call.
  stage purpose = stage::train;
  /// What is wrong with them is the failure of the outcome.
  trainer_options options;
  /// Makes the learners; never null.
  recipe_ptr recipe;
  /// For placement_kind::processes, in programs with several recipes: the text from which
  /// `rank_process_options::recipe` makes this job's recipe, in each rank's process. Empty: the
  /// recipe's identity.
  std::string recipe_text;
  /// What a `remote_function` is called with in ranks' processes; session::spawn sets it.
  value arguments;
};

/// The same job, whose handle the initiating call stores in `into` (job_context::started): with a
/// coroutine at the co_await, so `into` must live until then. A job that is refused stores none.
///
///     troupe::job_handle held;
///     auto outcome = co_await session.async_fit(with_handle(job, held), use_awaitable);
inline job with_handle(job what, job_handle& into) {
  what.started = [&into, also = std::move(what.started)](const job_handle& of) {
    into = of;
    if (also) also(of);
  };
  return what;
}

}  // namespace troupe
