// Marks: what product code says about its own paths to whoever tests it.
//
//   sometimes(condition, m)  a path that a campaign has to have taken; answers the condition
//   always(condition, m)     an invariant, checked in release, too: throws internal_error
//   rare(m)                  take the path that hardly ever comes by itself? false in production
//
// A mark reaches a simulated world through one pointer per thread, which is null but while that
// world lets something happen on that thread (`coverage_scope`). It is no port: machines are
// regular values, and one that held a port would not be. It is no global: worlds side by side on
// threads do not see each other, and product code can do nothing with the pointer but what the
// three functions do. In production a mark costs a load and a branch that is never taken.
//
// Machines never ask `rare`: what a machine does follows from what it hears. Shells ask, and turn
// the answer into what could have come by itself: a message said twice, a deadline that is early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe {

enum class coverage_kind : std::uint8_t {
  sometimes,
  always,
  rare,        ///< changes nothing that anybody can see from outside
  rare_fault,  ///< may fail what it strikes, as a fault of the outside would
};

// A case names rare ones by their number, so new rare ones go behind the last of them.
// clang-format off
/// mark(kind, name, what it says)
#define TROUPE_COVERAGE_POINTS(mark) \
  mark(rare_fault, early_deadline, "a deadline of the supervisor is early") \
  mark(rare_fault, checkpoint_refused, "a snapshot can not be encoded") \
  mark(rare, early_look, "a rank looks at its lane early") \
  mark(rare, told_twice, "the supervisor says an order twice") \
  mark(rare, said_twice, "a rank says a report twice") \
  mark(rare, observations_full, "a queue of observations is full") \
  mark(always, commit_grows, "committed steps never fall") \
  mark(always, stop_not_passed, "no rank has passed the boundary that a stop names") \
  mark(always, one_checkpoint_at_a_time, "no checkpoint begins before the last one has ended") \
  mark(always, newest_is_kept, "what has just been written is not removed") \
  mark(always, heard_is_sent, "a link hears of no message that was not sent") \
  mark(sometimes, rank_fence_refused, "a rank refuses a message of another life or generation") \
  mark(sometimes, rank_old_answer, "a rank hears the answer to an older run") \
  mark(sometimes, rank_repeats_report, "a rank is asked again and repeats its report") \
  mark(sometimes, rank_closed_in_hook, "a generation closes while a lane is in a hook") \
  mark(sometimes, rank_closed_when_finished, "a generation closes over a rank that has finished") \
  mark(sometimes, rank_torn_in_hook, "a rank is taken down while its lane is in a hook") \
  mark(sometimes, rank_fails_in_closing, "a hook fails while the generation closes") \
  mark(sometimes, rank_fails_in_teardown, "a teardown hook fails") \
  mark(sometimes, rank_overdue, "a hook runs past its limit") \
  mark(sometimes, rank_done_after_all, "a hook that was reported as overdue ends after all") \
  mark(sometimes, rank_orphaned, "a rank ends because its supervisor is gone") \
  mark(sometimes, fence_refused, "the supervisor refuses a message of another life or generation") \
  mark(sometimes, old_deadline, "a deadline of an earlier phase passes") \
  mark(sometimes, asked_again, "silent ranks are asked again") \
  mark(sometimes, asked_in_vain, "ranks were asked as often as they may be") \
  mark(sometimes, forming_deadline, "a generation does not form in time") \
  mark(sometimes, down_in_forming, "a rank is lost while its generation forms") \
  mark(sometimes, down_before_torn, "a rank is lost while it is taken down") \
  mark(sometimes, vote_then_failure, "a run fails between the vote on a stop and its end") \
  mark(sometimes, stop_before_active, "a stop is asked for before the generation is active") \
  mark(sometimes, earlier_cause, "a failure heard later is the first cause") \
  mark(sometimes, failure_said_twice, "a failure is heard twice") \
  mark(sometimes, only_followers, "nothing but failures that follow was heard in time") \
  mark(sometimes, closing_survivor, "a rank does not close in time") \
  mark(sometimes, teardown_released, "a failure releases an orderly teardown") \
  mark(sometimes, teardown_escalates, "a rank is abandoned in its teardown") \
  mark(sometimes, failure_after_ranks, "something fails when all ranks are gone") \
  mark(sometimes, flush_in_vain, "the checkpointer does not finish in time") \
  mark(sometimes, snapshot_replaced, "a snapshot that waits is replaced by a newer one") \
  mark(sometimes, snapshots_given_up, "the oldest of too many snapshots is given up") \
  mark(sometimes, snapshot_of_old_generation, "a snapshot of an older generation is dropped") \
  mark(sometimes, snapshot_of_other_job, "a snapshot of another job is dropped") \
  mark(sometimes, write_undone, "a checkpoint whose write failed is undone") \
  mark(sometimes, publish_failed, "a checkpoint is renamed, and that can not be made durable") \
  mark(sometimes, retire_failed, "an old checkpoint can not be removed") \
  mark(sometimes, leftovers_swept, "what a crash left half-written is swept") \
  mark(sometimes, branch_abandoned, "checkpoints of a branch that was given up are removed") \
  mark(sometimes, flush_waits, "an end waits for a checkpoint") \
  mark(sometimes, link_gap, "a link holds what came before its turn") \
  mark(sometimes, link_repeat, "a link drops what it has heard before") \
  mark(sometimes, link_sends_again, "a link sends again what was not acknowledged") \
  mark(sometimes, link_silent, "a link is lost by silence") \
  mark(sometimes, link_full, "a link is lost by too much that waits")
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

/// Hears the marks of one thread. What it does must not depend on anything but itself, or runs
/// could not be repeated.
class coverage_sink {
public:
  virtual ~coverage_sink() = default;
  /// Whether the rare path is to be taken, this time.
  virtual bool rare(coverage_point which) = 0;
  /// A path was taken, or an invariant checked.
  virtual void hit(coverage_point which) = 0;
  /// An invariant does not hold; internal_error is thrown next, and may be caught by anybody.
  virtual void broken(coverage_point which) = 0;
};

namespace coverage {

inline constinit thread_local coverage_sink* sink = nullptr;
[[noreturn]] void broken(coverage_point which);

}  // namespace coverage

/// For as long as it lives, marks on this thread go to `to` (null: to nobody).
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
