#include "backends/torch/hook_changes.hpp"

#include <fmt/format.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "backends/torch/sync_layers.hpp"
#include "troupe/failure.hpp"
#include "troupe/optimizers.hpp"

namespace troupe {

namespace {

using nlohmann::json;
constexpr const char* of_parameters = "requires_grad";
constexpr const char* of_modules = "training";

std::vector<std::string> names_of_parameters(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

std::vector<std::string> names_of_modules(const torch::nn::Module& module) {
  return module.named_modules().keys();
}

json differences(const std::vector<std::string>& names, const std::vector<bool>& before,
                 const std::vector<bool>& now) {
  auto all = json::object();
  for (std::size_t i = 0; i < names.size() && i < before.size() && i < now.size(); ++i)
    if (before[i] != now[i]) all[names[i]] = static_cast<bool>(now[i]);
  return all;
}

void set_changed(std::vector<bool>& flags, const std::vector<std::string>& names,
                 const json& changes) {
  for (std::size_t i = 0; i < names.size() && i < flags.size(); ++i)
    if (const auto found = changes.find(names[i]); found != changes.end())
      flags[i] = found->get<bool>();
}

std::vector<at::Tensor>& group_to_extend(torch::optim::Optimizer& optimizer, std::size_t group) {
  if (group == optimizer.param_groups().size())
    optimizer.add_param_group(torch::optim::OptimizerParamGroup{std::vector<at::Tensor>{}});
  return optimizer.param_groups().at(group).params();
}

}  // namespace

module_flags flags_of(torch::nn::Module& module) {
  follow_replaced_norms(module);
  module_flags all;
  for (const auto& one : module.parameters())
    all.requires_grad.push_back(one.defined() && one.requires_grad());
  for (const auto& one : module.modules()) all.training.push_back(one->is_training());
  return all;
}

void set_flags(torch::nn::Module& module, const module_flags& flags) {
  follow_replaced_norms(module);
  const auto parameters = module.parameters();
  for (std::size_t i = 0; i < parameters.size() && i < flags.requires_grad.size(); ++i) {
    const auto& one = parameters[i];
    if (one.defined() && one.is_leaf() && one.requires_grad() != flags.requires_grad[i])
      one.set_requires_grad(flags.requires_grad[i]);
  }
  const auto modules = module.modules();  // each before its sub-modules, which train() changes
  for (std::size_t i = 0; i < modules.size() && i < flags.training.size(); ++i)
    if (modules[i]->is_training() != flags.training[i]) modules[i]->train(flags.training[i]);
}

json flag_changes(const torch::nn::Module& module, const module_flags& before,
                  const module_flags& now) {
  auto all = json::object();
  if (before.requires_grad != now.requires_grad)
    all[of_parameters] =
        differences(names_of_parameters(module), before.requires_grad, now.requires_grad);
  if (before.training != now.training)
    all[of_modules] = differences(names_of_modules(module), before.training, now.training);
  return all;
}

module_flags with_changes(const torch::nn::Module& module, module_flags flags,
                          const json& changes) {
  if (const auto found = changes.find(of_parameters); found != changes.end())
    set_changed(flags.requires_grad, names_of_parameters(module), *found);
  if (const auto found = changes.find(of_modules); found != changes.end())
    set_changed(flags.training, names_of_modules(module), *found);
  return flags;
}

json flags_to(const module_flags& flags) { return {flags.requires_grad, flags.training}; }

module_flags flags_from(const json& flags) {
  return {flags.at(0).get<std::vector<bool>>(), flags.at(1).get<std::vector<bool>>()};
}

group_sizes group_sizes_of(const optimizers& all) {
  group_sizes sizes;
  for (const auto& one : all.all()) {
    auto& groups = sizes.emplace_back();
    for (const auto& group : one.optimizer->param_groups()) groups.push_back(group.params().size());
  }
  return sizes;
}

void shrink_groups(optimizers& all, const group_sizes& sizes) {
  for (std::size_t i = 0; i < all.all().size() && i < sizes.size(); ++i) {
    auto& groups = all.all()[i].optimizer->param_groups();
    if (groups.size() > sizes[i].size())
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(sizes[i].size()), groups.end());
    for (std::size_t g = 0; g < groups.size(); ++g)
      if (groups[g].params().size() > sizes[i][g]) groups[g].params().resize(sizes[i][g]);
  }
}

json added_parameters(const optimizers& all, const torch::nn::Module& module,
                      const group_sizes& sizes) {
  if (group_sizes_of(all) == sizes) return json::array();
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  auto added = json::array();
  for (std::size_t i = 0; i < all.all().size(); ++i) {
    auto& groups = added.emplace_back(json::array());
    for (const auto& group : all.all()[i].optimizer->param_groups()) {
      const auto g = groups.size();
      const auto from = i < sizes.size() && g < sizes[i].size() ? sizes[i][g] : 0;
      auto& here = groups.emplace_back(json::array());
      for (auto at = from; at < group.params().size(); ++at) {
        const auto name = names.find(group.params()[at].unsafeGetTensorImpl());
        here.push_back(name == names.end() ? std::string{} : name->second);
      }
    }
  }
  return added;
}

void add_parameters(optimizers& all, const torch::nn::Module& module, const json& added) {
  const auto known = module.named_parameters();
  for (std::size_t i = 0; i < added.size() && i < all.all().size(); ++i)
    for (std::size_t g = 0; g < added[i].size(); ++g) {
      auto& here = group_to_extend(*all.all()[i].optimizer, g);
      for (const auto& name : added[i][g]) {
        const auto* one = known.find(name.get<std::string>());
        if (!one)
          throw user_error(errc::checkpoint,
                           fmt::format("a hook gave optimizer {} the parameter \"{}\" before this "
                                       "state was saved, and the module has none of that name: go "
                                       "on with the model it was saved from",
                                       i, name.get<std::string>()));
        here.push_back(*one);
      }
    }
}

}  // namespace troupe
