// The protocol checker verifies the supervision of one attempt, whatever is trained: one generation
// at a time, no more generations than failures and requests allow, every phase has a deadline, and
// every rank answers or is named.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "actors/time_knob.hpp"
#include "apps/testing/job_oracles.hpp"
#include "messages/link.hpp"

namespace troupe::testing {

/// The newest incarnation of a rank at the end of its job.
struct last_life {
  incarnation_id incarnation;
  /// The supervisor was notified that the rank ended, or the rank runs beside the supervisor, where
  /// no link is observed.
  bool gone = false;
};

/// Receives the supervisor's announcements and the messages that have crossed a rank's link. Never
/// throws.
class protocol_checker {
public:
  static constexpr const char* one_generation = "one generation is active";
  static constexpr const char* answered = "every rank answers or is named";
  static constexpr const char* deadline = "a phase ends in its deadline";
  static constexpr const char* budget = "restarts stay within their budget";

  /// `checks` counts the checks; `violate` receives the violations.
  protocol_checker(std::uint64_t& checks, std::function<void(violation)> violate)
      : checks_(checks), violate_(std::move(violate)) {}

  /// `reported` receives the messages of ranks with `links`. Any other rank may be busy.
  void attempt_begins(std::int32_t ranks, deadlines limits, std::int32_t max_restarts = 0,
                      bool links = true);
  void announced(const seen::lifecycle& what, std::chrono::nanoseconds now);
  /// A process was asked to leave, or the job to scale.
  void change_requested() { ++requested_; }
  /// A rank's report has reached the supervisor.
  void reported(const link_message& what);
  /// A rank of the attempt's job has finished a step in a generation. Survivors of the job and
  /// incarnations that were replaced may still do so.
  void stepped(std::int32_t rank, incarnation_id incarnation, std::uint64_t generation,
               std::int64_t step);
  /// The job's outcome is known. `last`: the newest incarnation of each rank.
  void ended(const job_outcome& outcome, const attempt_facts& facts,
             const std::function<last_life(std::int32_t rank)>& last, std::chrono::nanoseconds now);
  /// How many generations the attempt has formed.
  std::int32_t generations() const { return formed_ + planned_; }

private:
  struct member {
    std::uint64_t left = 0;  ///< generations up to this one are closed for it
    bool torn = false;
  };
  enum class phase : std::uint8_t { idle, forming, active, closing, tearing, ending, over };
  struct passed {
    phase what;
    std::chrono::nanoseconds took;
    bool busy;  ///< a rank may have run a hook within its limit
  };
  /// `text()` is called only for a violation.
  template <class Text>
  void judge(bool holds, const char* oracle, Text text, std::int64_t step, std::int32_t rank) {
    ++checks_;
    if (!holds) violate_({oracle, text(), step, rank});
  }
  void turn_to(phase next, std::chrono::nanoseconds now);
  std::chrono::nanoseconds limit_of(const passed& p) const;

  std::uint64_t& checks_;
  std::function<void(violation)> violate_;
  deadlines limits_;
  std::int32_t ranks_ = 0;
  std::int32_t max_restarts_ = 0;
  std::int32_t formed_ = 0;   // the first generation, and those after a failure
  std::int32_t planned_ = 0;  // those after a change without a failure
  std::int32_t requested_ = 0;
  bool changes_ = false;   // the generation closes for such a change
  bool replaced_ = false;  // it closes because its checkpoint was removed
  std::map<incarnation_id, member> members_;
  phase now_ = phase::idle;
  std::chrono::nanoseconds since_{0};
  std::uint64_t forming_ = 0;  // the newest generation
  std::uint64_t active_ = 0;   // the newest one that was active
  bool progress_ = false;      // of a rank that was not prepared: it has more time then
  bool links_ = true;
  bool busy_ = false;  // a rank may run a hook within its limit in this phase
  std::vector<passed> passed_;
};

}  // namespace troupe::testing
