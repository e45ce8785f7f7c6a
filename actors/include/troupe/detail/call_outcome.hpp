// What a function spawned on ranks comes back as: a job's outcome, and the function's own result.
#pragma once

#include "troupe/call.hpp"
#include "troupe/outcome.hpp"

#include <boost/asio/associator.hpp>

#include <memory>
#include <optional>
#include <utility>

namespace troupe {

/// How session.spawn ended. `returned` is rank 0's result with its own type, any that can be moved;
/// empty unless ok(). Ranks in other processes bring it as `result` alone: there the function
/// returns a value, or a type that converts to one.
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

/// Joins the two. The result of a job that failed behind rank 0's return is dropped.
template <class Result>
call_outcome<Result> with_result(job_outcome ended, call_slot<Result>& kept) {
  call_outcome<Result> outcome{std::move(ended)};
  if constexpr (!std::is_void_v<Result>) {
    outcome.returned = kept.take();
    if (!outcome.ok()) outcome.returned.reset();
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
