// The front door for programs: runs a job and waits for it. A thin face of `session`.
#pragma once

#include "troupe/job.hpp"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// What a trainer's jobs have in common besides their options.
struct trainer_surroundings {
  std::string run_folder;
  std::optional<std::string> resume;  ///< see job::resume
  snapshot_ptr initial;
  std::vector<observer_factory> observers;
  std::function<void(std::int32_t rank, const hook& what)> trace;
};

/// `troupe::trainer t{{.ranks = 2, .max_epochs = 3}}; auto outcome = t.fit<classifier>(data);`
/// Each call is a job of its own in a session of its own, on the calling thread's time; value or
/// the first failure, never a hang. `fit<M>(data, arguments...)` makes each rank's module as
/// `M(arguments...)`; `recipe_for<M>` is found where modules are defined
/// (troupe/module.hpp). Not thread-safe; several trainers may run at once.
class trainer {
public:
  explicit trainer(trainer_options options = {}, trainer_surroundings around = {})
      : options_(std::move(options)), around_(std::move(around)) {}

  template <class Module, class Data, class... Arguments>
  job_outcome fit(Data data, Arguments... arguments) {
    return run(stage::train, recipe_for<Module>(std::move(data), std::move(arguments)...));
  }
  /// Evaluation starts from the weights of the last fit, from `resume`, or from the module's own.
  template <class Module, class Data, class... Arguments>
  job_outcome validate(Data data, Arguments... arguments) {
    return run(stage::validate, recipe_for<Module>(std::move(data), std::move(arguments)...));
  }
  template <class Module, class Data, class... Arguments>
  job_outcome test(Data data, Arguments... arguments) {
    return run(stage::test, recipe_for<Module>(std::move(data), std::move(arguments)...));
  }
  template <class Module, class Data, class... Arguments>
  job_outcome predict(Data data, Arguments... arguments) {
    return run(stage::predict, recipe_for<Module>(std::move(data), std::move(arguments)...));
  }

  job_outcome run(stage purpose, recipe_ptr recipe);

private:
  trainer_options options_;
  trainer_surroundings around_;
  snapshot_ptr trained_;
};

}  // namespace troupe
