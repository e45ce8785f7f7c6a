// Runs jobs for programs that own an event loop, several at a time. A session installs no signal
// handler, never exits the process and prints nothing. Its asynchronous calls wait for no job.
#pragma once

#include "troupe/detail/call_outcome.hpp"
#include "troupe/observer.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace troupe {

// A job's events for a program with an event loop: what observers receive, one asynchronous wait at
// a time.

/// What a stream keeps.
struct event_stream_options {
  bool hooks = false;        ///< every hook of every rank, too
  std::size_t limit = 4096;  ///< events kept for a slow reader
};

/// The events of one job, which has the stream in `job_context::events`. Events are kept, in order,
/// from the job's start on. A slow reader never delays the job: at the limit the oldest progress is
/// dropped first, then the oldest hook. Thread-safe.
///
///   while (const auto event = co_await events->async_next(use_awaitable)) ...
class event_stream {
public:
  /// The completion signature of async_next.
  using signature = void(observation_ptr);

  /// `executor`: where completion handlers run unless they have an executor of their own.
  explicit event_stream(boost::asio::any_io_executor executor, event_stream_options how = {});
  ~event_stream();
  event_stream(const event_stream&) = delete;
  event_stream& operator=(const event_stream&) = delete;

  /// The next event.
  /// 1. Completion signature: `void(troupe::observation_ptr)`, on the handler's associated executor
  ///    (the stream's by default), never inside the initiating call. Null after the last event,
  ///    and when the wait was cancelled; `ended` says which. The last event arrives before the job
  ///    completes.
  /// 2. Several waits are served in the order in which they began.
  /// 3. Cancellation: the associated slot, any type. No event is lost by it.
  template <boost::asio::completion_token_for<signature> Token>
  auto async_next(Token&& token) {
    return boost::asio::async_initiate<Token, signature>(
        [this](auto handler) { wait(std::move(handler)); }, token);
  }

  /// event_stream_options::hooks.
  bool wants_hooks() const;
  /// The job is over and every event was read.
  bool ended() const;
  /// Events that were dropped because the reader was slow. Once the job is over, those too that
  /// were dropped before they reached the stream; with job_handle::follow, since the job began.
  std::uint64_t dropped() const;

  /// For the session: an observer that fills the stream. Throws user_error when another job has the
  /// stream.
  observer_factory attach();
  /// For the session: no event follows. Idempotent.
  void end();

private:
  void wait(boost::asio::any_completion_handler<signature> handler);

  struct channel;
  std::shared_ptr<channel> channel_;
};

/// What a session is made with, beside its ports.
struct session_options {
  /// Threads of the actors; they sleep when idle. Two, so that the supervisor can run while another
  /// actor runs. At least 1, else the session's constructor throws user_error (bad_usage).
  std::size_t threads = 2;
};

/// Thread-safe. Movable. Destruction while jobs run asks them to end and returns at once. Their
/// completions still arrive through their executors, as failures of the kind session_closed. It
/// does not wait for survivors of a job (job_outcome::survivors), which may run on.
/// - The contexts of the executors must exist until all completions have arrived, and run until
///   then. Jobs keep work outstanding on them: io_context::run does not return before, and
///   thread_pool::join waits for it.
/// - What a destroyed session had, its ports included, ends on a thread of its own after that. To
///   wait for it, let the jobs complete first (job_handle::abort of `jobs()`), and then destroy the
///   session: without jobs and survivors the destructor returns when all of it has ended.
class session {
public:
  /// Where completion handlers run unless they have an executor of their own.
  using executor_type = boost::asio::any_io_executor;
  /// The completion signature of async_run.
  using signature = void(job_outcome);

  /// Starts no job. `world`: what its jobs may reach outside.
  explicit session(executor_type executor, ports world = local_ports(),
                   session_options options = {});
  ~session();
  /// Its jobs go on. A session that was moved from can only be destroyed or assigned to. Jobs of a
  /// session that is assigned to end as if it were destroyed.
  /// @{
  session(session&&) noexcept;
  session& operator=(session&&) noexcept;
  /// @}

  /// What the session was made with.
  executor_type get_executor() const;

  /// Runs a job.
  /// 1. What it does: checks the options (a `user_error` is the outcome's failure), starts the
  ///    ranks, forms generation 1, runs the job's hooks, takes everything down in order, then
  ///    completes. The checks are made in the initiating call. They read small files only, except
  ///    where the newest checkpoint of a run is looked up (job_context::resume, run_folder): they
  ///    read and verify that one. Call it on a thread that may wait, or name the checkpoint itself.
  /// 2. Completion signature: `void(troupe::job_outcome)`. The handler runs on its associated
  ///    executor (by default the session's), never inside the initiating call. A failure is a
  ///    value: the operation throws no exception and reports no error code.
  /// 3. Cancellation: through the associated slot, with any type of cancellation.
  ///    - The first emission ends the run at a step boundary that all ranks agree on, with a
  ///      checkpoint (status `stopped`).
  ///    - The second emission ends the run at once (status `failed`).
  /// 4. Keeps outstanding work on both executors until it completes.
  /// 5. To hold the job meanwhile, pass `with_handle(job, handle)` (troupe/trainer.hpp).
  template <boost::asio::completion_token_for<signature> Token>
  auto async_run(job what, Token&& token) {
    return boost::asio::async_initiate<Token, signature>(
        [this](auto handler, job what) { start(std::move(what), std::move(handler)); }, token,
        std::move(what));
  }
  /// The same, by purpose: sets job::purpose.
  /// @{
  template <boost::asio::completion_token_for<signature> Token>
  auto async_fit(job what, Token&& token) {
    what.purpose = stage::train;
    return async_run(std::move(what), std::forward<Token>(token));
  }
  template <boost::asio::completion_token_for<signature> Token>
  auto async_validate(job what, Token&& token) {
    what.purpose = stage::validate;
    return async_run(std::move(what), std::forward<Token>(token));
  }
  template <boost::asio::completion_token_for<signature> Token>
  auto async_test(job what, Token&& token) {
    what.purpose = stage::test;
    return async_run(std::move(what), std::forward<Token>(token));
  }
  template <boost::asio::completion_token_for<signature> Token>
  auto async_predict(job what, Token&& token) {
    what.purpose = stage::predict;
    return async_run(std::move(what), std::forward<Token>(token));
  }
  /// @}

  /// The jobs that have not completed, in the order in which they began. Thread-safe; the list may
  /// be out of date when it is returned, which handles allow.
  std::vector<job_handle> jobs() const;

  /// Runs a job and waits for it in the calling thread, whatever the session's executor does. Never
  /// call it on a thread that the job needs: in an observer or a hook it waits for ever.
  job_outcome run(job what);

  /// Calls `what(who, arguments...)` on each of `ranks` ranks, in its lane, and waits as `run`
  /// does.
  /// - `who` is the rank: as `rank_context&` (rank, world, collectives) or as a number. Every rank
  ///   gets copies of the arguments. Copies on threads share what their type shares: the memory of
  ///   a torch::Tensor, which a rank clones before it changes it.
  /// - Rank 0's result is returned with its own type (`returned`, `get()`), and what it queued as
  ///   `queue`.
  /// - What a rank throws is the outcome's failure; get() throws it again with its own type
  ///   (job_outcome::rethrow says where ranks are processes).
  /// - `how` says placement, communicator and limits. Ranks in other processes call a
  ///   `remote_function` (troupe/call.hpp); any other function is refused there.
  template <class Function, class... Arguments>
  auto spawn(trainer_options how, Function what, Arguments... arguments) {
    auto call = spawned_call_of(std::move(how), std::move(what), std::move(arguments)...);
    return with_result(run(std::move(call.what)), *call.kept);
  }
  /// The same on threads.
  template <class Function, class... Arguments>
  auto spawn(std::int32_t ranks, Function what, Arguments... arguments) {
    return spawn(on_threads(ranks), std::move(what), std::move(arguments)...);
  }
  /// The same without waiting: completes with `call_outcome` as async_run does with `job_outcome`.
  /// With a number of ranks: on threads.
  /// @{
  template <class Token, class Function, class... Arguments>
  auto async_spawn(trainer_options how, Token&& token, Function what, Arguments... arguments) {
    auto call = spawned_call_of(std::move(how), std::move(what), std::move(arguments)...);
    using result = typename decltype(call)::result;
    return boost::asio::async_initiate<Token, void(call_outcome<result>)>(
        [this](auto handler, spawned_call<result> call) {
          start(std::move(call.what),
                call_handler<decltype(handler), result>{std::move(handler), std::move(call.kept)});
        },
        token, std::move(call));
  }
  template <class Token, class Function, class... Arguments>
  auto async_spawn(std::int32_t ranks, Token&& token, Function what, Arguments... arguments) {
    return async_spawn(on_threads(ranks), std::forward<Token>(token), std::move(what),
                       std::move(arguments)...);
  }
  /// @}

  /// Actors of this session that are alive: 0 when no job runs and no job left a survivor. For
  /// tests.
  std::size_t actors_running() const;

private:
  using handler_type = boost::asio::any_completion_handler<signature>;
  void start(job what, handler_type handler);
  static trainer_options on_threads(std::int32_t ranks);

  struct engine;
  std::shared_ptr<engine> engine_;
};

}  // namespace troupe
