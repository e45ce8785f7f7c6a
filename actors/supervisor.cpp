#include "actors/supervisor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "actors/job_check.hpp"
#include "actors/job_completion.hpp"
#include "actors/observer.hpp"
#include "actors/recovery_times.hpp"
#include "actors/running_deadline.hpp"
#include "actors/supervisor_machine.hpp"
#include "backends/entropy.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace {

actor_error_handler keeping(supervisor_error into, actor_error_handler trouble) {
  return [into = std::move(into), trouble = std::move(trouble)](const caf::strong_actor_ptr& who,
                                                                caught what) {
    if (what.original) *into = fmt::format(": {}: {}", what.record.type, what.record.what);
    if (trouble) trouble(who, std::move(what));
  };
}

struct supervisor_state;
using supervisor_pointer = supervisor_actor::stateful_pointer<supervisor_state>;

struct supervisor_state {
  static constexpr const char* name = "supervisor";

  supervisor_pointer self = nullptr;
  supervisor_setup setup;
  std::shared_ptr<const job> what;
  std::shared_ptr<communicator_backend> communicators;
  std::unique_ptr<supervisor_machine> machine;
  std::unique_ptr<job_completion> complete;
  shared_value<fit_plan> plan;
  deadlines limits;
  std::optional<running_deadline> deadline;
  std::vector<rank_actor> ranks;
  std::vector<observer_list> observers_of;  // by rank: of its newest incarnation
  // The ranks whose actors have not ended: those that run, and those that were replaced.
  std::unordered_map<caf::actor_addr, supervision::start_rank>
      rank_at;                                      // looked up only: no order matters
  incarnation_id rank_0;                            // the present one
  std::map<incarnation_id, std::size_t> rank_with;  // of every rank that ever was
  recovery_times times;
  checkpointer_actor checkpointer;
  caught checkpoint_failure;  // the newest one that the checkpointer reported
  observer_list observers;
  std::size_t observers_left = 0;
  job_outcome outcome;
  std::vector<queue_value> queued;                  // for the outcome
  std::int64_t furthest_step = 0;                   // that a rank has done, in any generation
  std::int64_t base_step = 0;                       // of the newest generation; -1: it begins anew
  failed_hooks failed_in;                           // in any generation
  std::map<failure_id, std::exception_ptr> thrown;  // of the job's failures
  std::map<incarnation_id, std::vector<seen::metrics>> rows;  // of closed_generation

  void start();
  void feed(const supervision::event& e);
  void look_at(const deadline_passed& m);
  void down(const caf::actor_addr& who, const std::string& why);
  void finished(const rank_finished& m);
  void failed(const rank_failed& m);
  /// The rank with this incarnation, if this job has it.
  std::optional<std::size_t> rank_of(const fence& at) const;
  bool of_rank_0(const fence& at) const { return at.job == setup.id && at.incarnation == rank_0; }
  void on_flushed(const flushed& m);
  void on_checkpoint(const checkpoint_report& m);
  void checkpoint_failed(bool ends_job);
  void announce(const seen::lifecycle& what);
  void take_back_queued();

  std::shared_ptr<const job> job_of_next() const;
  form_generation completed(form_generation order) const;
  close_generation completed(close_generation order) const;
  void show_rows(const form_generation& order, std::int32_t rank);
  void show_rows(const auto&, std::int32_t) const {}
  template <class Order>
  const Order& completed(const Order& order) const {
    return order;
  }

  void carry_out(const supervision::start_process& a);
  void carry_out(const supervision::end_process& a);
  void carry_out(const supervision::start_rank& a);
  void carry_out(const supervision::send& a);
  void carry_out(const supervision::abandon& a);
  void carry_out(const supervision::arm& a);
  void carry_out(const supervision::flush_checkpointer& a);
  void carry_out(const supervision::flush_observers& a);
  void carry_out(const supervision::announce& a);
  void carry_out(const supervision::commit& a);
  void carry_out(const supervision::complete& a);
  void release_user_code();
};

void supervisor_state::start() {
  for (const auto& make : what->observers) {
    try {
      observers.add(setup.bring_observer(self->system(), setup.trouble, make, self));
    } catch (...) {
      auto why = describe(std::current_exception());
      why.hook = "observer";
      outcome.late.push_back(std::move(why));
      continue;
    }
    self->monitor(observers.members().back().actor);
    ++observers_left;
  }
  if (writes_checkpoints(*what) && setup.spawn_checkpointer) {
    checkpointer = setup.spawn_checkpointer(self->system(), setup.trouble, setup.id, *what,
                                            setup.world.files, self);
    self->monitor(checkpointer);
    outcome.last_checkpoint = what->resume.value_or("");
  }
  const auto world = static_cast<std::size_t>(what->options.ranks);
  ranks.resize(world);
  observers_of.resize(world);
  std::set<std::uint64_t> drawn;
  while (drawn.size() < world) drawn.insert(setup.world.random->draw());
  supervision::begin e{{}, setup.resumed};
  for (const auto id : drawn) e.incarnations.push_back(incarnation_id{id});
  feed(e);
}

void supervisor_state::feed(const supervision::event& e) {
  machine->at(setup.world.now());
  for (const auto& a : machine->on(e)) std::visit([&](const auto& x) { carry_out(x); }, a);
}

// Each injected fault happens once in a job, so a rank that replaces another one keeps later ones.
std::shared_ptr<const job> supervisor_state::job_of_next() const {
  if (machine->generation() == generation_id{1} || what->options.faults.empty()) return what;
  auto later = std::make_shared<job>(*what);
  later->options.faults = later_drills(std::move(later->options.faults), furthest_step, failed_in);
  return later;
}

void supervisor_state::carry_out(const supervision::start_rank& a) {
  rank_with[a.incarnation] = static_cast<std::size_t>(a.rank);
  if (a.rank == 0) rank_0 = a.incarnation;
  rank_setup given;
  given.plan = {setup.id, a.rank, a.incarnation, plan, limits};
  given.what = job_of_next();
  given.world = setup.world;
  given.communicators = communicators;
  given.supervisor = self;
  given.checkpointer = checkpointer;
  given.observers = observers_of.at(static_cast<std::size_t>(a.rank)) = observers.for_sender();
  given.process = a.process;
  auto& handle = ranks.at(static_cast<std::size_t>(a.rank));
  handle = setup.bring_rank(self->system(), setup.trouble, std::move(given));
  if (!handle) return;
  self->monitor(handle);
  rank_at[handle.address()] = a;
}

void supervisor_state::carry_out(const supervision::start_process& a) {
  if (setup.processes) setup.processes->start(a.number, a.spare, self);
}

void supervisor_state::carry_out(const supervision::end_process& a) {
  if (setup.processes) setup.processes->end(a.number);
}

// When no rank holds any state, the ranks begin at the newest checkpoint.
form_generation supervisor_state::completed(form_generation order) const {
  const bool again = order.at.generation > generation_id{1} && order.base.number == 0;
  if (again && what->purpose == stage::train) order.resume = outcome.last_checkpoint;
  return order;
}

close_generation supervisor_state::completed(close_generation order) const {
  order.at.step = step_id{machine->committed()};
  return order;
}

// Before the ranks go on from the base, observers get the rows that a holder of the base has kept.
// Some of them may have been sent by another rank before.
void supervisor_state::show_rows(const form_generation& order, std::int32_t rank) {
  if (!order.holders.empty() && rank != order.holders.front()) return;
  const auto known = std::exchange(rows, {});
  const auto found = known.find(order.at.incarnation);
  if (order.holders.empty() || found == known.end()) return;
  for (const auto& row : found->second) observers.notify(row);
  sometimes(!found->second.empty(), coverage_point::rows_kept);
}

void supervisor_state::carry_out(const supervision::send& a) {
  if (const auto* form = std::get_if<form_generation>(&a.what)) {
    const bool anew = form->base.number == 0 && form->base.loop.steps == 0;
    base_step = anew ? -1 : form->base.loop.steps;
  }
  std::visit([&](const auto& order) { show_rows(order, a.rank); }, a.what);
  const auto& to = ranks.at(static_cast<std::size_t>(a.rank));
  if (!to) return;
  // Ranks must accept each order twice, because the supervisor may send it again.
  for (int i = rare(coverage_point::sent_twice) ? 2 : 1; i > 0; --i)
    std::visit([&](const auto& message) { self->send(to, completed(message)); }, a.what);
}

// The rank may run on for a while, at the same time as the one that replaces it.
void supervisor_state::carry_out(const supervision::abandon& a) {
  observers_of.at(static_cast<std::size_t>(a.rank)).close();
  const auto& to = ranks.at(static_cast<std::size_t>(a.rank));
  if (to) self->send_exit(to, caf::exit_reason::kill);
}

void supervisor_state::carry_out(const supervision::arm& a) {
  const auto delay = rare(coverage_point::early_deadline) ? a.delay / 256 : a.delay;
  const auto now = setup.world.now();
  deadline->arm(a.id, now, delay);
  seam::send_self_after(self, deadline->left(a.id, now), deadline_passed{a.id});
}

void supervisor_state::look_at(const deadline_passed& m) {
  const auto left = deadline->left(m.id, setup.world.now());
  if (left.count() == 0) return feed(m);
  seam::send_self_after(self, left, m);
}

void supervisor_state::carry_out(const supervision::commit& a) {
  times.committed(setup.world.now());
  if (!checkpointer) return;
  fence at;
  at.job = setup.id;
  at.generation = machine->generation();
  at.step = step_id{a.steps};
  self->send(checkpointer, step_committed{at});
}

void supervisor_state::carry_out(const supervision::flush_checkpointer&) {
  if (!checkpointer) return feed(supervision::checkpointer_done{});
  self->send(checkpointer, flush{});
}

void supervisor_state::carry_out(const supervision::flush_observers&) {
  if (observers_left == 0) return feed(supervision::observers_done{});
  for (const auto& m : observers.members()) self->send(m.actor, flush{});
}

void supervisor_state::carry_out(const supervision::complete& a) {
  outcome.status = a.status;
  outcome.why = a.why;
  outcome.loop = a.loop;
  const auto from = setup.resumed.steps;  // the machine knows less of where the job began
  if (a.first && from > 0 && a.loop.steps <= from) outcome.loop = setup.resumed;
  if (!a.first) outcome.last = a.loop.last;
  outcome.generation = a.generation.value();
  outcome.shards = what->options.ranks;
  times.put_into(outcome, a.generations);
  outcome.survivors = a.survivors;
  outcome.late.insert(outcome.late.end(), a.late.begin(), a.late.end());
  if (a.first) {
    caught why;
    why.record = *a.first;
    const auto found = thrown.find(why.record.id);
    if (found != thrown.end()) why.original = found->second;
    if (!why.original) why.original = setup.world.exceptions.make(why.record);
    outcome.failed_with = std::make_shared<const caught>(std::move(why));
  }
  for (auto& m : queued) std::ranges::move(m.what, std::back_inserter(outcome.queue));
  auto done = std::move(outcome);
  release_user_code();
  (*complete)(std::move(done));
  self->quit();
}

// What the job holds may own its session, which cannot be destroyed on this thread once the job has
// completed: the actor system waits for this thread. Until then a session that is destroyed leaves
// its end to another thread.
void supervisor_state::release_user_code() {
  what = std::make_shared<const job>();
  setup.what = {};
  setup.spawn_checkpointer = nullptr;
  setup.bring_rank = nullptr;
  setup.processes = nullptr;
  setup.announced = nullptr;
  thrown.clear();
}

void supervisor_state::down(const caf::actor_addr& who, const std::string& why) {
  if (const auto found = rank_at.find(who); found != rank_at.end()) {
    const auto who_it_was = found->second;
    rank_at.erase(found);
    auto& handle = ranks.at(static_cast<std::size_t>(who_it_was.rank));
    if (handle && handle.address() == who) handle = nullptr;
    return feed(supervision::rank_down{who_it_was.rank, why, who_it_was.incarnation});
  }
  if (checkpointer && checkpointer.address() == who) {
    checkpointer = nullptr;
    supervision::checkpointer_done done;
    if (!why.empty()) {
      done.late.push_back(make_failure(failure_kind::down, "the checkpointer ended: " + why));
    }
    return feed(done);
  }
  if (observers_left > 0 && --observers_left == 0) feed(supervision::observers_done{});
}

std::optional<std::size_t> supervisor_state::rank_of(const fence& at) const {
  const auto found = rank_with.find(at.incarnation);
  if (at.job != setup.id || found == rank_with.end()) return std::nullopt;
  return found->second;
}

void supervisor_state::finished(const rank_finished& m) {
  const auto r = rank_of(m.at);
  if (r == 0) {
    outcome.weights = m.state;
    outcome.figures = m.figures;
  }
  outcome.waiting_shares.resize(ranks.size());
  if (r) outcome.waiting_shares[*r] = m.figures.waiting_share();
  feed(m);
}

void supervisor_state::failed(const rank_failed& m) {
  failed_in.emplace(m.local->record.rank, m.local->record.hook);
  if (rank_of(m.at) && m.local->original) {
    // The machine gives the next id to a failure without one.
    const auto& id = m.local->record.id;
    thrown.emplace(id ? id : machine->next_failure(), m.local->original);
  }
  feed(m);
}

void supervisor_state::on_checkpoint(const checkpoint_report& m) {
  if (!m.path.empty() || !m.best.empty()) outcome.best_checkpoint = m.best;
  if (!m.why && m.path.empty()) return;  // nothing was written: what a resumed run began with
  seen::lifecycle event;
  event.generation = machine->generation().value();
  event.step = m.step;
  if (m.why) {
    event.event = lifecycle_kind::checkpoint_failed;
    event.details["what"] = m.why->record.what;
    event.cause = std::make_shared<const failure>(m.why->record);
    checkpoint_failure = *m.why;
    checkpoint_failure.record.id = machine->next_failure();
    checkpoint_failed(m.fatal);
  } else {
    event.event = lifecycle_kind::checkpoint_written;
    event.details["path"] = m.path;
    event.details["behind"] = std::to_string(m.behind);
    if (m.skipped > 0) event.details["skipped"] = std::to_string(m.skipped);
    outcome.last_checkpoint = m.path;
    feed(supervision::durable{progress_of(m.loop)});
  }
  announce(event);
}

void supervisor_state::carry_out(const supervision::announce& a) {
  auto event = a.what;
  if (event.event == lifecycle_kind::generation_forming)
    event.details.emplace("stage", to_string(what->purpose));
  announce(event);
}

// The hooks that queued these values are called again.
void supervisor_state::take_back_queued() {
  std::erase_if(queued, [&](const queue_value& m) {
    return m.at.generation < machine->generation() && m.at.step.value() > base_step;
  });
}

// Only a failure that ends the job needs its exception.
void supervisor_state::checkpoint_failed(bool ends_job) {
  const auto& [record, original] = checkpoint_failure;
  if (ends_job) thrown.emplace(record.id, original);
  feed(supervision::trouble{record, ends_job});
}

void supervisor_state::announce(const seen::lifecycle& what) {
  if (what.event == lifecycle_kind::generation_active) take_back_queued();
  times.see(what, setup.world.now());
  if (setup.announced) setup.announced(what);
  observers.notify(what);
}

void supervisor_state::on_flushed(const flushed& m) {
  for (const auto& f : m.late) feed(supervision::trouble{f});
  if (m.lost) checkpoint_failed(true);
}

seam::one_way_handlers<supervisor_actor> behaviour(supervisor_pointer self) {
  auto& s = self->state;
  return {
      // CAF looks in this order: frequent messages first.
      [&s](const step_done& m) {
        s.furthest_step = std::max(s.furthest_step, m.at.step.value());
        s.feed(m);
      },
      [&s](const rank_busy& m) { s.feed(m); },
      [&s](const prepared& m) {
        s.times.healed(m.healing_seconds);
        s.feed(m);
      },
      [&s](const deadline_passed& m) { s.look_at(m); },
      [&s](const torn_down& m) {
        if (s.of_rank_0(m.at)) {
          s.outcome.result = m.result;
          s.outcome.last = m.last;
        }
        s.feed(m);
      },
      [&s](const rank_finished& m) { s.finished(m); },
      [&s](const closed_generation& m) {
        if (s.rank_of(m.at) && m.at.generation == s.machine->generation())
          s.rows[m.at.incarnation] = m.rows;
        s.feed(m);
      },
      [&s](const checkpoint_report& m) { s.on_checkpoint(m); },
      [&s](const stop_vote& m) { s.feed(m); },
      [&s](const rank_failed& m) { s.failed(m); },
      [&s](const queue_value& m) {
        if (s.of_rank_0(m.at)) s.queued.push_back(m);
      },
      [&s](const flushed& m) { s.on_flushed(m); },
      [&s](const process_changed& m) { s.feed(m); },
      [&s](const caller_request& m) { std::visit([&s](const auto& x) { s.feed(x); }, m.what); },
      [&s](begin_job) { s.start(); },
  };
}

supervision::rules rules_of(const supervisor_setup& of) {
  const auto& options = of.what.options;
  supervision::rules rules{.elastic = options.elastic,
                           .processes = of.processes ? of.process_count : 0,
                           .has_result = of.what.purpose != stage::train,
                           .saves = options.checkpoint.on_exception && writes_checkpoints(of.what)};
  const auto placed = of.processes ? of.processes->placed() : std::nullopt;
  if (!placed) return rules;
  rules.fixed = true;
  auto& elastic = rules.elastic;
  if (placed->outlive_loss) {
    rules.processes = std::min(rules.processes, placed->number);
    elastic.spares = std::min(elastic.spares, placed->number - rules.processes);
  } else {
    elastic.min_ranks = rules.processes;
  }
  return rules;
}

}  // namespace

supervisor_actor spawn_supervisor(caf::actor_system& system, supervisor_setup setup) {
  const shared_value<fit_plan> plan = checked_plan(setup.what);
  check(setup.what.options.time);
  auto limits = derive(setup.what.options.time);
  // A rank that is a process chooses its communicator in its own process.
  auto communicators = setup.what.options.placement == placement_kind::threads
                           ? choose_communicator(setup.world, setup.what.options.communicator.name)
                           : nullptr;
  auto shared = std::make_shared<supervisor_setup>(std::move(setup));
  const auto error = std::make_shared<std::string>();
  return seam::spawn<supervisor_actor, supervisor_state>(
      system, keeping(error, shared->trouble),
      [=](supervisor_pointer self) -> seam::one_way_handlers<supervisor_actor> {
        auto& s = self->state;
        s.self = self;
        s.setup = std::move(*shared);
        s.what = std::make_shared<const job>(s.setup.what);
        s.communicators = communicators;
        s.plan = plan;
        s.limits = limits;
        s.deadline.emplace(limits.tick);
        s.complete = std::make_unique<job_completion>(std::move(s.setup.complete), error);
        s.machine = std::make_unique<supervisor_machine>(s.setup.id, s.what->options.ranks, limits,
                                                         rules_of(s.setup));
        seam::on_down(*self,
                      [&s](const caf::actor_addr& who, std::string why) { s.down(who, why); });
        return behaviour(self);
      });
}

}  // namespace troupe
