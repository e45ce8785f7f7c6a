// Extensions add a test's own learner, actors and oracles to simulated runs.
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
/// Reports a violation of the test's own oracle: `complain({"my oracle", "what is wrong"})`.
using complain_fn = std::function<void(violation)>;

/// Each run makes its own object, so runs share no state. Called on the simulation's only thread. A
/// std::exception from a member ends the run with a violation (`exception_oracle`); other
/// exceptions, such as a test framework's, end the test.
class extension {
public:
  virtual ~extension() = default;
  /// Returns the learner of the run: its own, or one around `inner`, the integer learner. A wrapper
  /// must forward every hook, because the oracles stay on. Called once, before the first attempt.
  virtual recipe_ptr recipe(recipe_ptr inner) { return inner; }
  /// Called before an attempt begins. May change its job and the simulated job's settings.
  virtual void prepares(simulation& in, simulated_job& sim_job, job& what) {
    (void)in, (void)sim_job, (void)what;
  }
  /// Called when an attempt begins: its supervisor exists and has not run yet. The test spawns its
  /// actors in `in.system()` and assigns each to a node with `in.settle`.
  virtual void begins(simulation& in, simulated_job& sim_job) { (void)in, (void)sim_job; }
  /// Called after every step of every rank.
  virtual void stepped(const finished_step& what, const complain_fn& complain) {
    (void)what, (void)complain;
  }
  /// Called after each attempt that ended by itself.
  virtual void ended(const job_outcome& outcome, const complain_fn& complain) {
    (void)outcome, (void)complain;
  }
};
/// Never returns null.
using extension_fn = std::function<std::unique_ptr<extension>()>;

/// An oracle in one line: `holds` must be true after every step of every rank. All runs share
/// `holds`, so it must not keep state between calls; an oracle with state is an extension.
extension_fn always(std::string name, std::function<bool(const finished_step&)> holds);
/// Wraps the integer learner in another one, whose behaviour the test checks.
extension_fn trains(std::function<recipe_ptr(recipe_ptr inner)> around);

}  // namespace troupe::testing
