#include "backends/torch/fused_step.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <ATen/ops/clamp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/collective/canonical_reduction.hpp"
#include "backends/torch/collective_wait.hpp"
#include "backends/torch/sliced_optimizer.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

/// The addresses that a rank shares with the others: of a parameter and of its gradient.
struct entry {
  float* parameter;
  float* gradient;
};

}  // namespace

struct fused_step::state {
  struct piece {
    std::size_t entry;
    std::size_t slice;
  };

  std::shared_ptr<communicator> world;
  torch::optim::Optimizer* optimizer;
  std::unique_ptr<sliced_optimizer> sliced;  // rank 0 only
  double limit = 0;
  hooks::clip_gradients::algorithm how{};

  // The step in progress. All ranks read the pointers of all ranks. The thread that computes a
  // slice also reads the other members of rank 0.
  std::vector<entry> entries;
  std::vector<piece> pieces;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> norms;
  at::Tensor coefficient;

  bool leads() const { return sliced != nullptr; }
  void collect();
  void together(std::string_view label, std::size_t count, communicator::shared_body body);
  void sum(std::span<const void* const> everybodys, const piece& what) const;
  void take_norms();
  void update(std::span<const void* const> everybodys, const piece& what);
};

std::string fused_step::obstacle(const torch::optim::Optimizer& optimizer,
                                 const communicator& world) {
  if (!world.shares_memory()) return fmt::format("the ranks of {} share no memory", world.name());
  return sliced_optimizer::obstacle(optimizer);
}

fused_step::fused_step(std::shared_ptr<communicator> world, torch::optim::Optimizer& optimizer)
    : state_(std::make_unique<state>()) {
  state_->optimizer = &optimizer;
  if (world->group().rank == 0) state_->sliced = sliced_optimizer::of(optimizer);
  state_->world = std::move(world);
}

fused_step::~fused_step() = default;

void fused_step::clip(double limit, hooks::clip_gradients::algorithm how) {
  state_->limit = limit;
  state_->how = how;
}

// Checks that all ranks have the same parameters in the same order.
void fused_step::state::collect() {
  entries.clear();
  pieces.clear();
  gradients.clear();
  for (const auto& [p, options] : sliced_optimizer::all_due(*optimizer)) {
    const auto& grad = p.grad();
    if (grad.scalar_type() != at::kFloat || grad.strides() != p.strides())
      throw internal_error("fused step: a gradient is not laid out as its parameter");
    const auto slices = sliced_optimizer::slices_of(p.numel());
    for (std::size_t i = 0; i < slices; ++i) pieces.push_back({entries.size(), i});
    if (leads()) sliced->prepare(entries.size(), p, *options);
    gradients.push_back(grad);
    entries.push_back({p.mutable_data_ptr<float>(), grad.mutable_data_ptr<float>()});
  }
}

void fused_step::state::together(std::string_view label, std::size_t count,
                                 communicator::shared_body body) {
  wait_for(*world, world->work_together(label, &entries, count, std::move(body)));
}

// Sums a slice into rank 0's gradient.
void fused_step::state::sum(std::span<const void* const> everybodys, const piece& what) const {
  const auto part = sliced->part_of(what.entry, what.slice);
  std::vector<const void*> sources;
  for (const auto* one : everybodys) {
    const auto& theirs = *static_cast<const std::vector<entry>*>(one);
    sources.push_back(theirs[what.entry].gradient + part.offset);
  }
  void* const target = entries[what.entry].gradient + part.offset;
  canonical_reduce(dtype::f32, reduction::sum, sources, {&target, 1},
                   static_cast<std::size_t>(part.count));
}

// Does the same as torch::nn::utils::clip_grad_norm_, with the norms spread over the ranks.
void fused_step::state::take_norms() {
  if (gradients.empty()) return;
  norms.assign(gradients.size(), at::Tensor{});
  together("sum gradients", pieces.size(),
           [this](auto everybodys, std::size_t i) { sum(everybodys, pieces[i]); });
  together("norms of gradients", gradients.size(),
           [this](auto, std::size_t i) { norms[i] = gradients[i].norm(2.0); });
  if (!leads()) return;
  const auto total = norms.size() == 1 ? norms[0] : at::stack(norms).norm(2.0);
  coefficient = at::clamp(at::full_like(total, limit).div_(total.add(1e-6)), std::nullopt, 1.0);
}

void fused_step::state::update(std::span<const void* const> everybodys, const piece& what) {
  const bool by_norm = coefficient.defined();
  if (!by_norm) sum(everybodys, what);
  const auto part = sliced->part_of(what.entry, what.slice);
  if (by_norm)
    part.gradient.mul_(coefficient);
  else if (limit > 0)
    part.gradient.clamp_(-limit, limit);
  sliced->update(what.entry, what.slice);
  if (part.count == 0) return;  // a parameter without elements may have no memory
  const auto* from = entries[what.entry].parameter + part.offset;
  for (const auto* one : everybodys.subspan(1)) {
    const auto& theirs = *static_cast<const std::vector<entry>*>(one);
    std::memcpy(theirs[what.entry].parameter + part.offset, from,
                static_cast<std::size_t>(part.count) * sizeof(float));
  }
}

void fused_step::run() {
  auto& s = *state_;
  const at::NoGradGuard no_grad;
  s.collect();
  s.coefficient = at::Tensor{};
  if (s.limit > 0 && s.how == hooks::clip_gradients::algorithm::norm) s.take_norms();
  s.together("fused step", s.pieces.size(),
             [&s](auto everybodys, std::size_t i) { s.update(everybodys, s.pieces[i]); });
  s.limit = 0;
  s.gradients.clear();  // so that the next zero frees them
  if (s.leads()) return s.sliced->finish();
  sliced_optimizer::forget_state(*s.optimizer);
  for (const auto& one : sliced_optimizer::all_due(*s.optimizer))
    one.parameter.unsafeGetTensorImpl()->bump_version();  // other threads have written to them
}

}  // namespace troupe
