#include "actors/rank.hpp"

#include <fmt/format.h>

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "actors/hook_time.hpp"
#include "backends/announcing_communicator.hpp"
#include "backends/lane.hpp"
#include "backends/solo_communicator.hpp"
#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

struct rank_state;
using rank_pointer = rank_actor::stateful_pointer<rank_state>;

struct rank_state {
  static constexpr const char* name = "rank";

  // CAF destroys the state when the actor ends, for whatever reason.
  ~rank_state() {
    if (world) world->abort("the rank's actor has ended");
  }

  rank_pointer self = nullptr;
  rank_setup setup;
  std::unique_ptr<rank_machine> machine;
  std::shared_ptr<communicator> world;
  std::shared_ptr<communicator> lane_world;  // the same, as the lane has it
  std::unique_ptr<lane> work;
  snapshot_ptr last_snapshot;
  std::map<failure_id, std::exception_ptr> thrown;  // of this incarnation's failures
  value result;
  bool hooks_wanted = false;
  bool opened = false;             // it has had a learner
  std::int64_t furthest_step = 0;  // that it has done with any learner
  failed_hooks failed_in;          // with any learner
  std::vector<queue_value> queued;
  std::vector<hook> in_flight;           // only when an observer wants hooks
  std::vector<ranks::action> after_run;  // empty between answers; kept for its memory

  // Figures of the run (contract: training only, after warm-up).
  run_figures figures;
  std::chrono::nanoseconds began{0};
  std::chrono::nanoseconds last_train_end{0};
  bool last_was_train = false;
  std::optional<std::chrono::nanoseconds> restoring_since;
  std::optional<hook_time> in_hook;

  // The newest rows of this generation, in a job that can restart. A link holds at most 8,192
  // messages, and each row goes with at least one. So what rank 0 has sent and the supervisor's
  // process has not read is not older than these.
  static constexpr std::size_t rows_max = 8192;
  std::deque<seen::metrics> rows;
  std::int64_t committed = 0;  // as close_generation said

  void start();
  void open_lane();
  void feed(const ranks::event& what) {
    auto todo = machine->on(what);
    carry_out(todo);
  }
  void carry_out(std::vector<ranks::action>& all);
  void answered(ran& what);
  void send_queued(bool passed_point, std::int64_t step);
  failure_id keep(std::exception_ptr error);
  void look();
  void measure(const ran& what);
  void show_handled(const ran& what);
  std::shared_ptr<communicator> announced(std::shared_ptr<communicator> to) const;
  void keep(const fence& at, snapshot_ptr taken);

  void carry_out(ranks::open a);
  void carry_out(const ranks::bind&) { work->bind(lane_world, machine->mine().generation); }
  void carry_out(const ranks::open_lane&) { open_lane(); }
  void carry_out(ranks::submit a);
  void carry_out(const ranks::abort_communicator& a);
  void carry_out(const ranks::attend& a);
  void carry_out(const ranks::close_lane& a);
  void carry_out(ranks::report a) {
    std::visit([this](auto& m) { report(std::move(m)); }, a);
  }
  void carry_out(const ranks::show& a) { setup.observers.notify(a.what); }
  void carry_out(ranks::row a);
  void carry_out(const ranks::end&) {
    lane_world.reset();
    world.reset();  // not aborted: an abort would overtake the result of the last barrier
    self->quit();
  }

  template <class Message>
  void send_up(Message message) {
    self->send(setup.supervisor, std::move(message));
  }
  // Sends a report of the machine, and adds what only the actor has.
  template <class Message>
  void report(Message m) {
    say(m);
  }
  void report(prepared m);
  void report(rank_finished m);
  void report(rank_failed m);
  void report(rank_busy m) { send_up(std::move(m)); }
  void report(closed_generation m);
  void report(torn_down m);
  // The supervisor must accept these twice, because a rank repeats them when it is asked again.
  template <class Message>
  void say(const Message& message) {
    send_up(message);
    if (rare(coverage_point::said_twice)) send_up(message);
  }
};

void rank_state::start() {
  began = setup.world.now();
  hooks_wanted = setup.observers.wants_hooks();
  machine = std::make_unique<rank_machine>(setup.plan);
  in_hook.emplace(setup.plan.limits.tick, began);
  open_lane();
}

void rank_state::open_lane() {
  learner_context context{.rank = setup.plan.rank,
                          .world = setup.what->options.ranks,
                          .job = setup.plan.job,
                          .options = setup.what->options,
                          .purpose = setup.what->purpose,
                          .initial = setup.what->initial,
                          .now = setup.world.now,
                          .checkpoints = setup.world.checkpoints,
                          .saves = setup.plan.rank == 0 && setup.checkpointer};
  // Each injected fault happens once. A new rank of a later generation has been given later ones.
  if (std::exchange(opened, true))
    context.options.faults =
        later_drills(std::move(context.options.faults), furthest_step, failed_in);
  lane_sink sink;
  const auto me = caf::actor_cast<rank_actor>(self);
  sink.answered = [me](ran&& what) { caf::anon_send(me, lane_answered{std::move(what)}); };
  if (const auto& trace = setup.what->trace)
    sink.entered = [trace, rank = setup.plan.rank](const hook& h) { trace(rank, h); };
  work = setup.world.lanes->open(context, setup.what->recipe, std::move(sink));
}

void rank_state::carry_out(std::vector<ranks::action>& all) {
  for (auto& a : all) std::visit([&](auto& x) { carry_out(std::move(x)); }, a);
}

// For the lane: observers that ask for hooks learn which collectives it calls.
std::shared_ptr<communicator> rank_state::announced(std::shared_ptr<communicator> to) const {
  if (!setup.observers.wants_hooks()) return to;
  return announcing(std::move(to), setup.world.now,
                    [to = setup.observers](seen::collective what) { to.notify(std::move(what)); });
}

void rank_state::carry_out(ranks::open a) {
  ranks::opened answer;
  queued.clear();
  try {
    world = setup.communicators->open(
        {setup.plan.job, a.generation, setup.plan.rank, a.world, setup.plan.limits.collective});
    if (!world)
      throw user_error(errc::device,
                       fmt::format("the communicator \"{}\" opened none for this rank: "
                                   "communicator_backend::open returned null; return one, or throw "
                                   "the reason",
                                   setup.communicators->name()));
    lane_world = announced(world);
    work->bind(a.alone ? solo_communicator(world->group()) : lane_world, a.generation);
  } catch (...) {
    answer.why_not = describe(std::current_exception());
    answer.why_not->id = keep(std::current_exception());
  }
  feed(answer);
}

void rank_state::carry_out(ranks::submit a) {
  if (hooks_wanted) in_flight = a.run.hooks;
  if (machine->phase() == ranks::phase::restoring) restoring_since = setup.world.now();
  work->submit(std::move(a.run));
}

void rank_state::carry_out(const ranks::abort_communicator& a) {
  if (world) world->abort(a.why);
}

void rank_state::carry_out(const ranks::attend& a) {
  work->set_attention(a.generation_closed ? attention::generation_closed : attention::none);
}

void rank_state::carry_out(const ranks::close_lane&) {
  const auto me = caf::actor_cast<rank_actor>(self);
  work->close([me](value result, caught last) {
    caf::anon_send(me, lane_closed{std::move(result), std::move(last)});
  });
}

void rank_state::report(prepared m) {
  if (const auto since = std::exchange(restoring_since, std::nullopt))
    m.healing_seconds = std::chrono::duration<double>(setup.world.now() - *since).count();
  say(m);
}

void rank_state::report(rank_finished m) {
  if (setup.plan.rank == 0) m.state = last_snapshot;
  m.figures = figures;
  say(m);
}

void rank_state::report(rank_failed m) {
  if (const auto found = thrown.find(m.local->record.id); found != thrown.end())
    m.local = std::make_shared<const caught>(caught{m.local->record, found->second});
  say(m);
}

// A rank in a process of its own sends the row through the link before it reports the step. So the
// supervisor's process has the rows of each committed step.
void rank_state::carry_out(ranks::row a) {
  if (setup.plan.rank == 0) setup.show ? setup.show(a.what) : setup.observers.notify(a.what);
  if (!setup.plan.fit->keeps_points || setup.observers.members().empty()) return;
  rows.push_back(std::move(a.what));
  if (rows.size() > rows_max) rows.pop_front();
}

// The rows of the committed step may be of its validation, and later than the report of the step.
void rank_state::report(closed_generation m) {
  for (auto& row : std::exchange(rows, {}))
    if (row.at.step >= committed && row.at.step <= m.held.loop.steps)
      m.rows.push_back(std::move(row));
  say(m);
}

void rank_state::report(torn_down m) {
  if (setup.plan.rank == 0) m.result = std::move(result);
  m.last = machine->fit().loop().last;
  send_up(std::move(m));
}

void rank_state::answered(ran& what) {
  measure(what);
  if (hooks_wanted) show_handled(what);
  if (setup.plan.rank == 0 && !what.outcome.queued.empty())
    queued.push_back({what.at, std::move(what.outcome.queued)});
  if (what.failed_with) {
    what.failed_with->record.id = keep(what.failed_with->original);
    failed_in.emplace(setup.plan.rank, what.failed_with->record.hook);
  }
  after_run.clear();
  const auto before = machine->fit().point().number;
  const auto& fit = machine->fit();
  const bool closed = fit.closing();
  machine->answered(what, after_run);
  const bool ends = setup.what->purpose == stage::train ? closed : fit.closing();
  furthest_step = std::max(furthest_step, fit.loop().steps);
  send_queued(fit.point().number != before, fit.loop().steps + (ends ? 1 : 0));
  carry_out(after_run);
  if (setup.plan.rank == 0 && what.outcome.snapshot) keep(what.at, what.outcome.snapshot);
}

// In a job that can restart, values of hooks that may run again wait for the next point. Only a
// generation that begins before step `step` calls their hooks again. None begins after the last
// checkpoint of a fit, or inside of an evaluation.
void rank_state::send_queued(bool passed_point, std::int64_t step) {
  const bool settled = passed_point || !setup.plan.fit->keeps_points || machine->fit().closing() ||
                       machine->fit().point().number == 0;
  if (!settled) return;
  for (auto& m : queued) {
    m.at.step = step_id{step};
    send_up(std::move(m));
  }
  queued.clear();
}

// Keeps the exception of the failure that the machine is given next.
failure_id rank_state::keep(std::exception_ptr error) {
  const auto id = machine->next_failure();
  thrown[id] = std::move(error);
  return id;
}

// Called after the machine has handled the answer: only then it is known to be the last of the run.
void rank_state::keep(const fence& at, snapshot_ptr taken) {
  last_snapshot = std::move(taken);
  if (!setup.checkpointer) return;
  self->send(setup.checkpointer, write_checkpoint{at, last_snapshot, machine->fit().closing()});
}

// Measures the time from the end of one training run of hooks to the end of the next, with control.
// Anything between two of them (validation, epoch ends) does not count.
void rank_state::measure(const ran& what) {
  const auto now = setup.world.now();
  const bool train = what.outcome.samples > 0;
  const auto steps = machine->fit().loop().steps;
  if (train && figures.seconds_to_first_step == 0)
    figures.seconds_to_first_step = std::chrono::duration<double>(now - began).count();
  constexpr std::int64_t warm_up_steps = 2;
  if (train && last_was_train && steps >= warm_up_steps) {
    figures.seconds_training += std::chrono::duration<double>(now - last_train_end).count();
    figures.samples_training += what.outcome.samples;
    figures.seconds_waiting += std::chrono::duration<double>(what.outcome.waited).count();
  }
  last_was_train = train;
  last_train_end = now;
}

void rank_state::show_handled(const ran& what) {
  const auto count = std::min<std::size_t>(what.handled, in_flight.size());
  for (std::size_t i = 0; i < count; ++i)
    setup.observers.notify(seen::hook{setup.plan.rank, std::move(in_flight[i])});
  in_flight.clear();
}

void rank_state::look() {
  if (!work) return;
  const auto status = work->status();
  const bool waits = world && (world->waiting() || world->aborted());
  const auto since = in_hook->look(setup.world.now(), status.since);
  feed(ranks::looked{status.busy, waits, status.hook, status.step, since});
}

void keep_looking(rank_pointer self) {
  self->state.look();
  const auto after = self->state.setup.plan.limits.tick;
  seam::send_self_after(self, rare(coverage_point::early_look) ? after / 8 : after, tick{});
}

seam::one_way_handlers<rank_actor> behaviour(rank_pointer self) {
  auto& s = self->state;
  return {
      // CAF looks in this order: frequent messages first.
      [&s](lane_answered& m) { s.answered(m.what); },
      [self](tick) { keep_looking(self); },
      [&s](const activate_generation& m) { s.feed(m); },
      [&s](const form_generation& m) { s.feed(m); },
      [&s](const tear_down& m) { s.feed(m), s.look(); },
      [&s](const lane_closed& m) {
        s.result = m.result;
        s.work.reset();
        ranks::lane_ended ended;
        if (m.last.original) ended.last = m.last.record;
        s.feed(ended);
      },
      [&s](const close_generation& m) {
        if (check(m.at, s.machine->mine()) == fence_verdict::current)
          s.committed = m.at.step.value();
        s.feed(m), s.look();
      },
      [&s](const propose_stop& m) { s.feed(m); },
      [&s](const stop_at& m) { s.feed(m); },
  };
}

}  // namespace

rank_actor spawn_rank(caf::actor_system& system, actor_error_handler trouble, rank_setup setup) {
  auto shared = std::make_shared<rank_setup>(std::move(setup));
  return seam::spawn<rank_actor, rank_state>(
      system, std::move(trouble),
      [shared](rank_pointer self) -> seam::one_way_handlers<rank_actor> {
        self->state.self = self;
        self->state.setup = std::move(*shared);
        self->monitor(self->state.setup.supervisor);
        seam::on_down(*self, [self](const caf::actor_addr&, std::string) {
          self->quit(caf::exit_reason::user_shutdown);
        });
        self->state.start();
        seam::send_self_after(self, self->state.setup.plan.limits.tick, tick{});
        return behaviour(self);
      });
}

}  // namespace troupe
