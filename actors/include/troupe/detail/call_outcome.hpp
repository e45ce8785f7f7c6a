// What a function spawned on ranks comes back as: a job's outcome, and the function's own result.
#pragma once

#include "troupe/call.hpp"
#include "troupe/trainer.hpp"

#include <boost/asio/associator.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace troupe {

/// How session.spawn ended. `returned` is rank 0's result with its own type; empty unless ok().
template <class Result>
struct call_outcome : job_outcome {
  std::optional<Result> returned;

  /// What the function returned; throws the first failure, with its own type, when there is one.
  /// Once: the result is moved out.
  Result get() {
    rethrow();
    if (!returned) throw internal_error("a spawned function's result was taken before");
    return *std::exchange(returned, std::nullopt);
  }
};
template <>
struct call_outcome<void> : job_outcome {
  void get() const { rethrow(); }
};

/// A call as a job, and what gets its result.
template <class Result>
struct spawned_call {
  using result = Result;
  job what;
  std::shared_ptr<call_slot<Result>> kept;
};
/// The job that calls `what(context, arguments...)` on each rank.
template <class Function, class... Arguments>
auto spawned_call_of(trainer_options how, Function what, Arguments... arguments) {
  spawned_call<spawned_result<Function, Arguments...>> call;
  call.kept = std::make_shared<typename decltype(call.kept)::element_type>();
  call.what.purpose = stage::call;
  call.what.options = std::move(how);
  call.what.recipe = call_recipe_into(call.kept, std::move(what), std::move(arguments)...);
  return call;
}
/// The call of a remote function. The arguments convert to its parameters.
template <class Result, class... Parameters, class... Arguments>
auto spawned_call_of(trainer_options how, const remote_function<Result, Parameters...>& what,
                     Arguments... arguments) {
  spawned_call<Result> call;
  if constexpr (std::is_void_v<Result>)
    call.kept = std::make_shared<call_slot<void>>();
  else
    call.kept = std::make_shared<call_slot<Result>>(value_form<Result>::from, what.name());
  call.what.purpose = stage::call;
  call.what.options = std::move(how);
  call.what.arguments = what.arguments(std::move(arguments)...);
  call.what.recipe = what.recipe(call.what.arguments);
  return call;
}

/// In a handler of what was thrown as the result of `function` was made: the call has failed, with
/// a user_error (bad_usage) that nests the exception.
void fail_by_result(job_outcome& ended, const std::string& function);

/// Joins the two. The result of a job that failed after rank 0's return is dropped.
template <class Result>
call_outcome<Result> with_result(job_outcome ended, call_slot<Result>& kept) {
  call_outcome<Result> outcome{std::move(ended)};
  if constexpr (!std::is_void_v<Result>) {
    if (!outcome.ok()) return outcome;
    try {
      outcome.returned = kept.take(outcome.result);
    } catch (...) {
      fail_by_result(outcome, kept.function());
    }
  }
  return outcome;
}

/// A handler of call_outcome that completes a job. Executor, allocator and cancellation slot are
/// the inner handler's.
template <class Handler, class Result>
struct call_handler {
  Handler inner;
  std::shared_ptr<call_slot<Result>> kept;

  void operator()(job_outcome ended) { std::move(inner)(with_result(std::move(ended), *kept)); }
};

}  // namespace troupe

template <template <class, class> class Associator, class Handler, class Result, class Default>
struct boost::asio::associator<Associator, troupe::call_handler<Handler, Result>, Default>
    : Associator<Handler, Default> {
  static auto get(const troupe::call_handler<Handler, Result>& h) noexcept {
    return Associator<Handler, Default>::get(h.inner);
  }
  static auto get(const troupe::call_handler<Handler, Result>& h, const Default& d) noexcept {
    return Associator<Handler, Default>::get(h.inner, d);
  }
};
