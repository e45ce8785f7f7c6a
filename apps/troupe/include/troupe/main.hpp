// The command line of `troupe` for a program of your own, in one line of main:
//
//   #include <troupe/main.hpp>
//
//   int main(int count, char** arguments) {
//     return troupe::application{}
//         .model<classifier>("classifier", "two layers, for points")
//         .data("points", "a disc in a square", points)
//         .run(count, arguments);
//   }
//
// Link `troupe::main`. This header includes none of LibTorch's.
#pragma once

#include "troupe/detail/own_parts.hpp"
#include "troupe/hyper_parameters.hpp"
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

namespace detail {

template <class T>
constexpr declared_setting::type declared_type() {
  using type = declared_setting::type;
  if constexpr (std::same_as<T, bool>) return type::boolean;
  if constexpr (std::integral<T> && !std::same_as<T, bool>) return type::integer;
  if constexpr (std::floating_point<T>) return type::number;
  if constexpr (std::same_as<T, std::string>) return type::text;
  if constexpr (is_vector<T>::value) {
    constexpr auto item = declared_type<typename T::value_type>();
    static_assert(item == type::integer || item == type::text,
                  "a setting is a bool, an integer, a number, a text, or a std::vector of integers "
                  "or texts; give the model a struct of such fields, and a function that makes it");
    return item == type::integer ? type::integers : type::texts;
  }
}

template <class T>
constexpr bool is_integer = std::integral<T> && !std::same_as<T, bool>;
template <class T>
constexpr bool is_integer<std::vector<T>> = is_integer<T>;
template <class T>
struct item_of {
  using type = T;
};
template <class T>
struct item_of<std::vector<T>> {
  using type = T;
};

template <class Struct>
std::vector<declared_setting> declared_settings() {
  std::vector<declared_setting> all;
  Struct defaults{};
  defaults.fields([&](const std::string& name, auto& field) {
    using T = std::remove_cvref_t<decltype(field)>;
    declared_setting one{name, declared_type<T>(), as_value<T>(field)};
    if constexpr (is_integer<T>) {
      using limits = std::numeric_limits<typename item_of<T>::type>;
      one.least = limits::min();
      one.most = limits::max();
    }
    all.push_back(std::move(one));
  });
  return all;
}

// `make`, from values of settings; empty if it is empty.
template <class Settings, class Made>
std::function<std::shared_ptr<Made>(const value_map&)> from_values(
    std::function<std::shared_ptr<Made>(const Settings&)> make) {
  if (!make) return {};
  return [make = std::move(make)](const value_map& all) {
    return make(hyper_parameters_from<Settings>(all));
  };
}

}  // namespace detail

/// A program with the command line of `troupe`: its commands (fit, validate, test, predict, config,
/// models, checkpoint, watch, ...), flags, TOML files, `TROUPE_` variables and exit codes, ranks as
/// processes, and runs under mpirun, torchrun, srun and jsrun.
///
/// - What is added stands beside the built-in models and data sets, in `--model`, `--data`,
///   `models`, the schema, completions and messages. The first model and the first data set that
///   are added are the defaults.
/// - A name has letters, digits, `_` and `-`. It is there once, and is not one of the built-in
///   ones. Otherwise each call of `run` is refused (exit code 3) with a text that says so.
/// - A model or a data set may have settings: the fields of a struct that lists them
///   (troupe/hyper_parameters.hpp), with their defaults. The field `hidden` of a model is the key
///   `model.hidden`: `--set model.hidden=64`, `hidden = 64` in the table `[model]` of a file, or
///   the variable TROUPE_MODEL_HIDDEN. Those of a data set begin with `data.`; a field `dir` has
///   the flag `--data-dir`. They are saved with a run, and read again when it is resumed or tested.
/// - A field is a bool, an integer, a number, a text, or a std::vector of integers or texts. It is
///   not called `name`. A value that does not fit into its type is refused (exit code 3).
/// - A model of your own has optimizers of its own: the table `[optimizer]` and its flags are for
///   built-in models, and are refused with others.
/// - A built-in model takes data of your own whose batches are (inputs, labels), and the sizes of
///   its first and last layers from them.
///
/// Not thread-safe.
class application {
public:
  /// Texts for `--help`, `--version` and messages.
  struct facts {
    std::string name;     ///< as users call it; empty: the name of its file
    std::string about;    ///< one line
    std::string version;  ///< Troupe's stands beside it
  };

  application() = default;
  /// With these texts.
  explicit application(facts about) : about_(std::move(about)) {}

  /// A model, made as `Module(settings)` if it has a type `Module::hparams`, whose fields are its
  /// settings, and else as `Module()`. On each rank, in its lane. `summary`: one line.
  template <class Module>
  application& model(std::string name, std::string summary) {
    if constexpr (requires { typename Module::hparams; }) {
      static_assert(std::constructible_from<Module, typename Module::hparams>,
                    "the module must be constructible from its hparams");
      return model<typename Module::hparams>(
          std::move(name), std::move(summary),
          [](const auto& settings) { return std::make_shared<Module>(settings); });
    } else {
      return model(std::move(name), std::move(summary), [] { return std::make_shared<Module>(); });
    }
  }
  /// The same, made by a function; called on all ranks, possibly at the same time.
  application& model(std::string name, std::string summary,
                     std::function<std::shared_ptr<module>()> make);
  /// The same, with the fields of `Settings` as its settings.
  template <class Settings>
  application& model(std::string name, std::string summary,
                     std::function<std::shared_ptr<module>(const Settings&)> make) {
    parts_.models.push_back({std::move(name), std::move(summary),
                             detail::declared_settings<Settings>(),
                             detail::from_values<Settings>(std::move(make))});
    return *this;
  }

  /// A data set, made by a function once for each job and process. If it throws, the job is refused
  /// before anything is written. A fit ends with a test if the data have one after `setup` for it.
  /// `summary`: one line.
  application& data(std::string name, std::string summary,
                    std::function<std::shared_ptr<data_module>()> make);
  /// The same, with the fields of `Settings` as its settings.
  template <class Settings>
  application& data(std::string name, std::string summary,
                    std::function<std::shared_ptr<data_module>(const Settings&)> make) {
    parts_.data.push_back({std::move(name), std::move(summary),
                           detail::declared_settings<Settings>(),
                           detail::from_values<Settings>(std::move(make))});
    return *this;
  }

  /// Changes what each job gets (troupe/strategy.hpp): callbacks, strategies, kinds of devices,
  /// precisions, the format of checkpoints. Called once in each process. Settings such as
  /// `callbacks` add to it.
  application& plugins(std::function<void(torch_plugins&)> change);

  /// The whole program: reads the command line and the environment, runs the command, writes to
  /// standard output and error, and returns the exit code for main. A process that a job starts as
  /// a rank ends in here without returning. So let this be all that main does, or the last; what
  /// comes before it happens in each rank's process, too.
  ///
  /// It is the owner of the process: while a job runs it handles SIGINT, SIGTERM and SIGHUP. When a
  /// rank is stuck in a user's code at the end of a job, it ends the process without destructors.
  int run(int count, const char* const* arguments) const;

private:
  facts about_;
  detail::own_parts parts_;
};

}  // namespace troupe
