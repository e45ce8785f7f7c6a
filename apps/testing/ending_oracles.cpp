// The oracles of a job's end: its cause, who is left, how long it took.
#include "apps/testing/job_oracles.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "troupe/detail/stable_hash.hpp"

namespace troupe::testing {

namespace {

const std::string& oracle(std::size_t number) { return known_oracles()[number]; }

// Faults that can keep a rank from answering for a while.
constexpr std::initializer_list<fault> delaying{fault::pause,       fault::slow,       fault::cut,
                                                fault::one_way_cut, fault::data_cut,   fault::skew,
                                                fault::late_timers, fault::slow_reader};

constexpr std::initializer_list<fault> ending_a_rank{fault::crash_rank, fault::crash_host,
                                                     fault::disconnect};

bool slow_disk(const attempt_facts& facts) {
  return facts.storage.has(fault::storage_hang) || facts.storage.has(fault::storage_slow);
}

std::string at(const failure& f) {
  return render(f) + " [" + f.type + ", rank " + std::to_string(f.rank) + ", hook " + f.hook +
         ", step " + std::to_string(f.step) + "]";
}

// The outcome names the rank as a survivor.
bool is_left_behind(const job_outcome& outcome, std::int32_t rank) {
  const auto name = "rank " + std::to_string(rank) + ":";
  return std::ranges::any_of(outcome.survivors,
                             [&](const std::string& s) { return s.starts_with(name); });
}

// The rank ended without its last report when all was done.
bool was_lost_late(const job_outcome& outcome, std::int32_t rank) {
  return std::ranges::any_of(outcome.late, [&](const failure& f) {
    return f.rank == rank && f.kind != failure_kind::exception;
  });
}

}  // namespace

void job_oracles::first_cause(const failure& first, const attempt_facts& facts) {
  const bool disturbed = facts.rare || facts.any(ending_a_rank) || facts.any(delaying);
  const auto is_throw = [&](const raised& r) {
    return r.rank == first.rank && r.hook == first.hook && r.type == first.type &&
           r.what == first.what;
  };
  if (std::ranges::any_of(facts.thrown, is_throw)) {
    check(true);
    return;
  }
  if (first.kind == failure_kind::aborted) {
    if (!check(facts.any({fault::abort})))
      violate({oracle(3), "no abort was requested: " + at(first), first.step, first.rank});
    return;
  }
  if (first.hook == hooks::save_checkpoint::name && first.code == errc::checkpoint) {
    if (!check(disturbed || !facts.storage.empty()))
      violate({oracle(4), at(first), first.step, first.rank});
    return;
  }
  if (!check(!facts.thrown.empty() || disturbed))
    return violate({oracle(4), at(first), first.step, first.rank});
  if (!check(disturbed))
    return violate({oracle(3), at(first) + " instead of " + facts.thrown.front().what, first.step,
                    first.rank});
  // A forming deadline names its ranks in its text, and so does a rank that waited in a collective
  // for a disturbed rank.
  const bool waited = first.type == "troupe::collective_timeout" && facts.any(delaying);
  // When the report of the rank that threw is late, one that follows and quotes it comes first.
  const auto quoted = [&](const raised& r) { return first.what.find(r.what) != std::string::npos; };
  const bool follows = first.type == "troupe::generation_closed" && facts.any(delaying) &&
                       std::ranges::any_of(facts.thrown, quoted);
  if (!check(facts.rare || facts.program || waited || follows || first.rank < 0 ||
             facts.concerned(first.rank)))
    violate({oracle(3), "this rank had no fault: " + at(first), first.step, first.rank});
}

// A throw, the death of a process or an abort does not excuse a rank that did not answer in time.
void job_oracles::survivors(const job_outcome& outcome, const attempt_facts& facts) {
  for (const auto& s : outcome.survivors) {
    const bool rank = s.starts_with("rank ");
    const bool deaf =
        facts.observer == test_observer::slow || facts.observer == test_observer::dead;
    // Silence does not show the death of a host before its process has sent anything.
    const bool excused = facts.program ? facts.any(delaying)
                         : rank        ? (facts.any(delaying) || facts.any({fault::crash_host})) &&
                                      facts.concerned(std::stoi(s.substr(5)))
                                : (slow_disk(facts) && s.starts_with("checkpointer")) ||
                                      (deaf && s.starts_with("observer"));
    // On a rare path a deadline passes early.
    if (!check(excused || facts.rare)) violate({oracle(6), s});
  }
}

// A job that finishes has written its last checkpoint.
void job_oracles::saved(const job_outcome& outcome) {
  const auto at_end = outcome.loop.steps;
  if (!check(written_ == at_end || (written_ < 0 && resumed_at_ == at_end)))
    violate({oracle(18), "the last checkpoint is of step " + std::to_string(written_), at_end});
}

void job_oracles::ended(const job_outcome& outcome, const attempt_facts& facts) {
  const bool failed = outcome.status == job_outcome::ending::failed;
  if (failed) first_cause(outcome.failed_with->record, facts);
  ends_of_generations(outcome, facts);
  if (!failed) saved(outcome);
  const auto most = facts.expected + facts.delayed;
  if (!check(facts.took <= most))
    violate({oracle(12), fmt::format("it took {} ms, more than {} ms",
                                     facts.took.count() / 1'000'000, most.count() / 1'000'000)});
  // An exception during the teardown of a rank that is abandoned or lost then is not reported.
  const auto ended_generation = [&](std::uint64_t generation) {
    return std::ranges::any_of(outcome.generations, [&](const generation_record& g) {
      return g.generation == generation && g.ended_by;
    });
  };
  // In the teardown of a rank that has moved.
  const auto late = [&](const auto& thrown) {
    return std::ranges::any_of(outcome.late, [&](const failure& f) {
      return f.rank == thrown.rank && f.hook == thrown.hook && f.what == thrown.what;
    });
  };
  const auto unreported = [&](const auto& thrown) {
    return thrown.hook == "on_exception" || ended_generation(thrown.generation) || late(thrown) ||
           (thrown.hook == "teardown" &&
            (is_left_behind(outcome, thrown.rank) || was_lost_late(outcome, thrown.rank)));
  };
  if (!failed)
    for (const auto& r : facts.thrown)
      if (!check(unreported(r)))
        violate({oracle(5), "the job finished although a hook threw: " + r.what, r.step, r.rank});
  const bool disturbed = facts.rare || !facts.thrown.empty() || facts.any(delaying) ||
                         facts.any(ending_a_rank) || facts.any({fault::abort});
  survivors(outcome, facts);
  const auto by_observer = [&](const failure& f) {
    return facts.observer == test_observer::throws && f.hook == "observer";
  };
  const auto refused = [&](const failure& f) {
    return f.code == errc::bad_usage && facts.any({fault::leave, fault::scale});
  };
  for (const auto& f : outcome.late)
    if (!check(by_observer(f) || refused(f) || disturbed || !facts.storage.empty()))
      violate({oracle(7), at(f), f.step, f.rank});
  if (!check(outcome.loop.steps <= least_held()))
    violate({oracle(8), "committed, but a rank holds only " + std::to_string(least_held()),
             outcome.loop.steps});
}

// Every generation but the last one was ended by a failure, and each failure has an injected cause.
void job_oracles::ends_of_generations(const job_outcome& outcome, const attempt_facts& facts) {
  const auto& all = outcome.generations;
  const auto is_planned = [](const auto& g) { return g.changed != membership_change::none; };
  const auto formed = static_cast<std::size_t>(outcome.restarts) + 1 +
                      static_cast<std::size_t>(std::ranges::count_if(all, is_planned));
  if (!check(outcome.restarts == 0 || all.size() == formed))
    violate({oracle(31), std::to_string(all.size()) + " generations after " +
                             std::to_string(outcome.restarts) + " restarts"});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i + 1 < all.size() && !check(all[i].ended_by != nullptr || is_planned(all[i])))
      violate({oracle(31),
               "generation " + std::to_string(all[i].generation) + " ended without a failure"});
    if (i > 0 && !check(all[i].generation > all[i - 1].generation))
      violate({oracle(31), "generation " + std::to_string(all[i].generation) + " comes after " +
                               std::to_string(all[i - 1].generation)});
    if (i > 0 && is_planned(all[i - 1]) &&
        !check(all[i].steps_redone == 0 && facts.any({fault::leave, fault::scale})))
      violate({oracle(32), "generation " + std::to_string(all[i].generation) + " redoes " +
                               std::to_string(all[i].steps_redone) + " steps"});
    if (all[i].ended_by) first_cause(*all[i].ended_by, facts);
  }
}

// Abandoned ranks may still run.
void job_oracles::program_ended(const std::vector<std::string>& left, const job_outcome& outcome) {
  const auto named = [&](const std::string& node) {
    const auto who = node == "supervisor" ? std::string{"checkpointer"} : node;
    return std::ranges::any_of(outcome.survivors,
                               [&](const std::string& s) { return s.starts_with(who + ":"); });
  };
  for (const auto& node : left)
    if (!check(named(node)))
      violate({oracle(14), "the program has ended, but actors are alive on " + node});
  if (left.empty()) check(true);
}

void job_oracles::result_is_the_weights(const job_outcome& outcome) {
  const auto* list = outcome.result.get_if<value_list>();
  const auto& should = reference_.after(job_.steps).weights;
  bool same = list && list->items.size() == should.size();
  for (std::size_t i = 0; same && i < should.size(); ++i) {
    const auto* x = list->items[i].get_if<std::int64_t>();
    same = x && static_cast<std::uint64_t>(*x) == should[i];
  }
  stable_hasher digest;
  if (list)
    for (const auto& item : list->items)
      if (const auto* x = item.get_if<std::int64_t>()) digest.add(*x);
  digest_ = fmt::format("{:016x}", digest.digest());
  // The result comes with the last message of rank 0. A survivor keeps it. A rank that dies in the
  // teardown, when all steps are done, takes it along: then the last snapshot has the weights.
  const auto of_rank_0 = [](const failure& f) { return f.rank == 0; };
  if (!list && job_.max_restarts > 0 && std::ranges::any_of(outcome.late, of_rank_0))
    same = !outcome.weights || modular_state_of(*outcome.weights).weights == should;
  if (!check(same || is_left_behind(outcome, 0)))
    violate({oracle(11), "the result is not the weights", job_.steps, 0});
}

}  // namespace troupe::testing
