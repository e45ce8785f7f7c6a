#include "troupe/session.hpp"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "actors/checkpointer.hpp"
#include "actors/job_check.hpp"
#include "actors/job_follower.hpp"
#include "actors/remote_rank.hpp"
#include "actors/supervisor.hpp"
#include "backends/entropy.hpp"
#include "backends/launcher.hpp"

namespace troupe {

namespace asio = boost::asio;

// Knows the supervisor from the job's start to its completion, and how the job stands for as long
// as a handle does. The supervisor is only reached while it lives, so a handle that outlives the
// session keeps no actor.
struct job_handle::target {
  target(std::uint64_t number, const std::shared_ptr<job_follower>& by)
      : id(number), follower(by) {}

  void connect(supervisor_actor to) {
    const std::lock_guard lock(guard);
    supervisor = std::move(to);
  }
  void disconnect() {
    const std::lock_guard lock(guard);
    supervisor = nullptr;
  }
  void send(caller_request what) {
    const std::lock_guard lock(guard);
    if (supervisor) caf::anon_send(supervisor, std::move(what));
  }

  const std::uint64_t id;
  const std::shared_ptr<job_follower> follower;
  std::mutex guard;
  supervisor_actor supervisor;
};

std::uint64_t job_handle::id() const { return of_ ? of_->id : 0; }

job_status job_handle::status() const {
  if (of_) return of_->follower->status();
  job_status none;
  none.state = job_state::ended;
  return none;
}

void job_handle::follow(const std::shared_ptr<event_stream>& stream) const {
  if (!stream)
    throw user_error(errc::bad_usage, "job_handle::follow: the stream is null: make one first");
  if (stream->wants_hooks())
    throw user_error(errc::bad_usage,
                     "an event stream with hooks cannot follow a job that runs: give it to the job "
                     "as job_context::events");
  auto into = stream->attach();
  of_ ? of_->follower->add(stream, into()) : stream->end();
}

void job_handle::stop(stop_reason why) const {
  if (why != stop_reason::caller && why != stop_reason::interrupt && why != stop_reason::terminate)
    throw user_error(errc::bad_usage,
                     fmt::format("job_handle::stop: {} is no reason of a caller: give caller, "
                                 "interrupt or terminate",
                                 to_string(why)));
  if (!of_) return;
  of_->follower->stop_asked();
  of_->send({request_stop{why}});
}

void job_handle::abort(const std::string& why) const {
  if (!of_) return;
  of_->follower->stop_asked();
  of_->send({request_abort{why}});
}

void job_handle::scale(std::int32_t ranks) const {
  if (ranks < 1)
    throw user_error(errc::bad_usage,
                     fmt::format("a job cannot go on with {} ranks: name at least 1", ranks));
  if (of_) of_->send({request_scale{ranks}});
}

// The actor system and what its jobs share. Outlives the session while jobs are ending. No actor
// refers to it: the thread of an actor cannot destroy the system that waits for this thread.
struct session::engine {
  using target_ptr = std::shared_ptr<job_handle::target>;

  // The jobs that have not completed.
  struct running_jobs {
    std::mutex guard;
    std::map<std::uint64_t, target_ptr> all;
    std::set<std::string> folders;  // into which they write checkpoints
    std::uint64_t newest = 0;
    std::uint64_t draw() {
      const std::lock_guard lock(guard);
      return ++newest;
    }
    bool survivors = false;  // some job has left a rank or an observer behind
  };

  // While it exists, no other job of the session may write checkpoints into the job's folder; nor a
  // job of another one, where the storage knows of it. The job has one until it completes, and its
  // checkpointer until it ends.
  class folder_claim {
  public:
    folder_claim(std::shared_ptr<running_jobs> jobs, const job& what,
                 std::shared_ptr<storage> files)
        : folder_claim(std::move(jobs), what) {
      files_ = std::move(files);
      claim_in_storage(false);
    }
    // The job is about to start.
    void create_folder() { claim_in_storage(true); }
    ~folder_claim();
    folder_claim(const folder_claim&) = delete;
    folder_claim& operator=(const folder_claim&) = delete;

  private:
    folder_claim(std::shared_ptr<running_jobs> jobs, const job& what);
    void claim_in_storage(bool create);

    const std::shared_ptr<running_jobs> of_;
    const std::string path_;
    std::string folder_;  // in running_jobs::folders
    std::shared_ptr<storage> files_;
    std::shared_ptr<const void> in_storage_;  // null: not there yet, or the storage cannot do it
  };

  engine(executor_type ex, ports w, session_options options)
      : executor(std::move(ex)), world(std::move(w)), config(options.threads), system(config) {}

  job_handle launch(job what, std::function<void(job_outcome)> complete);

  executor_type executor;
  ports world;
  seam::system_config config;
  caf::actor_system system;
  std::shared_ptr<running_jobs> running = std::make_shared<running_jobs>();
};

namespace {

job_outcome refused(std::exception_ptr why) {
  job_outcome outcome;
  outcome.failed_with = std::make_shared<const caught>(caught{describe(why), why});
  return outcome;
}

job_handle hand_over(job_handle handle, const std::function<void(job_handle)>& started) {
  try {
    if (started) started(handle);
  } catch (...) {
    handle.abort("job_context::started threw: " + describe(std::current_exception()).what);
  }
  return handle;
}

// How a rank's process knows what to do: by the text of the job's recipe. Refuses a call that
// cannot be made there.
void identify(job& what) {
  if (what.recipe && what.recipe_text.empty()) what.recipe_text = what.recipe->identity();
  if (what.purpose != stage::call) return;
  if (what.recipe_text.empty())
    throw user_error(errc::bad_configuration,
                     "spawn: with placement \"processes\" the function needs a name that a rank's "
                     "process knows: make it a troupe::remote_function, and put it into "
                     "rank_process_options::functions");
  require_sendable(what.arguments, what.recipe ? what.recipe->tensors() : nullptr,
                   fmt::format("an argument of {}", what.recipe_text));
}

}  // namespace

void fail_by_result(job_outcome& ended, const std::string& function) {
  try {
    std::throw_with_nested(user_error(
        errc::bad_usage,
        fmt::format("the result of \"{}\" does not fit the type that its caller expects: give the "
                    "remote_function the same types in the caller and in the ranks",
                    function)));
  } catch (...) {
    ended.status = job_outcome::ending::failed;
    ended.failed_with = refused(std::current_exception()).failed_with;
  }
}

session::session(executor_type executor, ports world, session_options options)
    : engine_([&] {
        if (options.threads == 0)
          throw user_error(errc::bad_usage,
                           "session_options::threads is 0: no job could run; give at least 1");
        const seam::thread_reference_release release;
        return std::make_shared<engine>(std::move(executor), std::move(world), options);
      }()) {}

session::session(session&&) noexcept = default;
session& session::operator=(session&& other) noexcept {
  if (this == &other) return *this;
  const session ended{std::move(*this)};
  engine_ = std::move(other.engine_);
  return *this;
}

session::executor_type session::get_executor() const { return engine_->executor; }

std::vector<job_handle> session::jobs() const {
  std::vector<job_handle> all;
  const std::lock_guard lock(engine_->running->guard);
  for (const auto& [number, target] : engine_->running->all) all.push_back(job_handle{target});
  return all;
}

std::size_t session::actors_running() const { return engine_->system.registry().running(); }

// One job in flight: its handler, the work it keeps outstanding, its handle.
class session_job : public std::enable_shared_from_this<session_job> {
public:
  using handler_type = asio::any_completion_handler<session::signature>;

  session_job(handler_type handler, session::executor_type executor)
      : executor_(asio::prefer(asio::get_associated_executor(handler, executor),
                               asio::execution::outstanding_work.tracked)),
        session_work_(asio::prefer(executor, asio::execution::outstanding_work.tracked)),
        handler_(std::move(handler)) {}

  // The first emission stops at a step boundary, the second ends at once.
  void listen() {
    auto slot = asio::get_associated_cancellation_slot(handler_);
    if (!slot.is_connected()) return;
    slot.assign([weak = weak_from_this()](asio::cancellation_type type) {
      const auto self = weak.lock();
      if (!self || type == asio::cancellation_type::none) return;
      const std::lock_guard lock(self->guard_);
      self->cancel();
    });
  }

  void connect(job_handle handle) {
    const std::lock_guard lock(guard_);
    handle_ = std::move(handle);
    if (cancelled_ > 0) pass_on();  // while the job was launched
  }

  // On any thread. Through the session's executor first, so that the handler runs neither inside
  // the initiating call nor on a thread of the actor system; then on its own executor, after this
  // job's memory is released.
  void complete(job_outcome outcome) {
    auto shared = shared_from_this();
    const auto hop = session_work_;
    asio::post(hop, [shared, outcome = std::move(outcome)]() mutable {
      auto handler = std::move(shared->handler_);
      const auto work = std::move(shared->session_work_);
      const auto executor = std::move(shared->executor_);
      shared.reset();
      executor.execute([handler = std::move(handler), outcome = std::move(outcome)]() mutable {
        // Here, because slots are not thread-safe: their signal is emitted on this executor.
        asio::get_associated_cancellation_slot(handler).clear();
        std::move(handler)(std::move(outcome));
      });
    });
  }

private:
  void cancel() {
    ++cancelled_;
    pass_on();
  }
  void pass_on() const {
    if (cancelled_ > 1)
      handle_.abort("cancelled twice");
    else
      handle_.stop();
  }

  std::mutex guard_;
  asio::any_completion_executor executor_;  // the handler's, with outstanding work
  asio::any_io_executor session_work_;
  handler_type handler_;
  job_handle handle_;
  int cancelled_ = 0;
};

// Ends the events of a job that does not start.
struct stream_end {
  std::shared_ptr<event_stream> of;
  ~stream_end() {
    if (of) of->end();
  }
};

// The same for all paths of a folder: relative and absolute ones, and through links.
static std::string one_name_of(const std::string& folder) {
  std::error_code unknown;
  const auto absolute = std::filesystem::absolute(folder, unknown) / "";
  const auto without_links = std::filesystem::weakly_canonical(absolute, unknown);
  const auto& name = unknown ? absolute : without_links;
  return (name / "").lexically_normal().string();
}

session::engine::folder_claim::folder_claim(std::shared_ptr<running_jobs> jobs, const job& what)
    : of_(std::move(jobs)),
      path_((std::filesystem::path{what.run_folder} / checkpoints_folder).string()) {
  if (!writes_checkpoints(what)) return;
  const auto folder = one_name_of(what.run_folder);
  const std::lock_guard lock(of_->guard);
  if (!of_->folders.insert(folder).second)
    throw user_error(
        errc::bad_configuration,
        fmt::format("run_folder {}: another job of this session writes its checkpoints "
                    "there; choose another folder, or wait until that job has ended",
                    what.run_folder));
  folder_ = folder;
}

void session::engine::folder_claim::claim_in_storage(bool create) {
  if (!folder_.empty() && files_ && !in_storage_) in_storage_ = files_->claim(path_, create);
}

session::engine::folder_claim::~folder_claim() {
  in_storage_ = nullptr;
  const std::lock_guard lock(of_->guard);
  if (!folder_.empty()) of_->folders.erase(folder_);
}

// Brings a job to life; `complete` is called exactly once, at the latest by the exception this
// throws.
job_handle session::engine::launch(job what, std::function<void(job_outcome)> complete) {
  const auto number = running->draw();
  const auto events = what.events;
  // Throws where another job has the stream, whose events go on.
  const auto into_events = events ? events->attach() : observer_factory{};
  stream_end unless_started{events};
  if (started_as_rank())
    throw user_error(errc::bad_configuration,
                     "this process was started as a rank of a job, and such a process starts no "
                     "job: make troupe::run_rank_if_child the first line of main, and start no job "
                     "in a rank");
  check_ports(world);
  const seam::thread_reference_release release;
  supervisor_setup setup;
  setup.id = job_id{world.random->draw()};
  const auto started = what.started;
  configure(what);
  auto claim = std::make_shared<folder_claim>(running, what, world.files);
  setup.what = with_checkpoint_found(std::move(what), world);
  setup.resumed = loop_resumed_at(setup.what, world);
  const auto target = std::make_shared<job_handle::target>(
      number, std::make_shared<job_follower>(number, setup.what, setup.resumed.steps, world.now));
  setup.what.observers.push_back(job_follower::observe(target->follower));
  if (events) setup.what.observers.push_back(into_events);
  setup.world = world;
  const auto ranks = setup.what.options.ranks;
  settle_options(setup.what, world);
  if (setup.what.options.placement == placement_kind::processes) {
    identify(setup.what);
    setup.process_count = ranks;
    setup.processes = std::make_shared<job_processes>(world, setup.id, setup.what);
    setup.bring_rank = remote_ranks(setup.processes);
  }
  claim->create_folder();
  if (auto format = checkpoint_format(setup.what, world); format && world.files)
    setup.spawn_checkpointer = checkpointers(std::move(format), claim);
  setup.complete = [complete = std::move(complete), events, target, claim = std::move(claim),
                    jobs = running](job_outcome outcome) mutable {
    claim = nullptr;
    if (events) events->end();
    target->disconnect();
    target->follower->end(outcome);
    {
      const std::lock_guard lock(jobs->guard);
      jobs->all.erase(target->id);
      jobs->survivors |= !outcome.survivors.empty();
    }
    complete(std::move(outcome));
  };
  const auto supervisor = spawn_supervisor(system, std::move(setup));
  unless_started.of = nullptr;
  target->connect(supervisor);
  {
    // The job begins before a thread that finds it in jobs() can stop it.
    const std::lock_guard lock(running->guard);
    running->all[target->id] = target;
    caf::anon_send(supervisor, begin_job{});
  }
  return hand_over(job_handle{target}, started);
}

void session::start(job what, handler_type handler) {
  auto running = std::make_shared<session_job>(std::move(handler), engine_->executor);
  running->listen();
  try {
    running->connect(engine_->launch(
        std::move(what), [running](job_outcome o) { running->complete(std::move(o)); }));
  } catch (...) {
    running->complete(refused(std::current_exception()));
  }
}

trainer_options session::on_threads(std::int32_t ranks) {
  trainer_options how;
  how.ranks = ranks;
  return how;
}

job_outcome session::run(job what) {
  auto done = std::make_shared<std::promise<job_outcome>>();
  auto answer = done->get_future();
  try {
    engine_->launch(std::move(what), [done](job_outcome o) { done->set_value(std::move(o)); });
  } catch (...) {
    return refused(std::current_exception());
  }
  return answer.get();
}

// Jobs that still run are asked to end. What is left of them, and of jobs with survivors, ends on a
// thread of its own, because the actor system waits for its actors and this destructor does not.
session::~session() {
  if (!engine_) return;
  const seam::thread_reference_release release;
  bool busy = false;
  {
    const std::lock_guard lock(engine_->running->guard);
    busy = engine_->running->survivors;
    for (const auto& [number, target] : engine_->running->all) {
      target->send({request_abort{"the session was destroyed", failure_kind::session_closed}});
      busy = true;
    }
  }
  if (busy) std::thread([last = std::move(engine_)]() mutable { last.reset(); }).detach();
}

}  // namespace troupe
