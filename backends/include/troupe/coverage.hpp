// Marks of a user's own code, in a module or an actor: what troupe/detail/coverage.hpp is to
// Troupe's. A constant says what a mark means; a test that names it (run_plan::marks) is told
// whether it was ever hit.
//
//   constexpr troupe::user_coverage retried{troupe::coverage_kind::sometimes, "a sum is asked for again"};
//   if (troupe::sometimes(tries > 1, retried)) ...
//
// In production each costs a load and a branch that is never taken, and `rare` is false. In a
// simulated world they are heard wherever code runs for it, in a learner's hooks too.
#pragma once

#include <string_view>

#include "troupe/detail/coverage.hpp"

namespace troupe {

/// Two that say the same are the same mark. `text` must live on: a literal.
struct user_coverage {
  coverage_kind kind = coverage_kind::sometimes;
  std::string_view text;
};

/// A watcher that hears these, too.
class user_coverage_sink : public coverage_sink {
public:
  virtual bool rare(const user_coverage& which) = 0;
  virtual void hit(const user_coverage& which) = 0;
  virtual void broken(const user_coverage& which) = 0;
  using coverage_sink::broken;
  using coverage_sink::hit;
  using coverage_sink::rare;
};

namespace coverage {

bool user_rare(const user_coverage& which);
void user_hit(const user_coverage& which);
[[noreturn]] void user_broken(const user_coverage& which);

}  // namespace coverage

/// Take the path that hardly ever comes by itself? Where a run may (fault rare_paths), and the test
/// names the mark. One that makes something fail is a `rare_fault`, else an oracle objects.
inline bool rare(const user_coverage& which) {
  return coverage::sink && coverage::user_rare(which);
}

/// A path that a campaign has to have taken; answers the condition.
inline bool sometimes(bool condition, const user_coverage& which) {
  if (condition && coverage::sink) coverage::user_hit(which);
  return condition;
}

/// An invariant, checked in release, too: throws internal_error.
inline void always(bool condition, const user_coverage& which) {
  if (!condition) coverage::user_broken(which);
  if (coverage::sink) coverage::user_hit(which);
}

}  // namespace troupe
