// The protocol checker verifies the supervision of one attempt, whatever is trained: one generation
// at a time, every phase has a deadline, and every rank answers or is named. For supervisors of one
// generation.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "actors/time_knob.hpp"
#include "apps/testing/job_oracles.hpp"
#include "messages/control.hpp"

namespace troupe::testing {

/// Receives the supervisor's announcements and the messages that have crossed a rank's link. Never
/// throws.
class protocol_checker {
public:
  static constexpr const char* one_generation = "one generation is active";
  static constexpr const char* answered = "every rank answers or is named";
  static constexpr const char* deadline = "a phase ends in its deadline";

  /// `checks` counts the checks; `violate` receives the violations.
  protocol_checker(std::uint64_t& checks, std::function<void(violation)> violate)
      : checks_(checks), violate_(std::move(violate)) {}

  void attempt_begins(std::int32_t ranks, deadlines limits);
  void announced(const seen::lifecycle& what, std::chrono::nanoseconds now);
  /// A report has reached the supervisor.
  void reported(std::int32_t rank, const caf::message& what);
  /// A rank of the attempt's job has finished a step. Survivors of the job may still do so.
  void stepped(std::int32_t rank, std::int64_t step);
  /// The job's outcome is known. `gone`: whether the supervisor was notified that the rank ended,
  /// or the rank runs beside the supervisor, where no link is observed.
  void ended(const job_outcome& outcome, const attempt_facts& facts,
             const std::function<bool(std::int32_t rank)>& gone, std::chrono::nanoseconds now);

private:
  struct member {
    bool closed = false;  ///< it has reported that its generation is closed
    bool torn = false;
  };
  enum class phase : std::uint8_t { idle, forming, active, closing, tearing, ending, over };
  struct passed {
    phase what;
    std::chrono::nanoseconds took;
  };
  /// `text()` is called only for a violation.
  template <class Text>
  void judge(bool holds, const char* oracle, Text text, std::int64_t step, std::int32_t rank) {
    ++checks_;
    if (!holds) violate_({oracle, text(), step, rank});
  }
  void turn_to(phase next, std::chrono::nanoseconds now);
  std::chrono::nanoseconds limit_of(phase p) const;

  std::uint64_t& checks_;
  std::function<void(violation)> violate_;
  deadlines limits_;
  std::vector<member> members_;
  phase now_ = phase::idle;
  std::chrono::nanoseconds since_{0};
  std::uint64_t forming_ = 0;  // the generation
  std::vector<passed> passed_;
};

}  // namespace troupe::testing
