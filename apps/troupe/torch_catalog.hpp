// The catalog of models and data sets that use LibTorch.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "troupe/cluster_environment.hpp"

#include <functional>
#include <memory>

namespace troupe::program {

/// `environment`: torch_plugins::environment of its recipes.
std::unique_ptr<const catalog> torch_catalog(
    std::function<cluster_environment_ptr(const learner_context&)> environment = {});

}  // namespace troupe::program
