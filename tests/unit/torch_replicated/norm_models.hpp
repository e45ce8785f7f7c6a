// Modules with batch norms, and what one of them computes on a batch.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/utils.h>

#include <map>
#include <string>

#include "troupe/sync_batch_norm.hpp"

namespace troupe::testing {

inline const c10::Device cpu{c10::kCPU};

/// Batch norms as a member and in a Sequential; two forwards of the member. `dims` 1, 2 or 3.
struct norm_net : torch::nn::Cloneable<norm_net> {
  norm_net(std::int64_t dims, torch::nn::BatchNormOptions how) : dims_(dims), how_(how) {
    norm_net::reset();
  }
  void reset() override {
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, how_.num_features()));
    if (dims_ == 1) one = register_module("norm", torch::nn::BatchNorm1d(how_));
    if (dims_ == 2) two = register_module("norm", torch::nn::BatchNorm2d(how_));
    if (dims_ == 3) three = register_module("norm", torch::nn::BatchNorm3d(how_));
    stack = torch::nn::Sequential(torch::nn::Tanh());
    if (dims_ == 1) stack->push_back(torch::nn::BatchNorm1d(how_));
    if (dims_ == 2) stack->push_back(torch::nn::BatchNorm2d(how_));
    if (dims_ == 3) stack->push_back(torch::nn::BatchNorm3d(how_));
    register_module("stack", stack);
  }
  at::Tensor norm(const at::Tensor& x) {
    return dims_ == 1 ? one->forward(x) : dims_ == 2 ? two->forward(x) : three->forward(x);
  }
  at::Tensor forward(const at::Tensor& x) {
    std::vector<std::int64_t> row(x.dim(), 1);
    row[1] = x.size(1);
    return stack->forward(norm(norm(x) * scale.view(row)).sin());
  }

  torch::nn::BatchNorm1d one{nullptr};
  torch::nn::BatchNorm2d two{nullptr};
  torch::nn::BatchNorm3d three{nullptr};
  torch::nn::Sequential stack{nullptr};
  at::Tensor scale;

private:
  std::int64_t dims_;
  torch::nn::BatchNormOptions how_;
};

/// A batch of `rows` samples with four channels.
inline at::Tensor samples(std::int64_t dims, std::int64_t rows) {
  std::vector<std::int64_t> shape{rows, 4, 3, 2, 2};
  shape.resize(dims == 1 ? 2 : dims + 2);
  return torch::randn(shape, at::kDouble) * 3 + 5;
}

using named_tensors = std::map<std::string, at::Tensor>;

inline named_tensors tensors_of(const torch::nn::Module& module) {
  named_tensors state;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined()) continue;
    state[item.key()] = item.value().detach().clone();
    if (item.value().grad().defined()) state[item.key() + ".grad"] = item.value().grad().clone();
  }
  for (const auto& item : module.named_buffers())
    if (item.value().defined()) state[item.key()] = item.value().clone();
  return state;
}

/// Empty if both have the same names and tensors, else the first that differs.
inline std::string difference(const named_tensors& a, const named_tensors& b, double most) {
  for (const auto& [name, tensor] : b)
    if (!a.contains(name)) return name + " is missing";
  for (const auto& [name, tensor] : a) {
    if (!b.contains(name)) return name + " is extra";
    const auto& other = b.at(name);
    if (tensor.sizes() != other.sizes()) return name + " has another shape";
    if (tensor.numel() == 0) continue;
    const auto apart = (tensor.to(at::kDouble) - other.to(at::kDouble)).abs().max().item<double>();
    if (!(apart <= most)) return name + " differs by " + std::to_string(apart);
  }
  return {};
}

/// Some function of an output, different for each of its elements.
inline at::Tensor loss_of(const at::Tensor& y, const at::Tensor& target) {
  return ((y - target) * (y + 0.3 * target).cos()).sum();
}

}  // namespace troupe::testing
