// Any function as a job: what session.spawn runs on every rank.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "backends/learner.hpp"

namespace troupe {

/// What a spawned function gets first: who it is, and the collectives of its generation.
class rank_context {
public:
  rank_context(const learner_context& about, std::shared_ptr<communicator> world)
      : about_(about), world_(std::move(world)) {}

  std::int32_t rank() const { return about_.rank; }
  std::int32_t world() const { return about_.world; }
  const trainer_options& options() const { return about_.options; }
  /// Waits in the lane; see communicator. Throws internal_error when the job has none.
  communicator& collectives() const;
  /// True once somebody wants the lane to look up: a long loop should end.
  bool interrupted() const;
  /// For the caller, first in first out; rank 0's reach it.
  void add_to_queue(value what) { queued_.push_back(std::move(what)); }

  std::vector<value> take_queued() { return std::exchange(queued_, {}); }

private:
  const learner_context& about_;
  std::shared_ptr<communicator> world_;
  std::vector<value> queued_;
};

using spawned_function = std::function<value(rank_context& context)>;

/// Calls `what` on every rank, in its lane, at the hook `dispatch`; rank 0's value is the job's
/// result. `what` is shared by all ranks: thread-safe. For jobs whose purpose is `call`.
recipe_ptr make_call_recipe(spawned_function what);

/// The same with arguments, of which every rank gets copies: `call_recipe(f, a, b)` calls
/// `f(context, a, b)`. A function that returns nothing has an empty value.
template <class Function, class... Arguments>
recipe_ptr call_recipe(Function what, Arguments... arguments) {
  return make_call_recipe([=](rank_context& context) -> value {
    if constexpr (std::is_void_v<
                      std::invoke_result_t<const Function&, rank_context&, const Arguments&...>>) {
      std::invoke(what, context, arguments...);
      return {};
    } else {
      return std::invoke(what, context, arguments...);
    }
  });
}

}  // namespace troupe
