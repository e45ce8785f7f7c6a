// Buffers of a point. After the update of a step all ranks have the same ones. on_train_batch_end
// may then change them by what its rank has seen, until the next step makes them rank 0's again. A
// point after that hook keeps both.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "backends/torch/torch_learner.hpp"
#include "troupe/detail/tensor.hpp"

namespace troupe {

void torch_learner::keep_buffers() {
  const at::NoGradGuard no_grad;
  auto& kept = kept_->buffers;
  kept_->has_common = kept_->has_common && common_stays_;
  std::size_t i = 0;
  for (const auto& buffer : module_->buffers()) {
    if (!buffer.defined()) continue;
    if (i == kept.size()) kept.emplace_back();
    auto& one = kept[i++];
    if (one.tensor.is_same(buffer) && one.copy.sizes() == buffer.sizes())
      one.copy.copy_(buffer);
    else
      one = {buffer, buffer.detach().clone()};
  }
  kept.resize(i);
}

// The last step's point gets what on_train_batch_end has changed.
void torch_learner::keep_end_of_step() {
  if (!std::exchange(step_end_due_, false)) return;
  auto& k = *kept_;
  k.common.resize(k.buffers.size());
  for (std::size_t i = 0; i < k.buffers.size(); ++i) {
    auto& copy = k.buffers[i].copy;
    auto& common = k.common[i];
    if (!common.defined() || common.sizes() != copy.sizes() || common.dtype() != copy.dtype())
      common = at::empty_like(copy);
    std::swap(common, copy);
  }
  keep_point();
  k.has_common = true;
  tensors_kept_ = true;  // the run that ends with this hook keeps them, too
}

// Of the point that was kept last: by name, as all ranks had them. Empty: as they are.
std::vector<std::pair<std::string, at::Tensor>> torch_learner::common_buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> found;
  if (!kept_ || !kept_->has_common) return found;
  for (const auto& item : module_->named_buffers())
    if (item.value().defined() && found.size() < kept_->common.size())
      found.emplace_back(item.key(), kept_->common[found.size()]);
  return found;
}

// What this rank's hook has made of them.
std::vector<tensor_blob> torch_learner::own_buffers() const {
  std::vector<tensor_blob> found;
  const auto all = module_->named_buffers();
  for (const auto& [name, common] : common_buffers())
    if (const auto& own = all[name]; !own.equal(common)) found.push_back(blob_of(name, own));
  return found;
}

// After keep_point. A rank that joins goes on with the buffers of the rank that sent them.
void torch_learner::take_own_buffers(const std::vector<tensor_blob>& from) {
  if (from.empty()) return;
  const at::NoGradGuard no_grad;
  auto all = module_->named_buffers();
  for (const auto& blob : from)
    if (auto* own = all.find(blob.name)) own->detach().copy_(tensor_of(blob));
  step_end_due_ = true;
  keep_end_of_step();
  tensors_kept_ = false;
}

}  // namespace troupe
