// Any function as a job: session.spawn runs it on every rank.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/learner.hpp"

namespace troupe {

/// The first argument of a spawned function: its rank, and the collectives of its generation. Used
/// by the rank's lane only.
class rank_context {
public:
  /// For the learner. `about` outlives the context.
  rank_context(const learner_context& about, std::shared_ptr<communicator> world)
      : about_(about), world_(std::move(world)) {}

  /// This rank, from 0, of `world` ranks.
  /// @{
  std::int32_t rank() const { return about_.rank; }
  std::int32_t world() const { return about_.world; }
  /// @}
  /// The job's.
  const trainer_options& options() const { return about_.options; }
  /// Collectives wait in the lane; see communicator. Throws internal_error when the job has none.
  communicator& collectives() const;
  /// True once the run is stopped or its generation is closed: a long loop should return.
  bool interrupted() const;
  /// For job_outcome::queue, first in first out. Only the values of rank 0 reach the caller.
  void add_to_queue(value what) { queued_.push_back(std::move(what)); }

  /// For the learner: what was queued since the last call.
  std::vector<value> take_queued() { return std::exchange(queued_, {}); }

private:
  const learner_context& about_;
  std::shared_ptr<communicator> world_;
  std::vector<value> queued_;
};

/// How ranks in other processes know a function: see learner_recipe.
struct call_identity {
  std::string name;  ///< learner_recipe::identity
  /// learner_recipe::tensors.
  const tensor_bytes* tensors = nullptr;
};

/// What a rank runs: it gets the rank's context and returns the rank's value.
using spawned_function = std::function<value(rank_context& context)>;

/// Calls `what` on every rank, in its lane, at the hook `dispatch`; rank 0's value is the job's
/// result. `what` is shared by all ranks: thread-safe. For jobs whose purpose is `call`.
recipe_ptr make_call_recipe(spawned_function what, call_identity is = {});

/// Calls `what(who, arguments...)`, where `who` is the rank's context, or the rank's number if the
/// function does not take a context.
template <class Function, class... Arguments>
decltype(auto) call_spawned(const Function& what, rank_context& who,
                            const Arguments&... arguments) {
  if constexpr (std::is_invocable_v<const Function&, rank_context&, const Arguments&...>)
    return std::invoke(what, who, arguments...);
  else
    return std::invoke(what, who.rank(), arguments...);
}
/// What such a call returns, without reference and const.
template <class Function, class... Arguments>
using spawned_result = std::decay_t<decltype(call_spawned(std::declval<const Function&>(),
                                                          std::declval<rank_context&>(),
                                                          std::declval<const Arguments&>()...))>;

/// Moves rank 0's result to the caller, with its own type: from its lane, within one process, or
/// made by `from` of the job's result. Thread-safe.
template <class Result>
class call_slot {
public:
  /// Makes the result of the job's result; throws std::invalid_argument
  /// where it is of another kind.
  using from_value = Result (*)(const value& result);

  /// `from` null: the result is kept by rank 0's lane.
  explicit call_slot(from_value from = nullptr) : from_(from) {}
  /// For rank 0's lane. A later result replaces the one before.
  void keep(Result result) {
    const std::lock_guard lock{guard_};
    held_.emplace(std::move(result));
  }
  /// `result` is the job's.
  std::optional<Result> take(const value& result) {
    if (from_) return from_(result);
    const std::lock_guard lock{guard_};
    return std::exchange(held_, std::nullopt);
  }

private:
  const from_value from_;
  std::mutex guard_;
  std::optional<Result> held_;
};
/// For a function that returns nothing.
template <>
class call_slot<void> {};

/// The same with arguments, of which every rank gets copies: `call_recipe(f, a, b)` calls
/// `f(context, a, b)`. The job's result is what f returns if that converts to a value, else empty.
/// `kept`, when given, gets rank 0's result with its own type.
template <class Function, class... Arguments>
recipe_ptr call_recipe_into(std::shared_ptr<call_slot<spawned_result<Function, Arguments...>>> kept,
                            Function what, Arguments... arguments) {
  using result = spawned_result<Function, Arguments...>;
  return make_call_recipe([=](rank_context& who) -> value {
    if constexpr (std::is_void_v<result>) {
      call_spawned(what, who, arguments...);
      return {};
    } else {
      result own = call_spawned(what, who, arguments...);
      value returned;
      if constexpr (std::is_convertible_v<const result&, value>) returned = own;
      if (kept && who.rank() == 0) kept->keep(std::move(own));
      return returned;
    }
  });
}
/// The same without a slot.
template <class Function, class... Arguments>
recipe_ptr call_recipe(Function what, Arguments... arguments) {
  return call_recipe_into(std::shared_ptr<call_slot<spawned_result<Function, Arguments...>>>{},
                          std::move(what), std::move(arguments)...);
}

}  // namespace troupe
