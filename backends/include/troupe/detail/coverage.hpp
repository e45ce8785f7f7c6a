// Coverage points: product code reports to the test that runs it which of its paths were taken.
//
//   sometimes(condition, p)  a path that some run of a campaign must take; returns the condition
//   always(condition, p)     an invariant, checked in release builds too: throws internal_error
//   rare(p)                  whether to take a path that is rare by nature; false in production
//
// A point reports to the thread's coverage_sink. The simulator sets the sink only while it runs an
// event on that thread (`coverage_scope`); otherwise it is null, and a point costs one load and one
// branch. The sink is not a port, because machines are regular values and cannot hold one. It is
// not a process-wide global either: simulations on several threads have a sink each.
//
// Machines never call `rare`, because their actions must follow from their events alone. The actors
// around them call it, and turn `true` into something that could have happened anyway: a message
// that arrives twice, a deadline that passes early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe {

enum class coverage_kind : std::uint8_t {
  sometimes,
  always,
  rare,        ///< changes nothing that can be seen from outside
  rare_fault,  ///< may make an operation fail, as a fault of the environment would
};

// Recorded cases store rare points by their number: add a new rare point after the last rare one.
// The texts are part of recorded cases and of reports.
// clang-format off
/// point(kind, name, what it says)
#define TROUPE_COVERAGE_POINTS(point) \
  point(rare_fault, early_deadline, "a deadline of the supervisor is early") \
  point(rare_fault, checkpoint_refused, "a snapshot cannot be encoded") \
  point(rare, early_look, "a rank looks at its lane early") \
  point(rare, sent_twice, "the supervisor says an order twice") \
  point(rare, said_twice, "a rank says a report twice") \
  point(rare, observations_full, "a queue of observations is full") \
  point(always, commit_grows, "committed steps never fall") \
  point(always, stop_not_passed, "no rank has passed the boundary that a stop names") \
  point(always, one_checkpoint_at_a_time, "no checkpoint begins before the last one has ended") \
  point(always, newest_is_kept, "what has just been written is not removed") \
  point(sometimes, rank_fence_refused, "a rank refuses a message of another life or generation") \
  point(sometimes, rank_repeats_report, "a rank is asked again and repeats its report") \
  point(sometimes, rank_closed_in_hook, "a generation closes while a lane is in a hook") \
  point(sometimes, rank_closed_when_finished, "a generation closes over a rank that has finished") \
  point(sometimes, rank_torn_in_hook, "a rank is taken down while its lane is in a hook") \
  point(sometimes, rank_fails_in_closing, "a hook fails while the generation closes") \
  point(sometimes, rank_fails_in_teardown, "a teardown hook fails") \
  point(sometimes, rank_overdue, "a hook runs past its limit") \
  point(sometimes, rank_done_after_all, "a hook that was reported as overdue ends after all") \
  point(sometimes, fence_refused, \
        "the supervisor refuses a message of another life or generation") \
  point(sometimes, old_deadline, "a deadline of an earlier phase passes") \
  point(sometimes, asked_again, "silent ranks are asked again") \
  point(sometimes, asked_in_vain, "ranks were asked as often as they may be") \
  point(sometimes, forming_deadline, "a generation does not form in time") \
  point(sometimes, down_in_forming, "a rank is lost while its generation forms") \
  point(sometimes, down_before_torn, "a rank is lost while it is taken down") \
  point(sometimes, vote_then_failure, "a run fails between the vote on a stop and its end") \
  point(sometimes, stop_before_active, "a stop is asked for before the generation is active") \
  point(sometimes, earlier_cause, "a failure received later is the first cause") \
  point(sometimes, failure_said_twice, "a failure is received twice") \
  point(sometimes, only_followers, "nothing but failures that follow was received in time") \
  point(sometimes, hooks_awaited, "a generation that closes waits for hooks that still run") \
  point(sometimes, closing_survivor, "a rank does not close in time") \
  point(sometimes, teardown_released, "a failure releases an orderly teardown") \
  point(sometimes, teardown_escalates, "a rank is abandoned in its teardown") \
  point(sometimes, flush_in_vain, "the checkpointer does not finish in time") \
  point(sometimes, snapshot_replaced, "a snapshot that waits is replaced by a newer one") \
  point(sometimes, snapshot_of_other_job, "a snapshot of another job is dropped") \
  point(sometimes, write_undone, "a checkpoint whose write failed is undone") \
  point(sometimes, publish_failed, "a checkpoint is renamed, and that cannot be made durable") \
  point(sometimes, retire_failed, "an old checkpoint cannot be removed") \
  point(sometimes, leftovers_swept, "what a crash left half-written is swept") \
  point(sometimes, branch_abandoned, "checkpoints of a branch that was given up are removed") \
  point(sometimes, flush_waits, "an end waits for a checkpoint") \
  point(sometimes, crash_loop, "a failure comes back before a step is committed") \
  point(sometimes, closed_for_good, "a later failure ends a job that was to restart") \
  point(sometimes, no_holder, "no rank holds the state of a committed step") \
  point(sometimes, state_restored, "a rank receives its state from others") \
  point(sometimes, rows_kept, "a rank shows rows that a lost rank may have taken along") \
  point(sometimes, rank_moved, "a rank moves to another process") \
  point(sometimes, one_rank_stays, \
        "all ranks that hold the state would move, and one of them stays") \
  point(sometimes, change_with_failure, "a failure closes a generation that was to change") \
  point(sometimes, change_refused, "a change of the membership is refused") \
  point(sometimes, too_few_processes, "a launcher's processes are too few to go on") \
  point(sometimes, stop_in_change, "a stop replaces a change of the membership") \
  point(sometimes, spare_taken, "a spare takes the ranks of another process") \
  point(sometimes, spare_given_up, "a spare is not ready in time and is given up") \
  point(sometimes, ranks_spread, "ranks of a process go to the processes that are left") \
  point(sometimes, least_processes, "a process is started because there would be too few") \
  point(sometimes, snapshot_withdrawn, \
        "a snapshot that waits in a link is replaced by a newer one") \
  point(sometimes, observation_not_sent, "an observation is dropped before a slow link") \
  point(sometimes, link_full, "a link is lost because its queue is full") \
  point(sometimes, link_silent, "a link is lost by silence")
// clang-format on

enum class coverage_point : std::uint8_t {
#define TROUPE_COVERAGE_POINT(kind, name, text) name,
  TROUPE_COVERAGE_POINTS(TROUPE_COVERAGE_POINT)
#undef TROUPE_COVERAGE_POINT
      count_,
};
inline constexpr std::size_t coverage_point_count =
    static_cast<std::size_t>(coverage_point::count_);

struct known_coverage_point {
  coverage_point which;
  coverage_kind kind;
  std::string_view name;
  std::string_view text;
};
inline constexpr std::array<known_coverage_point, coverage_point_count> coverage_points{{
#define TROUPE_COVERAGE_POINT(kind, name, text) \
  {coverage_point::name, coverage_kind::kind, #name, text},
    TROUPE_COVERAGE_POINTS(TROUPE_COVERAGE_POINT)
#undef TROUPE_COVERAGE_POINT
}};

/// Receives the coverage points of one thread. Its answers must depend on its own state only, or a
/// run could not be repeated.
class coverage_sink {
public:
  virtual ~coverage_sink() = default;
  /// Whether to take the rare path this time.
  virtual bool rare(coverage_point which) = 0;
  /// A path was taken, or an invariant checked.
  virtual void hit(coverage_point which) = 0;
  /// An invariant does not hold. internal_error is thrown next, and any caller may catch it, so the
  /// sink has to remember it.
  virtual void broken(coverage_point which) = 0;
};

namespace coverage {

inline constinit thread_local coverage_sink* sink = nullptr;
[[noreturn]] void broken(coverage_point which);

}  // namespace coverage

/// While it lives, the coverage points of this thread report to `to`; null: to no sink.
class coverage_scope {
public:
  explicit coverage_scope(coverage_sink* to) noexcept : before_(coverage::sink) {
    coverage::sink = to;
  }
  ~coverage_scope() { coverage::sink = before_; }
  coverage_scope(const coverage_scope&) = delete;
  coverage_scope& operator=(const coverage_scope&) = delete;

private:
  coverage_sink* const before_;
};

inline bool rare(coverage_point which) { return coverage::sink && coverage::sink->rare(which); }

inline bool sometimes(bool condition, coverage_point which) {
  if (condition && coverage::sink) coverage::sink->hit(which);
  return condition;
}

inline void always(bool condition, coverage_point which) {
  if (!condition) coverage::broken(which);
  if (coverage::sink) coverage::sink->hit(which);
}

}  // namespace troupe
