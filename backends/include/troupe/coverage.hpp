// Coverage points in a user's own module or actor, as troupe/detail/coverage.hpp has them
// for Troupe's code. A constant says what the point means. A test that lists it (run_plan::marks)
// learns how often it was hit.
//
//   using troupe::coverage_kind;
//   constexpr troupe::user_coverage retried{coverage_kind::sometimes, "a sum is requested again"};
//   if (troupe::sometimes(tries > 1, retried)) ...
//
// In production each costs one load and one branch, and `rare` is false. In a simulated run they
// report wherever code of that run executes, also in a learner's hooks.
#pragma once

#include <string_view>

#include "troupe/detail/coverage.hpp"

namespace troupe {

/// Points with equal text are the same point. `text` must outlive the run: use a literal.
struct user_coverage {
  /// Which of the functions below takes it.
  coverage_kind kind = coverage_kind::sometimes;
  /// What the point means, for reports.
  std::string_view text;
};

/// A sink that receives the user's points too.
class user_coverage_sink : public coverage_sink {
public:
  /// Whether to take the rare path `which`. Called by the thread that runs the simulated event.
  virtual bool rare(const user_coverage& which) = 0;
  /// A path was taken, or an invariant held.
  virtual void hit(const user_coverage& which) = 0;
  /// An invariant does not hold; internal_error is thrown after it.
  virtual void broken(const user_coverage& which) = 0;
  using coverage_sink::broken;
  using coverage_sink::hit;
  using coverage_sink::rare;
};

namespace coverage {

/// What rare, sometimes and always call while the thread has a sink; a sink that is no
/// user_coverage_sink is left out. user_broken throws internal_error.
/// @{
bool user_rare(const user_coverage& which);
void user_hit(const user_coverage& which);
[[noreturn]] void user_broken(const user_coverage& which);
/// @}

}  // namespace coverage

/// Whether to take a rare path. True only if the run allows the fault `rare_paths` and the test
/// lists the point. A point that makes an operation fail must be a `rare_fault`; an oracle checks.
inline bool rare(const user_coverage& which) {
  return coverage::sink && coverage::user_rare(which);
}

/// A path that some run of a campaign must take; returns the condition.
inline bool sometimes(bool condition, const user_coverage& which) {
  if (condition && coverage::sink) coverage::user_hit(which);
  return condition;
}

/// An invariant, checked in release builds too: throws internal_error.
inline void always(bool condition, const user_coverage& which) {
  if (!condition) coverage::user_broken(which);
  if (coverage::sink) coverage::user_hit(which);
}

}  // namespace troupe
