// LibTorch as a payload of simulated runs: the production learner on a small mlp or on a module of
// the user's, each rank in a baton thread, bit-compared with the serial reference executor behind
// every step and at the end.
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

struct tensors_options {
  std::vector<std::int64_t> hidden{12};
  std::int64_t features = 6;
  std::int64_t classes = 3;
  double dropout = 0.2;
  std::string optimizer = "sgd";  ///< sgd (momentum 0.9), adam, adamw
  double learning_rate = 0.05;

  /// A module of one's own in place of the mlp; the options above are those of its data then, if
  /// `data` is null. Called for each rank and for each shard of the reference, as a trainer would.
  std::function<std::shared_ptr<module>()> make_module;
  /// What it learns from: the first samples, as many as the job's. Shared by all runs.
  std::shared_ptr<data_module> data;
  /// Whether explore() may train some jobs on fewer samples. Made-up data always may; with a module
  /// or data of one's own only when this is true: they may need batches of a fixed size.
  bool vary_samples = false;
  /// The reference executor calls setup, configure_model, configure_optimizers (one optimizer,
  /// whose schedulers are none of plateaus), what surrounds a batch's transfer, training_step and
  /// training_step_end, and the data's. What learns in another hook, or asks for its rank, differs
  /// from it: false, then ranks are compared with each other only.
  bool reference = true;
};

/// One seed of LibTorch's draws per job, one intra-op thread, data held in memory and loaded
/// inline. References are computed once per job. For places that are threads of this process.
///
/// Its name in the text of a case is `tensors`. With a module or data of one's own it is
/// `own_tensors`: only a test that brings them can replay such a case.
///
/// A run throws user_error (bad_configuration) when `data` has fewer samples than its job, or
/// `reference` is true and the module's optimizers are beyond it. What the module throws in the
/// reference executor is a violation of the run, with its seed and case.
std::shared_ptr<payload> tensors_payload(tensors_options options = {});

}  // namespace testing
}  // namespace troupe
