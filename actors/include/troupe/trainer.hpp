// The front door for programs: a job, how it stands, and the trainer, which runs one and waits for
// it. `session` is the same without waiting.
#pragma once

#include "troupe/call.hpp"
#include "troupe/learner.hpp"
#include "troupe/observer.hpp"
#include "troupe/outcome.hpp"
#include "troupe/ports.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

// How a job stands: one structure for handles, the control socket, `troupe status`, metrics and
// services. Plain values.

/// What a job does now. The list is complete; to_string gives the names.
enum class job_state : std::uint8_t {
  starting,  ///< no generation has begun to form
  forming,   ///< the ranks of a generation start
  active,    ///< ranks train or evaluate
  stopping,  ///< as active; a stop was asked for
  closing,   ///< the ranks leave a generation: after a failure, or for a change
  ending,    ///< the ranks are taken down
  ended,     ///< the job has completed
};
/// The enumerator's name.
std::string_view to_string(job_state state);

/// How a job stands at one moment. What is not known yet is `undefined` or empty.
struct job_status {
  std::uint64_t id = 0;  ///< job_handle::id
  /// What the job is for, as job::purpose.
  stage purpose = stage::train;
  /// What it does now.
  job_state state = job_state::starting;
  std::optional<job_outcome::ending> ended;  ///< how; set when the state is `ended`
  std::uint64_t generation = 0;              ///< the newest; 0: none yet
  std::int32_t ranks = 0;                    ///< processes with shards; threads of the process
  /// Shards of the job; 0: not known yet.
  std::int32_t shards = 0;
  /// Optimizer steps of a fit that are done. Of a fit that resumes: at first where it begins.
  std::int64_t step = 0;
  std::int64_t epoch = undefined;  ///< from 0
  std::int64_t epochs = 0;         ///< the limit of a fit
  /// The batch of the loader that is read now, from 0, and how many the loader has.
  /// @{
  std::int64_t batch = undefined, batches = undefined;
  /// @}
  std::int64_t samples = undefined;  ///< of training, consumed by all ranks
  /// The rate of all ranks in training, over the last one to four seconds of this generation. It
  /// falls during a validation.
  std::optional<double> samples_per_second;
  /// Until a fit reaches its limits, at the average speed of this generation, validation included.
  /// Known after two seconds of a generation. A stop or a decider may end the fit earlier.
  std::optional<double> seconds_left;
  std::int32_t restarts = 0;                 ///< generations that replaced a failed one
  std::int32_t restarts_left = 0;            ///< when the newest generation began
  std::uint64_t failures = 0;                ///< reported so far, those that followed included
  std::vector<failure> newest_failures;      ///< at most 16, the oldest first
  std::uint64_t checkpoints = 0;             ///< written by this job
  std::int64_t checkpoint_step = undefined;  ///< of the newest one
  metrics last;                              ///< last value of each metric, at most 512 names
};

/// One JSON object. docs/running.md has its fields: those above, `purpose` as `stage`, `last` as
/// `metrics`, null for what is not known. Text becomes valid UTF-8.
std::string to_json(const job_status& status);

// Holds a running job: its status and its events; stop, abort, scale.

class event_stream;

/// A job that a program holds. It comes from `with_handle` (troupe/trainer.hpp), from
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
  /// (bad_usage), and leaves the stream as it is: it is null, has a job, or wants hooks, which are
  /// for job_context::events.
  void follow(const std::shared_ptr<event_stream>& stream) const;

  /// Ends the run at a step boundary that all ranks agree on, with a checkpoint (status `stopped`).
  /// The first reason counts: another call changes nothing. Throws user_error (bad_usage) for other
  /// reasons than caller, interrupt and terminate: those are of the run itself.
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

class event_stream;

/// What is around a job: its files, its first weights, and the observers that follow it. A session
/// gets it with each job, a trainer once for all of its jobs.
struct job_context {
  /// Checkpoints go to `<run_folder>/checkpoints`, relative to the root of `ports::files`
  /// (local_ports: the folder of the process when it was called). They are looked up and read in
  /// the present folder, so a program that changes it (chdir) gives absolute paths, here and in
  /// `resume`. Empty: no files. A fit that does not resume is refused where there is a good
  /// checkpoint already, and any fit where another job of the session writes.
  std::string run_folder;
  /// The checkpoint to resume (fit), or to take the weights from (validate, test, predict):
  /// - a checkpoint's folder;
  /// - a run's folder: the newest good checkpoint of that run;
  /// - `latest`: the newest good checkpoint of `run_folder`.
  /// The last two are looked up in the initiating call, which reads the checkpoint. Unset: none. An
  /// empty path is refused: it is what an outcome without a checkpoint has.
  std::optional<std::string> resume;
  /// Weights to start with, before the first broadcast; null: the module's own. In those of a fit
  /// (job_outcome::weights) is what the module's on_save_checkpoint returned; on_load_checkpoint
  /// gets it.
  snapshot_ptr initial;
  /// Each makes one observer when the job starts (troupe/observer.hpp).
  std::vector<observer_factory> observers;
  /// The same events as a stream (troupe/session.hpp); null: none. A stream follows one job.
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

// Ranks as processes: the line that begins main in a program that runs jobs with
// placement_kind::processes.
//
// A rank's process runs this program again, from main on: neither a module nor a data set of the
// process that starts it can be handed over. So main says, before anything else, how a rank's
// recipe is made. That line cannot be found out for the program, because main may do anything
// before it reaches its trainer; but a program without it is refused, and so is a process that
// makes another recipe than the job's.

/// What a rank's process brings along: the way to its recipe, the program's own ports, and the
/// functions that it can call. `recipe` and `world` are called once, after the arguments are known
/// to be a rank's; in a process that a launcher has placed, once for each job.
struct rank_process_options {
  rank_process_options() = default;
  /// `make()` makes the program's recipe. Programs with several take `make(job::recipe_text)`.
  template <class Make>
  requires std::is_invocable_r_v<recipe_ptr, const Make&> ||
      std::is_invocable_r_v<recipe_ptr, const Make&, const std::string&>
      rank_process_options(Make make, std::function<ports()> own_ports = local_ports)
      : world(std::move(own_ports)) {
    if constexpr (std::is_invocable_v<const Make&, const std::string&>)
      recipe = std::move(make);
    else
      recipe = the_only_recipe(std::move(make));
  }

  /// Makes the recipe of a rank from job::recipe_text. Empty: only `functions` can be called.
  std::function<recipe_ptr(const std::string& recipe_text)> recipe;
  /// Makes the ports of the rank's process.
  std::function<ports()> world = local_ports;
  /// What session::spawn calls in a rank's process. Each name is there once, else
  /// run_rank_if_child throws user_error (bad_usage).
  std::vector<named_function> functions;

private:
  static std::function<recipe_ptr(const std::string&)> the_only_recipe(
      std::function<recipe_ptr()> make);
};

/// To be the first line of main in a program that runs jobs with placement_kind::processes, where
/// `make_recipe()` makes the recipe of its trainer or session:
///
///     if (const auto code = troupe::run_rank_if_child(argc, argv, make_recipe)) return *code;
///
/// - In the program as users start it this process remembers the call, and nothing else happens.
/// - Started as a rank's process it runs that rank in here, and returns when the rank is torn down,
///   with the exit code for main. A process whose starter is gone, or has given it up, ends without
///   returning. It ignores SIGINT and SIGHUP: the process that started it ends it. SIGTERM, blocked
///   in all of its threads, asks the process that started it to let the ranks go on elsewhere.
/// - Without the line every job with placement_kind::processes is refused (bad_configuration), with
///   a text that shows it. A process that was started as a rank starts no job, of whatever
///   placement (bad_configuration as well).
/// - The job fails (bad_configuration) when what is made has another identity than the job's recipe
///   (learner_recipe::identity); where it is made of a recipe_text, both must be known. What an
///   identity does not contain is not compared: there ranks train what `make_recipe()` makes,
///   whatever the job's caller passed (troupe/strategy.hpp).
std::optional<int> run_rank_if_child(int count, const char* const* arguments,
                                     const rank_process_options& home);

/// `troupe::trainer t{{.ranks = 2, .max_epochs = 3}}; auto outcome = t.fit<classifier>(data);`
///
/// - `fit<M>(data, arguments...)` makes each rank's module as `M(arguments...)`. Plug-ins come
///   first: `fit<M>(torch_plugins{...}, data, arguments...)` (troupe/strategy.hpp).
/// - Each call runs a job of its own in a session of its own and waits for it in the calling
///   thread. It returns the outcome or the first failure; it does not throw what a rank throws.
/// - Evaluation starts from the weights of the last fit that did not fail, from `resume`, or from
///   the module's own. It fails after a fit without checkpoint.enabled, which keeps no weights.
///   A `resume` or `initial` that was changed after the last fit counts in place of its weights.
/// - With placement_kind::processes main begins with one line (troupe/trainer.hpp).
///
/// Not thread-safe; several trainers may run at once.
class trainer {
public:
  /// Checks nothing yet: what is wrong with `options` is the failure of each call's outcome.
  explicit trainer(trainer_options options = {}, job_context context = {},
                   ports world = local_ports())
      : options_(std::move(options)), context_(std::move(context)), world_(std::move(world)) {}

  /// One job each, by its purpose, in the calling thread. `from`: plug-ins if any, data, and the
  /// arguments of `Module`.
  /// @{
  template <class Module, class... From>
  job_outcome fit(From... from) {
    return run(stage::train, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome validate(From... from) {
    return run(stage::validate, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome test(From... from) {
    return run(stage::test, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome predict(From... from) {
    return run(stage::predict, recipe_of<Module>(std::move(from)...));
  }
  /// @}
  /// The same of a recipe, for learners without LibTorch and for modules made elsewhere.
  job_outcome run(stage purpose, recipe_ptr recipe);

  /// What the next calls get. Each call takes `events` away, because a stream follows one job.
  job_context& context() { return context_; }

private:
  template <class Module, class... From>
  static recipe_ptr recipe_of(From... from) {
    constexpr bool known = requires { recipe_from(std::type_identity<Module>{}, from...); };
    static_assert(known,
                  "Module must be a troupe::module that can be made from these arguments, the data "
                  "first: include <troupe/module.hpp> (or <troupe/troupe.hpp>)");
    if constexpr (known) return recipe_from(std::type_identity<Module>{}, std::move(from)...);
  }

  trainer_options options_;
  job_context context_;
  ports world_;
  /// `resume` and `initial` of the last fit.
  std::pair<std::optional<std::string>, snapshot_ptr> begun_with_;
  snapshot_ptr trained_;
  bool untrained_ = false;  // the last fit left no weights
};

}  // namespace troupe
