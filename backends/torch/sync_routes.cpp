// Calls of converted batch norms reach their synchronised layers.
//
// How: a module's member is of LibTorch's type, and its forward is not virtual, so no object can
// take its place. All such calls end in the operator aten::batch_norm. While a thread has a scope,
// a kernel under a dispatch key that LibTorch leaves to its users sees each call first, as in
// rank_random. It recognises a converted batch norm by the address of its running mean or weight.
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "backends/torch/replication.hpp"
#include "backends/torch/sync_batch_norm_parts.hpp"
#include "backends/torch/sync_layers.hpp"

namespace troupe {

namespace {

constexpr auto route_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

using route_table = std::unordered_map<const c10::TensorImpl*, sync_batch_norm_impl*>;
thread_local const route_table* routes_of_thread = nullptr;

at::Tensor routed_batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, bool training,
                             double momentum, double eps, bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard below(route_key);
  for (const auto& mark : {running_mean, weight})
    if (routes_of_thread && mark && mark->defined())
      if (const auto found = routes_of_thread->find(mark->unsafeGetTensorImpl());
          found != routes_of_thread->end())
        return found->second->forward(input);
  return at::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                        cudnn_enabled);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, m) {
  m.impl("batch_norm", TORCH_FN(routed_batch_norm));
}

/// What converters and scopes do to layers.
struct sync_layers {
  using conversions = std::map<const torch::nn::Module*, std::shared_ptr<sync_batch_norm_impl>>;

  template <class Norm>
  static std::shared_ptr<sync_batch_norm_impl> stand_in(const std::shared_ptr<Norm>& norm,
                                                        std::int64_t dims,
                                                        const sync_batch_norm_conversion& how) {
    auto layer = std::make_shared<sync_batch_norm_impl>(
        sync_batch_norm_options{norm->options, dims, how.eps_mode, how.among},
        sync_batch_norm_impl::tensors{norm->weight, norm->bias, norm->running_mean,
                                      norm->running_var, norm->num_batches_tracked});
    layer->train(norm->is_training());
    layer->replaced_ = std::make_shared<sync_batch_norm_impl::replaced_norm>();
    auto& replaced = *layer->replaced_;
    replaced.train = [norm](bool on) { norm->train(on); };
    replaced.follow = [norm, momentum = norm->options.momentum(),
                       eps = norm->options.eps()](sync_batch_norm_impl& layer) mutable {
      layer.train(norm->is_training());
      auto& to = layer.options.norm;
      if (momentum != norm->options.momentum()) to.momentum(momentum = norm->options.momentum());
      if (eps != norm->options.eps()) to.eps(eps = norm->options.eps());
    };
    replaced.clone = [norm](const auto& device) { return norm->clone(device); };
    const bool tracked = norm->options.track_running_stats();
    const bool unnamed = !norm->running_mean.defined() && !norm->weight.defined();
    replaced.route = [norm, tracked, unnamed](bool on) {
      norm->options.track_running_stats(on || tracked);
      if (on) norm->train(false);
      if (unnamed) norm->weight = on ? at::empty({0}) : at::Tensor{};
      return norm->running_mean.defined() ? norm->running_mean : norm->weight;
    };
    return layer;
  }

  static void follow(sync_batch_norm_impl& layer) {
    if (layer.replaced_ && !layer.replaced_->routed) layer.replaced_->follow(layer);
  }

  static bool is_norm(const torch::nn::Module* module) {
    return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(module) ||
           dynamic_cast<const torch::nn::BatchNorm2dImpl*>(module) ||
           dynamic_cast<const torch::nn::BatchNorm3dImpl*>(module);
  }

  /// Null if `child` is no batch norm of LibTorch.
  static std::shared_ptr<sync_batch_norm_impl> stand_in_of(
      const std::shared_ptr<torch::nn::Module>& child, const sync_batch_norm_conversion& how) {
    if (const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(child))
      return stand_in(norm, 1, how);
    if (const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(child))
      return stand_in(norm, 2, how);
    if (const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm3dImpl>(child))
      return stand_in(norm, 3, how);
    return nullptr;
  }

  /// A batch norm that has several names gets one layer, which `made` keeps.
  static void convert(torch::nn::Module& parent, const sync_batch_norm_conversion& how,
                      conversions& made) {
    for (const auto& child : parent.named_children()) {
      if (!child.value()) continue;
      auto& known = made[child.value().get()];
      if (!known) known = stand_in_of(child.value(), how);
      if (known)
        parent.replace_module(child.key(), known);
      else
        convert(*child.value(), how, made);
    }
  }

  static void convert_copy(torch::nn::Module& original, torch::nn::Module& copy,
                           conversions& made) {
    const auto children = copy.named_children();
    for (const auto& child : original.named_children()) {
      const auto* other = children.find(child.key());
      if (!child.value() || !other || !*other) continue;
      const auto layer = std::dynamic_pointer_cast<sync_batch_norm_impl>(child.value());
      if (!layer || !layer->replaced_) {
        convert_copy(*child.value(), **other, made);
        continue;
      }
      auto& known = made[other->get()];
      if (!known) known = stand_in_of(*other, {layer->options.among, layer->options.eps_mode});
      if (!known) continue;  // a copy that is converted already
      known->ranks_ = layer->ranks_;
      copy.replace_module(child.key(), known);
    }
  }
};

std::size_t convert_sync_batch_norm(torch::nn::Module& module,
                                    const sync_batch_norm_conversion& how) {
  // The module may be under construction: no shared pointer owns it yet.
  if (sync_layers::is_norm(&module))
    throw user_error(errc::bad_configuration,
                     "convert_sync_batch_norm replaces batch norms below a module: pass the module "
                     "that holds this batch norm, or make a sync_batch_norm");
  sync_layers::conversions made;
  sync_layers::convert(module, how, made);
  return static_cast<std::size_t>(
      std::count_if(made.begin(), made.end(), [](const auto& one) { return one.second; }));
}

void copy_sync_layers(torch::nn::Module& original, torch::nn::Module& copy) {
  sync_layers::conversions made;
  sync_layers::convert_copy(original, copy, made);
}

void follow_replaced_norms(torch::nn::Module& module) {
  for (const auto& one : module.modules(/*include_self=*/false))
    if (const auto layer = dynamic_cast<sync_batch_norm_impl*>(one.get()))
      sync_layers::follow(*layer);
}

struct sync_batch_norm_scope::routes {
  struct entry {
    sync_batch_norm_impl* layer;
    std::shared_ptr<const sync_batch_norm_impl::rank_group> ranks_before;
    bool routed_here = false;
  };
  std::vector<std::shared_ptr<torch::nn::Module>> alive;
  std::vector<entry> entries;
  route_table table;
  const route_table* outer = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> on;
};

namespace {

/// This rank's group: those of `members` that `among` names. Null if it has no other rank.
subgroup group_of(const communicator& world, const subgroup& members, const subgroup& among) {
  subgroup group = among.ranks.empty() ? members : among;
  if (group.ranks.empty())
    for (std::int32_t rank = 0; rank < world.group().world; ++rank) group.ranks.push_back(rank);
  if (!members.ranks.empty())
    std::erase_if(group.ranks, [&](std::int32_t rank) {
      return std::find(members.ranks.begin(), members.ranks.end(), rank) == members.ranks.end();
    });
  return group;
}

}  // namespace

sync_batch_norm_scope::sync_batch_norm_scope(torch::nn::Module& module,
                                             std::shared_ptr<communicator> world,
                                             const subgroup& members)
    : routes_(std::make_unique<routes>()) {
  auto& r = *routes_;
  r.alive = module.modules(/*include_self=*/false);
  const auto enter = [&](sync_batch_norm_impl* layer) {
    if (!layer) return;
    r.entries.push_back({layer, layer->ranks_});
    if (world) {
      auto group = group_of(*world, members, layer->options.among);
      layer->ranks_ = group.ranks.size() < 2
                          ? nullptr
                          : std::make_shared<const sync_batch_norm_impl::rank_group>(
                                sync_batch_norm_impl::rank_group{world, std::move(group)});
    }
    if (!layer->replaced_) return;
    auto& replaced = *layer->replaced_;
    if (!replaced.routed) {
      replaced.follow(*layer);
      replaced.routed = true;
      r.entries.back().routed_here = true;
      replaced.mark = replaced.route(true);
    }
    r.table[replaced.mark.unsafeGetTensorImpl()] = layer;
  };
  enter(dynamic_cast<sync_batch_norm_impl*>(&module));
  for (const auto& one : r.alive) enter(dynamic_cast<sync_batch_norm_impl*>(one.get()));
  if (r.table.empty()) return;
  if (routes_of_thread) r.table.insert(routes_of_thread->begin(), routes_of_thread->end());
  r.outer = std::exchange(routes_of_thread, &r.table);
  r.on.emplace(route_key);
}

sync_batch_norm_scope::~sync_batch_norm_scope() {
  if (routes_->on) routes_of_thread = routes_->outer;
  for (auto one = routes_->entries.rbegin(); one != routes_->entries.rend(); ++one) {
    one->layer->ranks_ = std::move(one->ranks_before);
    if (!one->routed_here) continue;
    auto& replaced = *one->layer->replaced_;
    replaced.route(false);
    replaced.routed = false;
    replaced.mark = at::Tensor{};
    replaced.train(one->layer->is_training());
  }
}

std::shared_ptr<void> detail::routes_of_copy(torch::nn::Module& copy) {
  return std::make_shared<sync_batch_norm_scope>(copy);
}

void sync_batch_norm_impl::train(bool on) {
  torch::nn::Module::train(on);
  if (replaced_ && !replaced_->routed) replaced_->train(on);
}

std::shared_ptr<torch::nn::Module> sync_batch_norm_impl::clone(
    const std::optional<c10::Device>& device) const {
  if (replaced_) return replaced_->clone(device);
  return torch::nn::Cloneable<sync_batch_norm_impl>::clone(device);
}

}  // namespace troupe
