// From a user's module and data to the learners of a job.
#pragma once

#include <concepts>
#include <functional>
#include <iomanip>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "troupe/accelerator.hpp"
#include "troupe/callback.hpp"
#include "troupe/checkpoint.hpp"
#include "troupe/cluster_environment.hpp"
#include "troupe/data.hpp"
#include "troupe/learner.hpp"
#include "troupe/precision.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

struct module;

/// Makes a rank's module. Called in its lane, with the generator seeded by the job's seed, so that
/// all ranks start with the same weights. Shared by all ranks: thread-safe.
using module_factory = std::function<std::shared_ptr<module>()>;

namespace detail {

template <class Argument>
void describe(std::ostream& out, const Argument& x) {
  if constexpr (std::is_enum_v<Argument>)
    out << +static_cast<std::underlying_type_t<Argument>>(x);
  else if constexpr (std::is_arithmetic_v<Argument>)
    out << +x;
  else if constexpr (std::is_convertible_v<const Argument&, std::string_view>)
    out << std::string_view{x};
  else
    out << '?';
}

/// `10classifier(32, ?)`: the type as the compiler writes it, and the arguments that have a text.
template <class Module, class... Arguments>
std::string identity_of(const Arguments&... arguments) {
  std::ostringstream out;
  out << std::setprecision(17) << typeid(Module).name() << '(';
  ((describe(out, arguments), out << ','), ...);
  out << ')';
  return out.str();
}

}  // namespace detail

/// What a program may replace. Factories are called once per rank, in its lane.
struct torch_plugins {
  /// By the names that options give. A program adds or replaces entries.
  /// @{
  strategy_table strategies = default_strategies();
  precision_table precisions = default_precisions();
  accelerator_table accelerators = default_accelerators();
  /// @}
  /// Null: all ranks on this host.
  std::function<std::shared_ptr<cluster_environment>(const learner_context&)> environment;
  /// The format of checkpoints: ranks read through it, and the checkpointer writes through it (see
  /// learner_recipe::checkpoints). With ranks as processes each of them makes the recipe anew, so
  /// both sides must set the same one. Null: what the session's ports have; without that, ranks
  /// read folders of safetensors with a manifest and none are written.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// How batch_to_device moves users' types; a type without an entry is not moved.
  move_table moves;
  /// Each rank's callbacks, in the order in which they are called:
  /// `{.callbacks = {learning_rate_monitor{}, timer{{.max_time = 1h}}}}`.
  std::vector<callback_factory> callbacks;
};

/// The recipe of a job: each rank gets a module and reads the data. `data` may be null for a run
/// that reads none. `identity` names the module that `model` makes (learner_recipe::identity, which
/// adds the data's name); empty: unknown.
recipe_ptr make_recipe(module_factory model, data_ptr data, torch_plugins plugins = {},
                       std::string identity = {});

/// `recipe_for<classifier>(data, arguments...)`: modules made as `classifier(arguments...)`, each
/// from copies of its own. Its identity is the module's type with those arguments that are numbers,
/// enumerators or text.
template <class Module, class Data, class... Arguments>
recipe_ptr recipe_for(torch_plugins plugins, Data data, Arguments... arguments) {
  return make_recipe([=] { return std::make_shared<Module>(arguments...); }, std::move(data),
                     std::move(plugins), detail::identity_of<Module>(arguments...));
}
/// The same without plug-ins.
template <class Module, class Data, class... Arguments>
recipe_ptr recipe_for(Data data, Arguments... arguments) {
  return recipe_for<Module>(torch_plugins{}, std::move(data), std::move(arguments)...);
}
/// How a trainer finds recipe_for: by the module's type.
template <class Module, class... From>
requires std::derived_from<Module, module> recipe_ptr recipe_from(std::type_identity<Module>,
                                                                  From... from) {
  return recipe_for<Module>(std::move(from)...);
}

}  // namespace troupe
