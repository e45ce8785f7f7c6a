// What the terminal shows while a job runs, at the moment when it happens.
#pragma once

#include "apps/troupe/console.hpp"
#include "troupe/failure.hpp"
#include "troupe/observer.hpp"

#include <functional>
#include <memory>
#include <string>

namespace troupe::program {

/// The name under which a learner logs how many steps had a loss that was not finite.
inline constexpr const char* non_finite_steps = "train/non_finite_steps";

/// Makes observers that report failures while the training goes on. The job's outcome would report
/// them at the end only. Thread-safe; `screen` must outlive the observers.
class trouble_report {
public:
  explicit trouble_report(console& screen);

  /// Reports the first of several failed checkpoints in a row and the next one that succeeds.
  /// Reports a new generation after a failure. Warns once when a metric is not finite, and once
  /// when `misplaced` returns a text: it is asked after each checkpoint.
  observer_factory watch(std::function<std::string()> misplaced = {}) const;
  /// Wraps the observer that `make` makes, which writes `file`. After an error of the file system
  /// the observer continues, and must leave its file whole. The first such error is reported at
  /// once, the number of lost lines at the end. Any other exception is reported and ends it.
  observer_factory around(observer_factory make, std::string file) const;

  /// Whether the terminal already shows this late failure of the job.
  bool reported(const failure& late) const;

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe::program
