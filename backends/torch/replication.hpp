// The sub-modules of a module and of its copies, in the order of the replication callbacks.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "troupe/replicated.hpp"

namespace troupe {

struct submodule {
  std::string path;  ///< empty for the root
  torch::nn::Module* module;
};

/// Parents first, each sub-module once, under the first of its names.
std::vector<submodule> submodules(torch::nn::Module& root);
/// The sub-modules of each copy. Throws user_error unless all copies have the same paths.
std::vector<std::vector<submodule>> submodules(const module_copies& copies);

/// Throws the exception by which run_copies knows that a copy ended because of another one.
[[noreturn]] void end_wait_for_failed_copy(std::int64_t copy, const std::string& failure);

}  // namespace troupe
