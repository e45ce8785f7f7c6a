// The front door for programs: runs a job and waits for it. `session` is the same without waiting.
#pragma once

#include "troupe/job.hpp"
#include "troupe/ports.hpp"

#include <type_traits>
#include <utility>

namespace troupe {

/// `troupe::trainer t{{.ranks = 2, .max_epochs = 3}}; auto outcome = t.fit<classifier>(data);`
///
/// - `fit<M>(data, arguments...)` makes each rank's module as `M(arguments...)`. Plug-ins come
///   first: `fit<M>(torch_plugins{...}, data, arguments...)` (troupe/recipe.hpp).
/// - Each call runs a job of its own in a session of its own and waits for it in the calling
///   thread. It returns the outcome or the first failure; it does not throw what a rank throws.
/// - Evaluation starts from the weights of the last fit, from `resume`, or from the module's own.
/// - With placement_kind::processes main begins with one line (troupe/processes.hpp).
///
/// Not thread-safe; several trainers may run at once.
class trainer {
public:
  /// Checks nothing yet: what is wrong with `options` is the failure of each call's outcome.
  explicit trainer(trainer_options options = {}, job_context context = {},
                   ports world = local_ports())
      : options_(std::move(options)), context_(std::move(context)), world_(std::move(world)) {}

  /// One job each, by its purpose, in the calling thread. `from`: plug-ins if any, data, and the
  /// arguments of `Module`.
  /// @{
  template <class Module, class... From>
  job_outcome fit(From... from) {
    return run(stage::train, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome validate(From... from) {
    return run(stage::validate, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome test(From... from) {
    return run(stage::test, recipe_of<Module>(std::move(from)...));
  }
  template <class Module, class... From>
  job_outcome predict(From... from) {
    return run(stage::predict, recipe_of<Module>(std::move(from)...));
  }
  /// @}
  /// The same of a recipe, for learners without LibTorch and for modules made elsewhere.
  job_outcome run(stage purpose, recipe_ptr recipe);

  /// What the next calls get. Each call takes `events` away, because a stream follows one job.
  job_context& context() { return context_; }

private:
  template <class Module, class... From>
  static recipe_ptr recipe_of(From... from) {
    constexpr bool known = requires { recipe_from(std::type_identity<Module>{}, from...); };
    static_assert(known,
                  "Module must be a troupe::module that can be made from these arguments, the data "
                  "first: include <troupe/module.hpp> (or <troupe/troupe.hpp>)");
    if constexpr (known) return recipe_from(std::type_identity<Module>{}, std::move(from)...);
  }

  trainer_options options_;
  job_context context_;
  ports world_;
  snapshot_ptr trained_;
};

}  // namespace troupe
