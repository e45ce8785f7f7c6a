// The tensor payload of simulated runs: the production learner on a small mlp or a module of the
// user, each rank in a baton thread. After every step and at the end its states are compared with
// the serial reference executor, bit by bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"
#include "apps/testing/payload.hpp"

namespace troupe {

struct module;
class data_module;

namespace testing {

/// The module and the data of simulated runs.
struct tensors_options {
  /// Widths of the mlp's hidden layers.
  std::vector<std::int64_t> hidden{12};
  /// Numbers in a sample.
  std::int64_t features = 6;
  /// Labels are 0 to classes - 1.
  std::int64_t classes = 3;
  /// The mlp's: the share of activations that is dropped.
  double dropout = 0.2;
  std::string optimizer = "sgd";  ///< sgd (momentum 0.9), adam, adamw
  /// The rate of the mlp's optimizer.
  double learning_rate = 0.05;

  /// Makes a module in place of the mlp; without `data`, the options above still describe the data.
  /// Called for each rank and for each shard of the reference, as by a trainer.
  std::function<std::shared_ptr<module>()> make_module;
  /// The data of training: the first samples, as many as the job's. Shared by all runs. The order
  /// and the size of batches are the job's, so data with a loading(train, 0), or an order, of their
  /// own are refused. Runs have no validation, test or prediction.
  std::shared_ptr<data_module> data;
  /// Whether explore() may train some jobs on fewer samples. Generated data allows it always; a
  /// module or data of the user only if this is true, because they may need batches of a fixed
  /// size.
  bool vary_samples = false;
  /// The reference executor calls setup, configure_model, configure_optimizers (one optimizer, no
  /// schedulers on plateaus), the hooks around a batch's transfer, training_step and
  /// training_step_end, and the data's hooks. A module that learns in another hook, or asks for its
  /// rank, differs from it. With false, ranks are only compared with each other, and explore()
  /// keeps the job's accumulation: a module with manual optimization has none. Such a module needs
  /// false. The fault not_a_number does not occur in it.
  bool reference = true;
};

/// Each job has one seed for LibTorch's draws and one intra-op thread; data is in memory and loaded
/// inline. References are computed once per job. Only for ranks that are threads of this process.
///
/// A case names the payload `tensors`, or `own_tensors` with a module or data of the user, or an
/// mlp other than the default: then only the test that supplies them can replay the case.
///
/// A run throws user_error (bad_configuration) when `data` has fewer samples than its job or an
/// order of its own, or when `reference` is true and the executor does not support the module's
/// optimizers. An exception of the module in the reference executor is a violation of the run, with
/// its seed and case.
std::shared_ptr<payload> tensors_payload(tensors_options options = {});

}  // namespace testing
}  // namespace troupe
