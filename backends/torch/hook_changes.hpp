// What hooks change of a fit beside tensors and rates: which parameters need gradients, the modes
// of sub-modules, and the parameters that an optimizer got after its set-up. An unfreeze in
// on_train_epoch_start does this, and a resumed fit does not call that hook again.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace torch::nn {
class Module;
}

namespace troupe {

class optimizers;

/// In the order in which LibTorch lists parameters and modules.
struct module_flags {
  std::vector<bool> requires_grad;  ///< by parameter; false for an undefined one
  std::vector<bool> training;       ///< of the module and its sub-modules
};

/// Those of converted batch norms follow first (sync_layers.hpp).
module_flags flags_of(torch::nn::Module& module);
/// Leaves parameters and modules alone that `flags` does not reach, and tensors that are no leaves.
void set_flags(torch::nn::Module& module, const module_flags& flags);

/// What differs between the two, by name; empty if nothing does.
nlohmann::json flag_changes(const torch::nn::Module& module, const module_flags& before,
                            const module_flags& now);
/// `flags` with these changes. Names that the module does not have are left out.
module_flags with_changes(const torch::nn::Module& module, module_flags flags,
                          const nlohmann::json& changes);
nlohmann::json flags_to(const module_flags& flags);
module_flags flags_from(const nlohmann::json& flags);

/// How many parameters each group has, by optimizer.
using group_sizes = std::vector<std::vector<std::size_t>>;
group_sizes group_sizes_of(const optimizers& all);
/// Takes away the parameters and groups that came after `sizes`.
void shrink_groups(optimizers& all, const group_sizes& sizes);
/// The names of the parameters that came after `sizes`, by optimizer and group; empty if none did.
nlohmann::json added_parameters(const optimizers& all, const torch::nn::Module& module,
                                const group_sizes& sizes);
/// Adds them again. New groups have the default options of their optimizer. Throws user_error
/// (checkpoint) for a name that the module does not have.
void add_parameters(optimizers& all, const torch::nn::Module& module, const nlohmann::json& added);

}  // namespace troupe
