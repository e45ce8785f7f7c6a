#include "actors/remote_rank.hpp"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <utility>

#include "actors/job_processes.hpp"

namespace troupe {

namespace {

// The proxy checks several times within the forming deadline.
std::chrono::nanoseconds looks_at_start(const deadlines& limits) { return limits.form / 4; }

struct remote_rank_state;
using remote_rank_pointer = remote_rank_actor::stateful_pointer<remote_rank_state>;

struct remote_rank_state {
  static constexpr const char* name = "remote_rank";

  remote_rank_pointer self = nullptr;
  rank_setup setup;
  std::shared_ptr<job_processes> processes;
  std::shared_ptr<job_process> process;  // null once the rank does not need it any more
  fence last;  // of the newest order; identifies this life of the rank in the proxy's own reports
  bool ended = false;
  std::string why_ended;  // of the rank's actor in its process; empty: in order
  /// A rank of its process has sent a message, so orders reach the process without delay. Shared by
  /// the proxies of the process.
  std::shared_ptr<std::atomic<bool>> spoke;
  /// The generation was closed before that message: the process is killed without an order.
  bool unasked = false;
  std::int64_t progress_seen = 0;
  std::chrono::nanoseconds began{0};
  std::uint64_t looks = 0;  ///< number of the newest tick; older ones are void
  bool ends = false;        ///< the newest order is to close or to end
  std::int64_t snapshot_seen = 0;

  // A rank that does not end in order takes its process with it.
  ~remote_rank_state() {
    if (process) process->kill();
  }

  void start();
  void look();
  void look_in(std::chrono::nanoseconds wait);
  void look_at_start();
  void look_at_snapshot();
  rank_spec brief() const;
  process_sink incoming();
  void gone(const process_gone& m);

  template <class Order>
  void pass(const Order& m) {
    last = m.at;
    if (process) process->send(m);
    ends = std::is_same_v<Order, close_generation> || std::is_same_v<Order, tear_down>;
    if (!ends || !process) return;
    snapshot_seen = process->snapshot_bytes();
    if (*spoke) look_in(setup.plan.limits.tick);
  }
  void close(const close_generation& m);
  void tear(const tear_down& m);
  void left(const far_ended& m);
  void quit() { seam::quit(*self, why_ended); }
};

rank_spec remote_rank_state::brief() const {
  const auto& what = *setup.what;
  rank_spec all;
  all.job = setup.plan.job;
  all.rank = setup.plan.rank;
  all.incarnation = setup.plan.incarnation;
  all.purpose = what.purpose;
  all.options = what.options;
  all.resume = what.resume.value_or("");
  all.recipe = what.recipe_text;
  if (what.recipe) all.identity = what.recipe->identity();
  all.meets = processes->meets();
  all.checkpoints = setup.plan.rank == 0 && setup.checkpointer;
  all.watched = !setup.observers.members().empty();
  all.hooks = setup.observers.wants_hooks();
  all.traced = static_cast<bool>(what.trace);
  all.initial = what.initial;
  all.arguments = what.arguments;
  return all;
}

// Runs on the launcher's thread, so it only sends, which is thread-safe. Reports go to the
// supervisor as if the rank had sent them itself. The end of the rank goes through this actor,
// after them.
class listener {
public:
  listener(const rank_setup& setup, remote_rank_actor self,
           std::shared_ptr<std::atomic<bool>> spoke, const std::shared_ptr<job_process>& process,
           std::shared_ptr<trace_queue> trace)
      : supervisor_(setup.supervisor),
        checkpointer_(setup.checkpointer),
        observers_(setup.observers),
        what_(setup.what),
        now_(setup.world.now),
        began_(setup.world.now()),
        self_(std::move(self)),
        spoke_(std::move(spoke)),
        process_(process),
        trace_(std::move(trace)) {}

  void operator()(link_message&& message) {
    *spoke_ = true;
    std::visit([this](auto& m) { receive(m); }, message);
  }

private:
  template <class Report>
  void receive(Report& m) {
    caf::anon_send(supervisor_, std::move(m));
  }
  void receive(prepared& m) {
    there_ = now_();
    caf::anon_send(supervisor_, m);
  }
  // The rank measures from its own start; its process started earlier.
  void receive(rank_finished& m) {
    if (m.figures.seconds_to_first_step > 0)
      m.figures.seconds_to_first_step += std::chrono::duration<double>(there_ - began_).count();
    caf::anon_send(supervisor_, std::move(m));
  }
  void receive(write_checkpoint& m) {
    if (checkpointer_) caf::anon_send(checkpointer_, std::move(m));
  }
  void receive(observed& m) { observers_.notify(std::move(m.what)); }
  void receive(dropped_observations& m) { observers_.add_dropped(m); }
  void receive(hook_entered& m) {
    if (!what_->trace) return;
    trace_->add([what = what_, process = process_, m = std::move(m)] {
      hooks_traced done{1, {}};
      try {
        what->trace(m.rank, m.what);
      } catch (...) {
        const auto why = describe(std::current_exception());
        done.why = fmt::format("the job's trace threw {}: {}", why.type, why.what);
      }
      if (const auto held = process.lock()) held->send(std::move(done));
    });
  }
  // After all of its hooks are in the trace.
  void receive(rank_ended& m) {
    trace_->add([self = self_, m = std::move(m)] { caf::anon_send(self, far_ended{m.why}); });
  }
  // A rank sends no orders, and what its process sends for itself does not arrive here.
  void receive(rank_spec&) {}
  void receive(process_ready&) {}
  void receive(process_leaves&) {}
  void receive(warm_up&) {}
  void receive(hooks_traced&) {}
  void receive(form_generation&) {}
  void receive(activate_generation&) {}
  void receive(propose_stop&) {}
  void receive(stop_at&) {}
  void receive(close_generation&) {}
  void receive(tear_down&) {}

  supervisor_actor supervisor_;
  checkpointer_actor checkpointer_;
  observer_list observers_;
  std::shared_ptr<const job> what_;
  std::function<std::chrono::nanoseconds()> now_;
  std::chrono::nanoseconds began_;
  std::chrono::nanoseconds there_{began_};
  remote_rank_actor self_;
  std::shared_ptr<std::atomic<bool>> spoke_;
  std::weak_ptr<job_process> process_;
  std::shared_ptr<trace_queue> trace_;
};

process_sink remote_rank_state::incoming() {
  const auto me = caf::actor_cast<remote_rank_actor>(self);
  process_sink sink;
  sink.received = [receive =
                       std::make_shared<listener>(setup, me, spoke, process, processes->trace())](
                      link_message&& m) { (*receive)(std::move(m)); };
  sink.ended = [me, rank = setup.plan.rank](process_end end) {
    // A process that was killed because it ended too slowly counts as clean.
    caf::anon_send(me, process_gone{end.of_rank(rank), end.clean || end.given_up});
  };
  return sink;
}

void remote_rank_state::start() {
  began = setup.world.now();
  process = processes->at(setup.process);
  process->send(brief());
  process->add(setup.plan.incarnation, incoming());
  look_in(looks_at_start(setup.plan.limits));
}

void remote_rank_state::look() {
  if (!process || unasked) return;
  if (!*spoke) {
    look_at_start();
    look_in(looks_at_start(setup.plan.limits));
  } else if (ends) {
    look_at_snapshot();
    look_in(setup.plan.limits.tick);
  }
}

void remote_rank_state::look_in(std::chrono::nanoseconds wait) {
  seam::send_self_after(self, wait, tick{++looks});
}

// Until the first message, reports to the supervisor that the process makes progress.
void remote_rank_state::look_at_start() {
  if (const auto now = process->progress(); now != std::exchange(progress_seen, now))
    self->send(setup.supervisor,
               rank_busy{last, "its process is starting",
                         setup.world.now() - began >= setup.plan.limits.hook_limit});
}

// The supervisor bounds how long it waits for it.
void remote_rank_state::look_at_snapshot() {
  if (const auto now = process->snapshot_bytes(); now != std::exchange(snapshot_seen, now))
    self->send(setup.supervisor,
               rank_busy{.at = last, .what = "its snapshot is arriving", .arriving = true});
}

// A process that is still starting would answer only seconds later, and has nothing to close. It
// gets the order nevertheless if the job goes on with it. But if the generation did not form in
// time, the supervisor waits for its answer, and replaces it when there is none.
void remote_rank_state::close(const close_generation& m) {
  // A process that a launcher placed gets the order: it cannot be started again, and mpirun would
  // end all others.
  const bool starting = process && !processes->placed() && !*spoke;
  unasked = starting && m.last;
  if (!unasked) pass(m);
  const bool too_late = m.first.kind == failure_kind::deadline && m.first.code == errc::membership;
  if (!starting || (too_late && !m.last)) return;
  last = m.at;
  self->send(setup.supervisor, closed_generation{.at = m.at, .last = m.last});
}

void remote_rank_state::tear(const tear_down& m) {
  if (!unasked) return pass(m);
  last = m.at;
  ended = true;
  self->send(setup.supervisor, torn_down{m.at, {}, {}});
  if (process) process->kill();
}

// The process may go on, with other ranks.
void remote_rank_state::left(const far_ended& m) {
  ended = true;
  why_ended = m.why;
  if (!process || process->remove(setup.plan.incarnation)) return;
  process.reset();
  quit();
}

void remote_rank_state::gone(const process_gone& m) {
  auto what = m.what;
  process.reset();
  const bool in_order = ended && m.clean;
  if (what.kind == failure_kind::start_failed || !in_order) {
    what.generation = last.generation.value();
    auto at = last;  // has no life in it before the first order
    at.job = setup.plan.job;
    at.incarnation = setup.plan.incarnation;
    self->send(setup.supervisor, rank_failed{at, without_exception(std::move(what)), true});
  }
  quit();
}

seam::one_way_handlers<remote_rank_actor> behaviour(remote_rank_pointer self) {
  auto& s = self->state;
  return {
      [&s](const form_generation& m) { s.pass(m); },
      [&s](const activate_generation& m) { s.pass(m); },
      [&s](const propose_stop& m) { s.pass(m); },
      [&s](const stop_at& m) { s.pass(m); },
      [&s](const close_generation& m) { s.close(m); },
      [&s](const tear_down& m) { s.tear(m); },
      [](const lane_answered&) {},
      [](const lane_closed&) {},
      [&s](tick m) {
        if (m.number == s.looks) s.look();
      },
      [&s](const far_ended& m) { s.left(m); },
      [&s](const process_gone& m) { s.gone(m); },
  };
}

}  // namespace

spawn_rank_fn remote_ranks(std::shared_ptr<job_processes> processes) {
  using spoke_in = std::map<std::int32_t, std::shared_ptr<std::atomic<bool>>>;  // by process
  return [processes = std::move(processes), spoke = std::make_shared<spoke_in>()](
             caf::actor_system& system, actor_error_handler trouble,
             rank_setup setup) -> rank_actor {
    auto& here = (*spoke)[setup.process];
    if (!here) here = std::make_shared<std::atomic<bool>>(false);
    auto shared = std::make_shared<rank_setup>(std::move(setup));
    return seam::spawn<remote_rank_actor, remote_rank_state>(
        system, std::move(trouble),
        [=, here = here](remote_rank_pointer self) -> seam::one_way_handlers<remote_rank_actor> {
          auto& s = self->state;
          s.self = self;
          s.spoke = here;
          s.setup = std::move(*shared);
          s.processes = processes;
          self->monitor(s.setup.supervisor);
          seam::on_down(*self, [self](const caf::actor_addr&, std::string) {
            self->quit(caf::exit_reason::user_shutdown);
          });
          s.start();
          return behaviour(self);
        });
  };
}

}  // namespace troupe
