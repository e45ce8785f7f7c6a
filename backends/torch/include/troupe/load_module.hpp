// Makes a trained module from a checkpoint, for use outside of a job.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "troupe/checkpoint.hpp"
#include "troupe/module.hpp"
#include "troupe/snapshot.hpp"

namespace troupe {

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

/// Calls configure_model and on_load_checkpoint, loads the weights, and switches to evaluation.
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
