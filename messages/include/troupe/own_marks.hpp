// Marks of a user's own code, in a module or an actor: what troupe/detail/marks.hpp is to Troupe's.
// A constant says what a mark means; a test that names it (run_plan::marks) is told whether it was
// ever hit.
//
//   constexpr troupe::own_mark retried{troupe::mark_kind::sometimes, "a sum is asked for again"};
//   if (troupe::sometimes(tries > 1, retried)) ...
//
// In production each costs a load and a branch that is never taken, and `rare` is false. In a
// simulated world they are heard wherever code runs for it, in a learner's hooks too.
#pragma once

#include <string_view>

#include "troupe/detail/marks.hpp"

namespace troupe {

/// Two that say the same are the same mark. `text` must live on: a literal.
struct own_mark {
  mark_kind kind = mark_kind::sometimes;
  std::string_view text;
};

/// A watcher that hears these, too.
class own_marks_watcher : public marks_watcher {
public:
  virtual bool rare(const own_mark& which) = 0;
  virtual void hit(const own_mark& which) = 0;
  virtual void broken(const own_mark& which) = 0;
  using marks_watcher::broken;
  using marks_watcher::hit;
  using marks_watcher::rare;
};

namespace marks {

bool own_rare(const own_mark& which);
void own_hit(const own_mark& which);
[[noreturn]] void own_broken(const own_mark& which);

}  // namespace marks

/// Take the path that hardly ever comes by itself? Where a run may (fault rare_paths), and the test
/// names the mark. One that makes something fail is a `rare_fault`, else an oracle objects.
inline bool rare(const own_mark& which) { return marks::watcher && marks::own_rare(which); }

/// A path that a campaign has to have taken; answers the condition.
inline bool sometimes(bool condition, const own_mark& which) {
  if (condition && marks::watcher) marks::own_hit(which);
  return condition;
}

/// An invariant, checked in release, too: throws internal_error.
inline void always(bool condition, const own_mark& which) {
  if (!condition) marks::own_broken(which);
  if (marks::watcher) marks::own_hit(which);
}

}  // namespace troupe
