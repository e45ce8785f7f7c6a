#include "backends/torch/gradient_watch.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>

namespace troupe {

// A weak reference keeps the address of a gradient from being used again.
struct gradient_watch::state {
  struct member {
    at::Tensor parameter;
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor{})) accumulator;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient{
        at::Tensor{}.getIntrusivePtr()};
    std::int64_t version = 0;  // of `gradient`
  };

  void note(const c10::TensorImpl* parameter) {
    auto& one = members.at(parameter);
    const auto& now = one.parameter.grad();
    one.gradient = decltype(one.gradient){now.getIntrusivePtr()};
    one.version = now.defined() ? now._version() : 0;
  }

  std::unordered_map<const c10::TensorImpl*, member> members;
  bool paused = false;
};

gradient_watch::gradient_watch() : state_(std::make_shared<state>()) {}
gradient_watch::~gradient_watch() = default;

void gradient_watch::add(const std::vector<at::Tensor>& parameters) {
  using list = torch::autograd::variable_list;
  for (const auto& parameter : parameters) {
    if (!parameter.requires_grad() || !parameter.is_leaf()) continue;
    auto& one = state_->members[parameter.unsafeGetTensorImpl()];
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    if (one.accumulator == accumulator) continue;
    one.parameter = parameter;
    one.accumulator = std::move(accumulator);
    one.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [self = std::weak_ptr{state_}, which = parameter.unsafeGetTensorImpl()](const list& outputs,
                                                                                const list&) {
          if (const auto alive = self.lock(); alive && !alive->paused) alive->note(which);
          return outputs;
        }));
  }
}

bool gradient_watch::noted(const at::Tensor& parameter) const {
  const auto found = state_->members.find(parameter.unsafeGetTensorImpl());
  const auto& now = parameter.grad();
  return found != state_->members.end() && now.defined() &&
         found->second.gradient._unsafe_get_target() == now.unsafeGetTensorImpl() &&
         found->second.version == now._version();
}

void gradient_watch::note(const at::Tensor& parameter) {
  state_->note(parameter.unsafeGetTensorImpl());
}

gradient_watch::pause::pause(gradient_watch* whose) : whose_(whose) {
  if (whose_) whose_->state_->paused = true;
}
gradient_watch::pause::~pause() {
  if (whose_) whose_->state_->paused = false;
}

}  // namespace troupe
