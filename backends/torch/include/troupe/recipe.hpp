// From a user's module and data to the learners of a job.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "troupe/checkpoint.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/cluster_environment.hpp"
#include "troupe/learner.hpp"
#include "troupe/precision.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

struct module;

/// Makes a rank's module; called in its lane, with the generator seeded by the job's seed, so that
/// all ranks are born equal. Shared by all ranks: thread-safe.
using module_factory = std::function<std::shared_ptr<module>()>;

/// What may be replaced from outside the library. Factories are called once per rank, in its
/// lane.
struct torch_plugins {
  strategy_table strategies = default_strategies();
  precision_table precisions = default_precisions();
  /// Null: all ranks on this host.
  std::function<std::shared_ptr<cluster_environment>(const learner_context&)> environment;
  /// The format of checkpoints: ranks read through it, and the checkpointer writes through it (see
  /// learner_recipe::checkpoints). With ranks as processes each of them makes the recipe anew, so
  /// both sides must set the same one. Null: what the session's ports have; without that, ranks
  /// read folders of safetensors with a manifest and none are written.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// batch_to_device of users' types; others stay as they are.
  move_table moves;
};

/// What each rank of a job trains or evaluates. `data` may be null for a run that reads none.
recipe_ptr make_recipe(module_factory model, data_ptr data, torch_plugins plugins = {});

/// `recipe_for<classifier>(data, arguments...)`: modules made as `classifier(arguments...)`, each
/// from copies of its own.
template <class Module, class Data, class... Arguments>
recipe_ptr recipe_for(Data data, Arguments... arguments) {
  return make_recipe([=] { return std::make_shared<Module>(arguments...); }, std::move(data));
}

}  // namespace troupe
