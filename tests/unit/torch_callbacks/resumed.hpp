// Runs that begin where another one ended, without a disk.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/one_checkpoint.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"

namespace troupe::testing {

inline trainer_options until(trainer_options options, std::int64_t steps) {
  options.max_steps = steps;
  return options;
}

template <class Module>
std::vector<rank_end> resumed(snapshot_ptr from, torch_plugins plugins, data_ptr data,
                              const trainer_options& options) {
  plugins.checkpoints = std::make_shared<one_checkpoint>(std::move(from));
  return run_good_job({.recipe = recipe_for<Module>(std::move(plugins), std::move(data)),
                       .options = options,
                       .resume = "anywhere"});
}

/// The last snapshot of a run without callbacks.
template <class Module>
snapshot_ptr until_step(data_ptr data, const trainer_options& options, std::int64_t steps) {
  return run_good_job(
             {.recipe = recipe_for<Module>(std::move(data)), .options = until(options, steps)})[0]
      .snapshot;
}

/// Names and bytes.
inline std::map<std::string, std::string> bytes_of(const std::vector<tensor_blob>& blobs) {
  std::map<std::string, std::string> all;
  for (const auto& blob : blobs)
    all[blob.name].assign(reinterpret_cast<const char*>(blob.bytes->data()), blob.bytes->size());
  return all;
}

}  // namespace troupe::testing
