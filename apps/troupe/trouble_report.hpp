// What the terminal shows while a job runs, at the moment when it happens.
#pragma once

#include "apps/troupe/console.hpp"
#include "troupe/failure.hpp"
#include "troupe/observer.hpp"

#include <memory>
#include <string>

namespace troupe::program {

/// The name under which a learner logs how many steps had a loss that was not finite.
inline constexpr const char* non_finite_steps = "train/non_finite_steps";

/// Makes observers that tell of what goes wrong beside the training itself, which goes on: the
/// job's outcome would tell of it at the end only. Thread-safe; `screen` must outlive those
/// observers.
class trouble_report {
public:
  explicit trouble_report(console& screen);

  /// Tells of the first checkpoint of a row that was not written, of the one that ends the row, and
  /// of a new generation after a failure. Warns once when a metric is not finite.
  observer_factory watch() const;
  /// The observer that `make` makes, which writes `file`. It goes on after an error of the file
  /// system (it has to leave its file whole), which is told once, and the lost lines are counted at
  /// the end. What else it throws is told, and ends it.
  observer_factory around(observer_factory make, std::string file) const;

  /// Whether the terminal was told of this late failure of the job.
  bool told(const failure& late) const;

private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace troupe::program
