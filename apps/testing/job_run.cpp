#include "apps/testing/job_attempts.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

namespace troupe::testing {

namespace {

constexpr const char* run_folder = "run";

// Whether the job or the plan cannot be run: an error of the test, not of the run.
bool is_misuse(const std::exception& e) {
  const auto* error = dynamic_cast<const user_error*>(&e);
  return error && (error->code() == errc::bad_usage || error->code() == errc::bad_configuration);
}

violation violation_of(const std::exception& e) {
  const auto record = describe(e);
  return {exception_oracle, record.type + ": " + record.what};
}

}  // namespace

recipe_ptr job_run::integer_payload() {
  modular_options payload;
  payload.samples = job_.samples;
  payload.width = job_.width;
  payload.buffers = job_.buffers;
  payload.collectives = job_.collectives;
  payload.logs = plan_.observer != test_observer::none;
  payload.load = [this](const std::string& path) { return io_->read(path); };
  payload.stepped = [this](const finished_step& s) { stepped(s); };
  payload.at_hook = [this](const learner_context& c, const hook& h) {
    if (!armed_.empty()) maybe_throw(c, h);
  };
  payload.faults_due = [this] { return !armed_.empty(); };
  payload.poisons = [this](const learner_context& c, const position&) {
    return !poisoned_.empty() && poison_gradient(c);
  };
  return std::make_shared<modular_recipe>(std::move(payload));
}

recipe_ptr job_run::foreign_recipe() {
  payload_ground ground;
  ground.checkpoints = io_;
  ground.stepped = [this](const learner_context& who, std::int64_t steps, std::uint64_t digest) {
    finished_step s;
    s.job = who.job;
    s.rank = who.rank;
    s.step = steps;
    s.digest = digest;
    stepped(s);
  };
  ground.at_hook = [this](const learner_context& c, const hook& h) {
    if (!armed_.empty()) maybe_throw(c, h);
  };
  ground.faults_due = [this] { return !armed_.empty(); };
  ground.poisons = [this](const learner_context& c, const position& at) {
    if (poisoned_.empty() || !poison_gradient(c)) return false;
    const auto* life = sim_job_.life_at(simulation_.here(), c.rank);
    oracles_.poisoned(c.job, life ? life->generation : 0, {c.rank, at.step, at.batch});
    return true;
  };
  return trained_->recipe(std::move(ground));
}

void job_run::stepped(finished_step s) {
  simulation_.state_is(s.digest + static_cast<std::uint64_t>(s.rank));
  const auto* life = sim_job_.life_at(simulation_.here(), s.rank);
  if (!life) throw internal_error("a step on a node without a rank");
  if (s.generation == 0) s.generation = life->generation;  // another payload does not say it
  if (simulation_.recording()) note_step(*life, s);
  if (s.job != sim_job_.running())
    mark("a rank of an ended run stepped");
  else
    checker_.stepped(s.rank, life->incarnation, s.generation, s.step);
  if (s.job == sim_job_.running() && sim_job_.life_of(s.rank) != life)
    mark("a rank that was replaced stepped");
  sim_job_.stragglers().stepped(s.job, s.rank, s.step, simulation_.time());
  for (const auto& g : extensions_) g->stepped(s, complain());
  if (!s.state || !s.state->is_nan()) return oracles_.stepped(s, life->incarnation);
  oracles_.stepped_to_nan(s, life->incarnation);
  // Compared here as a user would compare the trained weights.
  constexpr const char* text = "the weights are not finite";
  if (s.job == sim_job_.running())
    facts_.thrown.push_back(
        {s.rank, "optimizer_step", s.step, "std::domain_error", text, s.generation});
  throw std::domain_error{text};
}

void job_run::generation_forms(const seen::lifecycle& what) {
  ++report_.generations;
  fallback_ = last_saved_;
  // A report of the checkpointer may still be on its way to the supervisor.
  durable_ = what.generation < 2 ? 0 : std::min(durability_.newest_durable(), last_saved_);
  if (what.generation < 2) return;
  mark("a generation followed another");
  stale_messages_.generation_begins();
}

void job_run::generation_begins(const seen::lifecycle& what) {
  std::vector<incarnation_id> members;
  for (std::int32_t r = 0; r < job_.ranks; ++r) {
    const auto* life = sim_job_.life_of(r);
    members.push_back(life ? life->incarnation : incarnation_id{});
  }
  const auto lost = [](const raised& r) { return r.hook == hooks::rewind::name; };
  oracles_.generation_begins({.generation = what.generation,
                              .members = std::move(members),
                              .fallback = fallback_,
                              .durable = durable_,
                              .lost = std::ranges::any_of(facts_.thrown, lost)});
}

void job_run::written(std::int64_t step, const std::string& path) {
  last_saved_ = step;
  durability_.announced(step);
  const bool damaged = durability_.is_damaged(step);
  try {
    const auto there = io_->read(path);
    oracles_.written(step, path, &there, damaged);
  } catch (const user_error&) {
    oracles_.written(step, path, nullptr, damaged);
  }
}

std::string job_run::newest_good() {
  try {
    const auto found = io_->latest(run_folder);
    if (!found.refused.empty()) mark("a damaged checkpoint was passed over");
    return found.path;
  } catch (const user_error&) {
    return {};
  }
}

void job_run::run_attempt(nanoseconds limit) {
  began_ = simulation_.time().count();
  began_events_ = simulation_.events();
  limit += simulation_.time();
  bool more = true;
  while (more && !sim_job_.ended() && simulation_.alive(sim_job_.supervisor_node())) {
    const simulation::moment last{began_events_ + plan_.events_limit,
                                  (limit + facts_.delayed).count()};
    if (simulation_.events() > last.event || simulation_.time().count() > last.time) return;
    apply_due_faults();
    const auto next = next_fault();
    more = simulation_.run_to(
        {std::min(next.event, last.event + 1), std::min(next.time, last.time + 1)});
  }
}

job_run::ending job_run::attempt(std::uint32_t number) {
  const bool healed = number + 2 >= plan_.attempts;
  for (std::int32_t r = 0; r < job_.ranks; ++r) sim_job_.fabric().cut(r, false);
  now_ = healed ? attempt_faults{}
                : draw_faults(simulation_.draws(), how_often_, exist_, number, job_.ranks, span_,
                              events_);
  facts_ = {};
  simulation_.marks().let_rare(now_.rare_paths);
  rare_faults_before_ = simulation_.marks().rare_faults_taken();
  forming_deadlines_before_ = forming_deadlines();
  durability_.program_starts();
  waiting_faults_ = now_.scheduled;
  armed_.clear();
  poisoned_.clear();
  const auto resume = number == 0 ? std::string{} : newest_good();
  std::int64_t from = 0;
  if (!resume.empty()) {
    const auto state = io_->read(resume);
    from = state.loop.steps;
    oracles_.resumed(state);
    mark("resumed from a checkpoint");
  } else if (number > 0) {
    mark("began again from nothing");
  }
  last_saved_ = from;
  if (from < durability_.newest_durable())
    oracles_.violate(
        {"what is durable stays",
         "the checkpoint of step " + std::to_string(durability_.newest_durable()) + " is gone",
         from});
  job what;
  what.options = job_.asked();
  what.recipe = recipe_;
  what.run_folder = run_folder;
  if (!resume.empty()) what.resume = resume;
  for (const auto& g : extensions_) g->prepares(simulation_, sim_job_, what);
  if (job_.collectives) mark("hooks called collectives");
  checker_.attempt_begins(job_.ranks, derive(job_.options().time), job_.max_restarts,
                          plan_.cluster.ranks_per_host > 0);
  if (exist_.has(fault::stale_message)) arm_stale_messages();
  sim_job_.begin(std::move(what));
  oracles_.attempt_begins(sim_job_.running(), from);
  for (const auto& g : extensions_) g->begins(simulation_, sim_job_);
  run_attempt(span_ * 20 + job_.hook_limit * 10 + std::chrono::seconds{60});
  ++report_.attempts;
  return judge();
}

std::uint64_t job_run::forming_deadlines() {
  return simulation_.marks().counts()[static_cast<std::size_t>(coverage_point::forming_deadline)];
}

job_run::ending job_run::judge() {
  facts_.rare = simulation_.marks().rare_faults_taken() > rare_faults_before_;
  if (!sim_job_.ended() && simulation_.alive(sim_job_.supervisor_node())) {
    oracles_.violate({"an attempt ends in time",
                      simulation_.idle() ? "nothing is left to do, and the job has not ended"
                                         : "the job did not end within its limit"});
    return ending::stuck;
  }
  if (!sim_job_.ended() || !simulation_.alive(sim_job_.supervisor_node())) {
    mark("the program was killed");
    program_leaves();
    return ending::again;
  }
  const auto outcome = *sim_job_.outcome();
  know_delays();
  know_ranks();
  facts_.took = simulation_.time() - nanoseconds{began_};
  // Each generation does all steps at most, and ends like the whole job.
  facts_.expected =
      (span_ * job_.accumulate * 2 + shutdown_time()) * std::max(1, checker_.generations());
  // A rank that dies silently before it has sent anything is noticed by this deadline.
  facts_.expected += derive(job_.options().time).form *
                     static_cast<std::int64_t>(forming_deadlines() - forming_deadlines_before_);
  facts_.observer = plan_.observer;
  // The supervisor waits for observers as long as for a teardown.
  if (facts_.observer != test_observer::none)
    facts_.expected += derive(job_.options().time).teardown;
  oracles_.ended(outcome, facts_);
  const auto last = [this](std::int32_t rank) {
    const auto* life = sim_job_.life_of(rank);
    return last_life{life ? life->incarnation : incarnation_id{},
                     !life || !life->process || life->process->known_gone()};
  };
  checker_.ended(outcome, facts_, last, simulation_.time());
  for (const auto& g : extensions_) g->ended(outcome, complain());
  for (const auto& g : outcome.generations) {
    if (g.changed == membership_change::left) mark("ranks left their process without a failure");
    if (g.changed == membership_change::scaled) mark("the number of processes was changed");
  }
  if (!outcome.survivors.empty()) mark("an ending with survivors");
  if (outcome.status == job_outcome::ending::stopped) mark("stopped at a step");
  program_ends(outcome);
  program_leaves();
  if (outcome.status != job_outcome::ending::finished) return ending::again;
  report_.finished = true;
  oracles_.finished(outcome);
  report_.weights_digest = oracles_.final_digest();
  return ending::finished;
}

// After a job has completed, only actors listed as survivors may still be alive.
void job_run::program_ends(const job_outcome& outcome) {
  now_ = {};
  simulation_.marks().let_rare(false);
  stale_messages_.rest();
  const auto until = simulation_.time() + derive(job_.options().time).teardown;
  auto left = sim_job_.left_in_program();
  while (!left.empty() && simulation_.time() < until && simulation_.step())
    left = sim_job_.left_in_program();
  oracles_.program_ended(left, outcome);
}

// The program writes its result and exits; its unfinished work is lost.
void job_run::program_leaves() {
  now_ = {};
  stale_messages_.rest();
  simulation_.marks().let_rare(false);
  disk_->kill(0);
  sim_job_.crash_program();
}

// Collects violated invariants of code under test.
void job_run::collect_marks() {
  const auto& book = simulation_.marks();
  report_.product = book.counts();
  report_.own = book.own();
  const auto count = [&](fault f) -> auto& { return report_.faults[static_cast<std::size_t>(f)]; };
  count(fault::rare_paths) = book.rare_taken();
  if (const auto broken = book.first_broken())
    oracles_.violate({"invariants of the product hold",
                      std::string{coverage_points[static_cast<std::size_t>(*broken)].text}});
  if (const auto& broken = book.first_own_broken()) oracles_.violate({own_marks_oracle, *broken});
}

void job_run::drain() {
  now_ = {};
  armed_.clear();
  poisoned_.clear();
  for (std::int32_t r = 0; r < job_.ranks; ++r) sim_job_.fabric().cut(r, false);
  std::uint64_t steps = 0;
  while (steps < plan_.events_limit && simulation_.step()) ++steps;
  oracles_.drained(simulation_.actors(), sim_job_.fabric().handles());
}

void job_run::try_until_finished() {
  auto last = ending::again;
  for (std::uint32_t n = 0; n < plan_.attempts && last == ending::again; ++n) last = attempt(n);
  if (last == ending::again)
    oracles_.violate({"a healed job finishes", "not in " + std::to_string(plan_.attempts) +
                                                   " attempts, the last two "
                                                   "without a fault"});
  if (last != ending::stuck) drain();
}

run_report job_run::go() {
  try {
    try_until_finished();
  } catch (const reached_outside& e) {
    oracles_.violate({"only ports reach outside", e.what()});
  } catch (const std::exception& e) {
    if (is_misuse(e)) throw;
    oracles_.violate(violation_of(e));
  }
  collect_marks();
  report_.events = simulation_.events();
  report_.deliveries = simulation_.deliveries();
  report_.virtual_time = simulation_.time();
  report_.hashes = simulation_.hashes();
  report_.stragglers = sim_job_.stragglers();
  if (plan_.simulation.record) {
    report_.taken = simulation_.draws().taken();
    report_.notes = simulation_.notes();
    report_.trail = simulation_.trail();
    report_.nodes = simulation_.names();
  }
  return std::move(report_);
}

run_report run_job(const job_spec& what, const run_plan& plan, choices from,
                   modular_reference& reference) {
  const auto seed = from.seed();
  std::unique_ptr<job_run> made;
  try {
    made = std::make_unique<job_run>(what, plan, std::move(from), reference);
  } catch (const std::exception& e) {
    if (is_misuse(e)) throw;
    run_report report;
    report.seed = seed;
    report.violations.push_back(violation_of(e));
    return report;
  }
  return made->go();
}

}  // namespace troupe::testing
