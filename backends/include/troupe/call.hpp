// Any function as a job: session.spawn runs it on every rank.
#pragma once

#include "troupe/detail/value_bytes.hpp"
#include "troupe/learner.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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
  /// True once the generation is closed: a long loop should return. A stop does not set it.
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

  /// The result is kept by rank 0's lane.
  call_slot() = default;
  /// The result of `function` is made by `from`.
  call_slot(from_value from, std::string function) : from_(from), function_(std::move(function)) {}
  /// Whose result it is; empty: a function without a name.
  const std::string& function() const { return function_; }
  /// For rank 0's lane. A later result replaces the one before.
  void keep(Result result) {
    const std::lock_guard lock{guard_};
    held_.emplace(std::move(result));
  }
  /// `result` is the job's. Throws what `from` throws.
  std::optional<Result> take(const value& result) {
    if (from_) return from_(result);
    const std::lock_guard lock{guard_};
    return std::exchange(held_, std::nullopt);
  }

private:
  const from_value from_ = nullptr;
  const std::string function_;
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

// Functions with a name, which ranks in other processes can call.
//
//     troupe::value total(troupe::rank_context& who, std::int64_t factor, std::string unit);
//     const troupe::remote_function totalling{"total", total};
//
//     int main(int argc, char** argv) {
//       troupe::rank_process_options home;
//       home.functions = {totalling};
//       if (const auto code = troupe::run_rank_if_child(argc, argv, home)) return *code;
//       ...
//       troupe::trainer_options how;
//       how.ranks = 4;
//       how.placement = troupe::placement_kind::processes;
//       auto outcome = session.spawn(how, totalling, 10, "m");
//
// A rank's process runs this program again, so the function is there; its name says which one it
// is. Arguments and the result travel as values.

namespace detail {

// The number or text in `v`. Each throws std::invalid_argument for another kind, and for a number
// outside of the range. real_of takes integers too.
bool bool_of(const value& v);
std::int64_t integer_of(const value& v, std::int64_t low, std::int64_t high);
double real_of(const value& v);
const std::string& text_of(const value& v);

}  // namespace detail

/// How the type of an argument or a result becomes a value and back: numbers, bool, std::string,
/// `value`, torch::Tensor (troupe/module.hpp), and any type of your own that converts to `value`
/// and has a constructor from one. `from` throws std::invalid_argument for a value of another kind.
/// `tensors()` is how tensors in it are encoded; null when it has none. Integers are of 64 bits
/// with a sign, or smaller.
template <class T>
struct value_form {
  /// Shares the tensors of `x`, if it has any.
  static value to(const T& x) {
    if constexpr (std::integral<T> && !std::same_as<T, bool>)
      return static_cast<std::int64_t>(x);
    else if constexpr (std::floating_point<T>)
      return static_cast<double>(x);
    else
      return x;
  }
  /// Throws std::invalid_argument.
  static T from(const value& v) {
    if constexpr (std::same_as<T, bool>)
      return detail::bool_of(v);
    else if constexpr (std::integral<T>)
      return static_cast<T>(
          detail::integer_of(v, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
    else if constexpr (std::floating_point<T>)
      return static_cast<T>(detail::real_of(v));
    else if constexpr (std::same_as<T, std::string>)
      return detail::text_of(v);
    else
      return T(v);
  }
  /// Null: there are none.
  static const tensor_bytes* tensors() { return nullptr; }
  static_assert(!std::integral<T> || std::signed_integral<T> || sizeof(T) < 8,
                "an argument or result of a remote function is an integer of at most 63 bits");
};

/// The arguments of one call, as a rank got them. Errors are a user_error (bad_usage) with the
/// function's name and the argument's place.
class argument_list {
public:
  /// `all`: a list; anything else counts as an empty one.
  explicit argument_list(const value& all);
  /// Throws unless there are `count` arguments.
  void require(const std::string& function, std::size_t count) const;
  /// from(argument `i`), from 0. What `from` throws as std::invalid_argument becomes the
  /// user_error.
  template <class From>
  auto at(const std::string& function, std::size_t i, From from) const {
    try {
      return from(all_.at(i));
    } catch (const std::invalid_argument& error) {
      refuse(function, i, error.what());
    }
  }

private:
  [[noreturn]] static void refuse(const std::string& function, std::size_t i, const char* why);

  std::vector<value> all_;
};

/// Throws a user_error (bad_usage) that begins with `what` unless `v` can be sent to another
/// process.
void require_sendable(const value& v, const tensor_bytes* tensors, const std::string& what);

/// A function by its name, whatever its types: what `rank_process_options::functions` lists.
/// Const calls are thread-safe.
class named_function {
public:
  /// The function on values; called in each rank's lane, possibly at the same time.
  using body = std::function<value(rank_context&, const argument_list& given)>;

  /// Throws user_error (bad_usage) for an empty name.
  named_function(std::string name, body what, const tensor_bytes* tensors);

  /// The name that both processes know.
  const std::string& name() const { return name_; }
  /// What a job that calls it has as identity of its recipe: `function "NAME"`.
  std::string identity() const;
  /// Whether `text` is the identity of some named function.
  static bool is_identity(std::string_view text);
  /// How tensors in arguments and results are encoded; null: they cannot be sent.
  const tensor_bytes* tensors() const { return tensors_; }
  /// Calls the function with `arguments`, a list, on every rank. A list that does not fit, and a
  /// result that cannot be sent, is a failure of the rank: a user_error that names the function.
  recipe_ptr recipe(value arguments) const;

private:
  std::string name_;
  body what_;
  const tensor_bytes* tensors_;
};

/// A named function with its types, for session::spawn. Its parameters after the rank are the
/// arguments.
template <class Result, class... Parameters>
class remote_function : public named_function {
public:
  /// What a call returns.
  using result = Result;
  /// The function with its types.
  using function = std::function<Result(rank_context&, Parameters...)>;

  /// `tensors` is needed only where a `value` holds tensors (`&troupe::torch_tensor_bytes()`):
  /// parameters and results of type torch::Tensor bring it along.
  /// @{
  remote_function(std::string name, function what, const tensor_bytes* tensors = nullptr)
      : named_function(name, body_of(name, std::move(what)),
                       tensors ? tensors : tensors_of_types()) {}
  remote_function(std::string name, Result (*what)(rank_context&, Parameters...),
                  const tensor_bytes* tensors = nullptr)
      : remote_function(std::move(name), function(what), tensors) {}
  /// @}

  /// The list that a rank gets.
  static value arguments(const Parameters&... all) {
    return value_list{{value_form<std::decay_t<Parameters>>::to(all)...}};
  }

private:
  using held = std::tuple<std::decay_t<Parameters>...>;

  template <class T>
  static const tensor_bytes* tensors_of_type() {
    if constexpr (std::is_void_v<T>)
      return nullptr;
    else
      return value_form<std::decay_t<T>>::tensors();
  }
  static const tensor_bytes* tensors_of_types() {
    const tensor_bytes* found = tensors_of_type<Result>();
    ((found = found ? found : tensors_of_type<Parameters>()), ...);
    return found;
  }
  static body body_of(std::string name, function what) {
    return [name = std::move(name), what = std::move(what)](rank_context& who,
                                                            const argument_list& given) {
      given.require(name, sizeof...(Parameters));
      return call(what, who, held_of(name, given, std::index_sequence_for<Parameters...>{}));
    };
  }
  template <std::size_t... I>
  static held held_of(const std::string& name, const argument_list& given,
                      std::index_sequence<I...>) {
    return held{given.at(name, I, value_form<std::decay_t<Parameters>>::from)...};
  }
  static value call(const function& what, rank_context& who, held all) {
    const auto with = [&](auto&... each) -> Result { return what(who, std::move(each)...); };
    if constexpr (std::is_void_v<Result>)
      return std::apply(with, all), value{};
    else
      return value_form<std::decay_t<Result>>::to(std::apply(with, all));
  }
};
template <class Result, class... Parameters, class... More>
remote_function(std::string, Result (*)(rank_context&, Parameters...), More...)
    -> remote_function<Result, Parameters...>;

}  // namespace troupe
