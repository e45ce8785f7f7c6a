// What a test brings into a run of its own: a learner, actors, oracles.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/testing/simulated_job.hpp"
#include "backends/simulated/modular_learner.hpp"

namespace troupe::testing {

struct violation;
/// Says what an oracle of the test's own has seen: `complain({"my oracle", "what is wrong"})`.
using complain_fn = std::function<void(violation)>;

/// One for each run, so that nothing of a run reaches the next. Called in the world's one thread.
/// A std::exception from any member ends the run, as a violation (`exception_oracle`); other
/// exceptions (a test framework's) end the test.
class extension {
public:
  virtual ~extension() = default;
  /// The learner of the run: its own, or one around the field's (whose oracles stay on, so it has
  /// to hand it every hook). Called once, before the first attempt.
  virtual recipe_ptr recipe(recipe_ptr inner) { return inner; }
  /// An attempt is about to begin: what its job, and the stage for it, are to be besides.
  virtual void prepares(simulation& in, simulated_job& sim_job, job& what) {
    (void)in, (void)sim_job, (void)what;
  }
  /// An attempt begins; its supervisor is there and has not run. Actors of the test's own are
  /// spawned in `in.system()` and given a place by `in.settle`.
  virtual void begins(simulation& in, simulated_job& sim_job) { (void)in, (void)sim_job; }
  /// Behind every step of every rank.
  virtual void stepped(const finished_step& what, const complain_fn& complain) {
    (void)what, (void)complain;
  }
  /// Behind each attempt that ended by itself.
  virtual void ended(const job_outcome& outcome, const complain_fn& complain) {
    (void)outcome, (void)complain;
  }
};
using extension_fn = std::function<std::unique_ptr<extension>()>;

/// An oracle in one line: what must hold behind every step of every rank. All runs share `holds`,
/// so it keeps nothing of its own between calls: what follows a run is a guest.
extension_fn always(std::string name, std::function<bool(const finished_step&)> holds);
/// A learner around the field's: what the test wants to see survive.
extension_fn trains(std::function<recipe_ptr(recipe_ptr inner)> around);

}  // namespace troupe::testing
