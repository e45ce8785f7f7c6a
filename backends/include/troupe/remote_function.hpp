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
#pragma once

#include "troupe/call.hpp"
#include "troupe/detail/value_bytes.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

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
