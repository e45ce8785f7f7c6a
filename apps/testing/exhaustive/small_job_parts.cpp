#include "apps/testing/exhaustive/small_job_parts.hpp"

#include "troupe/detail/stable_hash.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace troupe {

// Makes supervisors equal that differ only in what no later event and no check reads.
struct supervisor_history {
  // Keeps only the members of the failure that later events and checks read:
  // - kind, type and hook, and the rank unless it is an exception: comes_back (failure_record.hpp)
  //   compares these with the next failure;
  // - the types of other failures, for the check that each exception is reported;
  // - with the rank the whole `key`, by which this failure was chosen as the first. The order of
  //   keys includes the rank, so two ends that chose differently must have different images.
  static failure cause(const failure& of) {
    const bool ranked = of.kind != failure_kind::exception;
    auto kept = ranked ? key(of) : failure{};
    kept.kind = of.kind;
    kept.type = of.type;
    kept.hook = of.hook;
    for (const auto& other : of.others)
      if (!other.follows || other.type == testing::injected_type) {
        kept.others.push_back(ranked ? key(other) : failure{});
        kept.others.back().type = other.type;
      }
    return kept;
  }
  static failure key(const failure& of) {
    failure kept;
    kept.follows = of.follows;
    kept.generation = of.generation;
    kept.step = of.step;
    kept.sequence = of.sequence;
    kept.rank = of.rank;
    return kept;
  }

  // For a failure that follows, when the first cause is known and does not follow. It cannot become
  // the first cause any more. Keeps only its identity and whether a restart can cure it.
  static void reduce(failure& of) {
    failure kept;
    kept.kind = of.kind;
    kept.code = of.code;
    kept.id = of.id;
    kept.type = of.type;
    kept.follows = of.follows;
    of = std::move(kept);
  }
  static bool by_id(const failure& a, const failure& b) {
    const auto key = [](const failure& f) {
      return std::tuple{f.follows, f.follows ? f.id.incarnation.value() : 0,
                        f.follows ? f.id.sequence : 0};
    };
    return key(a) < key(b);
  }

  static void forget(supervisor_machine& machine, std::uint64_t& deadline) {
    auto& failures = machine.failures_;
    if (failures.first_ && !failures.first_->follows) {
      for (auto& other : failures.others_)
        if (other.follows) reduce(other);
      std::ranges::stable_sort(failures.others_, by_id);
    }
    // A search has no old deadlines, so a number says only whether one is armed.
    machine.deadline_ = deadline = deadline != 0 ? 1 : 0;
    for (auto& generation : machine.recovery_.ended_)
      if (generation.ended_by) generation.ended_by = cause(*generation.ended_by);
    // The ids of failures are only compared. Those of a generation have fewer than a hundred.
    if (failures.before_ > 0) failures.before_ = 100;
  }
};

}  // namespace troupe

namespace troupe::testing {

// --- a rank --------------------------------------------------------------------------------------

namespace {

supervision::event as_event(const ranks::report& report) {
  return std::visit([](const auto& x) -> supervision::event { return x; }, report);
}

bool is_collective(const hook& h) {
  if (const auto* down = h.get_if<hooks::teardown>()) return down->orderly;
  return h.is<hooks::barrier>() || h.is<hooks::optimizer_step>() || h.is<hooks::restore_state>();
}

}  // namespace

bool rank_part::meets() const {
  return run && !alone && std::ranges::any_of(run->hooks, is_collective);
}

rank_effects rank_part::feed(const ranks::event& what) {
  rank_effects out;
  std::vector<ranks::action> actions;
  try {
    actions = machine.on(what);
  } catch (...) {
    out.broken = "the machine threw " + render(describe(std::current_exception()));
    return out;
  }
  for (auto& a : actions) {
    if (auto* given = std::get_if<ranks::submit>(&a)) {
      if (run) out.broken = "it gave its lane a run while one is in flight";
      run = std::move(given->run);
      stage = lane_stage::before;
    } else if (const auto* report = std::get_if<ranks::report>(&a)) {
      if (const auto* closed = std::get_if<closed_generation>(report)) held = closed->held.number;
      if (auto wrong = wrong_state(*report); !wrong.empty()) out.broken = std::move(wrong);
      out.sent.push_back(as_event(*report));
    } else if (const auto* attend = std::get_if<ranks::attend>(&a)) {
      attention = attend->generation_closed;
    } else if (const auto* open = std::get_if<ranks::open>(&a)) {
      opening = true;
      alone = open->alone;
      rendezvous_kinds = 0;
    } else if (std::holds_alternative<ranks::bind>(a)) {
      alone = false;
    } else if (std::holds_alternative<ranks::open_lane>(a)) {
      applied = kept = 0;
    } else if (std::holds_alternative<ranks::abort_communicator>(a)) {
      out.aborts = true;
    } else if (std::holds_alternative<ranks::close_lane>(a)) {
      lane_ends = true;
    } else if (std::holds_alternative<ranks::end>(a)) {
      auto left = vanish("");
      out.sent.push_back(std::move(left.sent.front()));
      out.aborts = true;
    }
  }
  return out;
}

// What it says of its state must be so.
std::string rank_part::wrong_state(const ranks::report& report) const {
  const auto says = [&](std::int64_t steps, const std::string& digest) -> std::string {
    if (applied == steps && (digest.empty() || digest == std::to_string(applied))) return {};
    return fmt::format("it says that it holds {} steps (digest {}), but {} are applied", steps,
                       digest.empty() ? "none" : digest, applied);
  };
  if (const auto* m = std::get_if<prepared>(&report)) return says(m->at.step.value(), m->digest);
  if (const auto* m = std::get_if<step_done>(&report)) return says(m->at.step.value(), {});
  if (const auto* m = std::get_if<rank_finished>(&report)) return says(m->loop.steps, {});
  if (const auto* m = std::get_if<closed_generation>(&report); m && m->held.number > 0)
    return says(m->held.loop.steps, m->digest);
  return {};
}

rank_effects rank_part::receive(const supervision::order& what) {
  return std::visit([this](const auto& m) { return feed(m); }, what);
}

rank_effects rank_part::communicator_open() {
  opening = false;
  return feed(ranks::opened{});
}

void rank_part::arrive() {
  ++rendezvous_kinds;
  stage = lane_stage::waits;
}

void rank_part::pass() { stage = lane_stage::after; }

rank_effects rank_part::answer(std::int64_t step_batches) {
  ranks::answered out;
  out.at = run->at;
  out.handled = static_cast<std::uint32_t>(run->hooks.size());
  std::string wrong;
  for (const auto& h : run->hooks) {
    if (const auto* x = h.get_if<hooks::process_dataloader>()) {
      const auto batches = x->at.stage == stage::train ? step_batches : 0;
      out.outcome.loaders.push_back({x->at.stage, x->at.dataloader, batches, batches});
    }
    if (h.is<hooks::setup_optimizers>()) out.outcome.optimizers.emplace();
    if (wrong.empty()) wrong = handle(h, out.outcome);
  }
  if (run->keep_point) kept = applied;
  run.reset();
  stage = lane_stage::idle;
  auto effects = feed(out);
  if (!wrong.empty()) effects.broken = std::move(wrong);
  return effects;
}

// What the learner does. A learner that lacks the state gets what the donors hold, which is what
// the hook says: if not, the donor is wrong.
std::string rank_part::handle(const hook& what, hook_outcome& outcome) {
  if (what.is<hooks::optimizer_step>()) {
    ++outcome.samples;
    kept = ++applied;
  } else if (what.is<hooks::rewind>()) {
    applied = kept;
    outcome.state_digest = std::to_string(applied);
  } else if (const auto* restore = what.get_if<hooks::restore_state>()) {
    const bool donor = std::ranges::binary_search(restore->donors, rank);
    if (donor && applied != restore->at.step)
      return fmt::format("it gives the state of step {}, but {} steps are applied",
                         restore->at.step, applied);
    applied = kept = restore->at.step;
    outcome.state_digest = std::to_string(applied);
  }
  return {};
}

bool rank_part::is_applied_before_last_hook() const {
  for (std::size_t i = 0; i < run->hooks.size(); ++i)
    if (const auto* step = run->hooks[i].get_if<hooks::optimizer_step>())
      return stage == lane_stage::after && i + 1 + step->closure < run->hooks.size();
  return false;
}

// A learner keeps a step that was applied, although a later hook throws.
rank_effects rank_part::throws() {
  ranks::answered out;
  out.at = run->at;
  out.outcome.verdict = run_verdict::failed;
  out.what = injected_throw(*run, stage == lane_stage::after);
  if (is_applied_before_last_hook()) {
    out.handled = static_cast<std::uint32_t>(run->hooks.size() - 1);
    out.outcome.samples = 1;
    kept = ++applied;
  }
  run.reset();
  stage = lane_stage::idle;
  return feed(out);
}

rank_effects rank_part::answer_attention() {
  ranks::answered out;
  out.at = run->at;
  out.outcome.verdict = run_verdict::attention;
  run.reset();
  stage = lane_stage::idle;
  return feed(out);
}

rank_effects rank_part::answer_thrown(failure what) {
  ranks::answered out;
  out.at = run->at;
  out.outcome.verdict = run_verdict::failed;
  out.what = std::move(what);
  run.reset();
  stage = lane_stage::idle;
  return feed(out);
}

rank_effects rank_part::lane_ended() {
  lane_ends = false;
  return feed(ranks::lane_ended{});
}

rank_effects rank_part::vanish(const std::string& why) {
  gone = true;
  opening = lane_ends = false;
  run.reset();
  stage = lane_stage::idle;
  rank_effects out;
  out.sent.push_back(supervision::rank_down{rank, why, machine.mine().incarnation});
  return out;
}

bool operator==(const rank_part& a, const rank_part& b) {
  // A run follows from the machine's state, so its number identifies it.
  const auto number = [](const rank_part& p) {
    return p.run ? static_cast<std::int64_t>(p.run->at.sequence.value()) : undefined;
  };
  return a.stage == b.stage && a.rendezvous_kinds == b.rendezvous_kinds && a.opening == b.opening &&
         a.rank == b.rank && a.alone == b.alone && a.applied == b.applied && a.kept == b.kept &&
         a.held == b.held && a.attention == b.attention && a.lane_ends == b.lane_ends &&
         a.gone == b.gone && number(a) == number(b) && a.machine == b.machine;
}

std::uint64_t rank_part::digest() const {
  stable_hasher hash;
  hash.add(machine.digest()).add(stage).add(rendezvous_kinds).add(opening).add(attention);
  hash.add(lane_ends).add(gone).add(run.has_value());
  hash.add(rank).add(alone).add(applied).add(kept).add(held);
  return hash.digest();
}

failure injected_throw(const hook_run& run, bool after_collective) {
  failure what;
  what.type = injected_type;
  what.what = "disk full";
  what.hook = name(after_collective ? run.hooks.back() : run.hooks.front());
  return what;
}

failure closed_under_it() {
  failure what;
  what.type = "troupe::generation_closed";
  what.what = "the communicator was aborted";
  what.follows = true;
  return what;
}

failure peers_missing() { return make_failure(failure_kind::deadline, "peers are missing"); }

// --- the supervisor ------------------------------------------------------------------------------

supervisor_effects supervisor_part::receive(const supervision::event& what) {
  supervisor_effects out;
  if (std::holds_alternative<deadline_passed>(what)) deadline = 0;
  try {
    receive(what, out);
  } catch (...) {
    out.broken = "the machine threw " + render(describe(std::current_exception()));
  }
  supervisor_history::forget(machine, deadline);
  return out;
}

void supervisor_part::receive(const supervision::event& what, supervisor_effects& out) {
  for (const auto& a : machine.on(what)) {
    if (const auto* message = std::get_if<supervision::send>(&a)) {
      out.sent.emplace_back(message->rank, message->what);
    } else if (const auto* kill = std::get_if<supervision::abandon>(&a)) {
      out.abandoned.push_back(kill->rank);
    } else if (const auto* start = std::get_if<supervision::start_rank>(&a)) {
      out.started.emplace_back(start->rank, start->incarnation);
    } else if (const auto* arm = std::get_if<supervision::arm>(&a)) {
      deadline = arm->id;
    } else if (const auto* commit = std::get_if<supervision::commit>(&a)) {
      out.committed = commit->steps;
    } else if (std::holds_alternative<supervision::flush_checkpointer>(a)) {
      receive(supervision::checkpointer_done{}, out);
    } else if (std::holds_alternative<supervision::flush_observers>(a)) {
      receive(supervision::observers_done{}, out);
    } else if (const auto* complete = std::get_if<supervision::complete>(&a)) {
      if (end) out.broken = "the job was completed twice";
      end = *complete;
    }
  }
}

bool supervisor_part::waits() const {
  if (deadline == 0 || end) return false;
  auto copy = machine;
  copy.on(deadline_passed{deadline});
  return !(copy == machine);
}

bool operator==(const supervisor_part& a, const supervisor_part& b) {
  return a.deadline == b.deadline && a.end.has_value() == b.end.has_value() &&
         a.machine == b.machine;
}

std::uint64_t supervisor_part::digest() const {
  stable_hasher hash;
  hash.add(machine.digest()).add(deadline).add(end.has_value());
  return hash.digest();
}

// --- messages ------------------------------------------------------------------------------------

namespace {

std::string words(const fence& at) {
  return fmt::format(" g{} i{} step {} seq {}", at.generation.value(), at.incarnation.value(),
                     at.step.value(), at.sequence.value());
}

std::string words(const failure& f) {
  auto text = fmt::format(" [{} id {}/{} seq {} g{}{}]", render(f), f.id.incarnation.value(),
                          f.id.sequence, f.sequence, f.generation, f.follows ? " follows" : "");
  for (const auto& cause : f.causes) text += fmt::format(" from {}: {}", cause.type, cause.what);
  for (const auto& other : f.others) text += " with" + words(other);
  return text;
}

std::string words(const std::vector<failure>& late) {
  std::string text;
  for (const auto& f : late) text += " late" + words(f);
  return text;
}

std::string words(const resume_point& p) {
  if (p.number == 0) return {};
  return fmt::format(
      " point {}.{} of step {}, epoch {}, batch {}, cursor {}, saved {}, ends {}{}{}{}{}", p.number,
      static_cast<int>(p.then), p.loop.steps, p.loop.epoch, p.loop.batch, p.loop.cursor,
      p.last_saved, p.ending, p.trained ? " trained" : "", p.loop.validated ? " validated" : "",
      p.save_due ? " save due" : "", p.validation_due ? " validation due" : "");
}

struct message_text {
  std::string operator()(const form_generation& m) const {
    auto text = fmt::format("form_generation{} world {}{}", words(m.at), m.world, words(m.base));
    for (const auto rank : m.holders) text += fmt::format(" held by {}", rank);
    return text + m.resume;
  }
  std::string operator()(const activate_generation& m) const {
    return "activate_generation" + words(m.at);
  }
  std::string operator()(const propose_stop& m) const {
    return fmt::format("propose_stop{} {}", words(m.at), to_string(m.why));
  }
  std::string operator()(const stop_at& m) const {
    return fmt::format("stop_at{} {}{}", words(m.at), to_string(m.why), m.pause ? " pause" : "");
  }
  std::string operator()(const close_generation& m) const {
    return "close_generation" + words(m.at) + words(m.first) + (m.last ? " last" : "");
  }
  std::string operator()(const tear_down& m) const {
    return fmt::format("tear_down{}{}", words(m.at), m.orderly ? " orderly" : "");
  }
  std::string operator()(const prepared& m) const { return "prepared" + words(m.at) + m.digest; }
  std::string operator()(const step_done& m) const { return "step_done" + words(m.at); }
  std::string operator()(const stop_vote& m) const { return "stop_vote" + words(m.at); }
  std::string operator()(const rank_finished& m) const {
    return fmt::format("finished{} steps {} epoch {} batch {} {}", words(m.at), m.loop.steps,
                       m.loop.epoch, m.loop.batch, to_string(m.why));
  }
  std::string operator()(const rank_failed& m) const {
    return fmt::format("failed{}{}{}", words(m.at), words(m.local->record), m.gone ? " gone" : "");
  }
  std::string operator()(const closed_generation& m) const {
    return "closed_generation" + words(m.at) + words(m.held) + m.digest + (m.last ? " last" : "");
  }
  std::string operator()(const rank_busy& m) const { return "rank_busy" + words(m.at) + m.what; }
  std::string operator()(const torn_down& m) const { return "torn" + words(m.at) + words(m.late); }
  std::string operator()(const supervision::rank_down& m) const {
    return fmt::format("rank_down {} i{} {}", m.rank, m.incarnation.value(), m.why);
  }
  std::string operator()(const request_stop& m) const {
    return fmt::format("request_stop {}", to_string(m.why));
  }
  std::string operator()(const request_abort& m) const { return "request_abort " + m.why; }
  std::string operator()(const request_scale& m) const {
    return fmt::format("request_scale {}", m.ranks);
  }
  std::string operator()(const process_changed& m) const {
    return fmt::format("process_changed {} {} {}", m.number, static_cast<int>(m.how), m.clean) +
           words(m.what);
  }
  std::string operator()(const deadline_passed& m) const {
    return fmt::format("deadline_passed {}", m.id);
  }
  std::string operator()(const supervision::begin&) const { return "begin"; }
  std::string operator()(const supervision::checkpointer_done& m) const {
    return "checkpointer_done" + words(m.late);
  }
  std::string operator()(const supervision::observers_done& m) const {
    return "observers_done" + words(m.late);
  }
  std::string operator()(const supervision::durable& m) const {
    return "durable " + std::to_string(m.at.steps);
  }
  std::string operator()(const supervision::trouble& m) const { return "trouble" + words(m.what); }
};

}  // namespace

std::string text_of(const supervision::order& what) { return std::visit(message_text{}, what); }
std::string text_of(const supervision::event& what) { return std::visit(message_text{}, what); }

}  // namespace troupe::testing
