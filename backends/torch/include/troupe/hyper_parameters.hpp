// The numbers that a module is made of, as a struct that lists its fields:
//
//   struct sizes {
//     std::int64_t hidden = 128;
//     double dropout = 0.1;
//     template <class F>
//     void fields(F&& f) { f("hidden", hidden), f("dropout", dropout); }
//   };
//   struct my_model : troupe::module {
//     using hparams = sizes;
//     explicit my_model(sizes how = {}) { save_hyperparameters(how); ... }
//   };
//   auto model = troupe::load_from_checkpoint<my_model>("runs/ONE");
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/value.hpp"

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

struct module;

namespace detail {

// Each throws user_error (checkpoint) that names the field if `from` has another type, or does not
// fit.
bool bool_of(const std::string& name, const value& from);
std::int64_t integer_of(const std::string& name, const value& from, std::int64_t least,
                        std::int64_t most);
double number_of(const std::string& name, const value& from);
std::string text_of(const std::string& name, const value& from);
const std::vector<value>& list_of(const std::string& name, const value& from);

template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};

template <class T>
value as_value(const T& field) {
  if constexpr (is_vector<T>::value) {
    value_list all;
    for (const auto& one : field) all.items.push_back(as_value<typename T::value_type>(one));
    return all;
  } else if constexpr (std::same_as<T, bool> || std::same_as<T, std::string>) {
    return field;
  } else if constexpr (std::integral<T>) {
    static_assert(sizeof(T) < 8 || std::signed_integral<T>, "use std::int64_t");
    return static_cast<std::int64_t>(field);
  } else {
    static_assert(std::floating_point<T>,
                  "a field is a bool, an integer, a number, a text, or a std::vector of these");
    return static_cast<double>(field);
  }
}

template <class T>
void take_value(const std::string& name, const value& from, T& field) {
  if constexpr (is_vector<T>::value) {
    field.clear();
    for (const auto& one : list_of(name, from)) {
      typename T::value_type item{};
      take_value(name, one, item);
      field.push_back(std::move(item));
    }
  } else if constexpr (std::same_as<T, bool>) {
    field = bool_of(name, from);
  } else if constexpr (std::same_as<T, std::string>) {
    field = text_of(name, from);
  } else if constexpr (std::integral<T>) {
    using limits = std::numeric_limits<T>;
    field = static_cast<T>(integer_of(name, from, limits::min(), limits::max()));
  } else {
    field = static_cast<T>(number_of(name, from));
  }
}

}  // namespace detail

/// The fields of `all`, by name.
template <class Struct>
value_map hyper_parameters_of(Struct all) {
  value_map named;
  all.fields([&](const std::string& name, auto& field) {
    named.items[name] = detail::as_value<std::remove_cvref_t<decltype(field)>>(field);
  });
  return named;
}

/// The struct of those fields. A field that `named` lacks keeps its default; names that the struct
/// lacks are ignored. Throws user_error (checkpoint) that names a field of another type.
template <class Struct>
Struct hyper_parameters_from(const value_map& named) {
  Struct all{};
  all.fields([&](const std::string& name, auto& field) {
    if (const auto found = named.items.find(name); found != named.items.end())
      detail::take_value(name, found->second, field);
  });
  return all;
}

// Makes a trained module from a checkpoint, for use outside of a job.

/// A checkpoint as read: its hyper-parameters, and everything else.
struct saved_module {
  /// The checkpoint's folder, also where a run's folder was given.
  std::string path;
  /// What module::save_hyperparameters kept; empty: nothing.
  value_map hyper_parameters;
  /// All of the checkpoint.
  snapshot state;
};

/// Reads and verifies the checkpoint `path`, or the latest one of the run in the folder `path`.
/// `format`: the recipe's own; null: Troupe's. Throws user_error (checkpoint).
saved_module read_module(const std::string& path, const checkpoint_io* format = nullptr);

/// Calls configure_model, loads the weights, calls on_load_checkpoint, and switches to evaluation.
/// Throws user_error (checkpoint) that names the tensors that do not fit.
void load_into(module& made, const saved_module& from);

/// What the type `Module` was made of: `Module::hparams`, whose default stands where the checkpoint
/// has no hyper-parameters. `change` may alter them.
template <class Module, class Parameters = typename Module::hparams>
std::shared_ptr<Module> load_from_checkpoint(
    const std::string& path,
    const std::function<void(std::type_identity_t<Parameters>&)>& change = {},
    const checkpoint_io* format = nullptr) {
  const auto from = read_module(path, format);
  auto parameters = hyper_parameters_from<Parameters>(from.hyper_parameters);
  if (change) change(parameters);
  auto made = std::make_shared<Module>(parameters);
  load_into(*made, from);
  return made;
}

}  // namespace troupe
