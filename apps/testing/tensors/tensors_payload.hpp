// LibTorch as a payload of simulated runs: the production learner on a small mlp, each rank in a
// baton thread, bit-compared with the serial reference executor behind every step and at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/field_run.hpp"
#include "apps/testing/payload.hpp"

namespace troupe::testing {

struct tensors_options {
  std::vector<std::int64_t> hidden{12};
  std::int64_t features = 6;
  std::int64_t classes = 3;
  double dropout = 0.2;
  std::string optimizer = "sgd";  ///< sgd (momentum 0.9), adam, adamw
  double learning_rate = 0.05;
  /// The loss of this rank in this step (counted from 0) is NaN. What Troupe does: the NaN travels
  /// with the gradients, so behind that step all weights of all ranks are the same NaNs; nothing
  /// stops the run. No state is compared then.
  struct poison {
    std::int32_t rank = 0;
    std::int64_t step = 0;
  };
  std::optional<poison> nan;
};

/// One seed of LibTorch's draws per job, one intra-op thread, data made up in memory and loaded
/// inline. References are computed once per job. For places that are threads of this process.
std::shared_ptr<payload> tensors_payload(tensors_options options = {});

}  // namespace troupe::testing
