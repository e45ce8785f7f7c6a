// Whether another generation follows one that fails, and what a job keeps of the generations that
// are over. A part of the supervisor machine. docs/elastic.md has the rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/failure_record.hpp"
#include "actors/generation_base.hpp"
#include "actors/membership.hpp"
#include "actors/restart_budget.hpp"
#include "actors/supervisor_events.hpp"

namespace troupe {

/// A regular value.
class recovery {
public:
  /// What a decision reads of the generation in progress. A view of the supervisor's members.
  struct situation {
    const supervision::rules& rules;
    const membership& members;
    const generation_base& base;
    const failure_record& failures;
    std::int64_t committed = 0;
    bool in_processes = false;  ///< ranks live in processes of their own
    bool too_few = false;       ///< placements::too_few
  };

  explicit recovery(const elastic_options& rules) : budget_(rules) {}

  /// The time of the next calls, by a monotonic clock.
  void at(std::chrono::nanoseconds now) { now_ = now; }
  /// A checkpoint is durable, which the job has come to with this.
  void saved(const progress& at) { durable_ = at; }
  /// Of the checkpoint that was reported last.
  const progress& durable() const { return durable_; }
  /// A step was committed.
  void advanced() { budget_.end_wait(); }

  /// A failure came that no restart cures: the job ends with this generation.
  void end_job() { must_end_ = true; }
  bool must_end() const { return must_end_; }
  /// The caller wants the job to end at once.
  void abort() { must_end_ = aborted_ = true; }
  bool aborted() const { return aborted_; }
  /// Whether the job may form another generation after this one, whose failures are known.
  bool may_restart(const situation& now) const;
  /// Ranks that have not closed run hooks, within the limit of a hook, and will close after them.
  /// Without them the job would lose steps, or their processes for good; a change of the membership
  /// would fail; or with `over`, the checkpoint that rank 0 saves when the job fails would be lost.
  bool needs_unclosed(const situation& now, bool over) const;
  /// How long the job rests before that.
  std::chrono::nanoseconds rest(std::int64_t committed) const { return budget_.rest(committed); }
  /// Charges the budget for the failure. Returns true if the job begins to wait for a process.
  bool count_restart(const situation& now);
  /// Until the wait ends, a new process is only the last resort for a rank.
  bool waits() const { return budget_.waits(); }
  /// The generation is over, and another one follows.
  void add(supervision::generation_end over, std::int64_t committed);

  /// The generations that are over, oldest first.
  const std::vector<supervision::generation_end>& ended() const { return ended_; }
  /// What observers receive about a generation that follows another one.
  std::map<std::string, std::string> why_forming(std::int64_t committed) const;

  void add_to(stable_hasher& hash) const;
  friend bool operator==(const recovery&, const recovery&) = default;

private:
  friend struct supervisor_history;  // of the exhaustive search

  bool is_free(const situation& now) const;
  bool waits_for_processes(const situation& now) const;
  bool is_crash_loop(const situation& now) const;

  restart_budget budget_;
  std::chrono::nanoseconds now_{0};
  progress durable_;
  bool must_end_ = false;
  bool aborted_ = false;
  std::vector<supervision::generation_end> ended_;
};

}  // namespace troupe
