// The catalog of models and data sets that use LibTorch.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "troupe/detail/own_parts.hpp"
#include "troupe/ports.hpp"

#include <functional>
#include <memory>

namespace troupe::program {

/// The built-in models and data sets, and those of `own`. `environment`: torch_plugins::environment
/// of its recipes. Throws user_error (bad_configuration) for names that are not possible
/// (own_parts.hpp).
std::unique_ptr<const catalog> torch_catalog(
    detail::own_parts own = {},
    std::function<cluster_environment_ptr(const learner_context&)> environment = {});

}  // namespace troupe::program
