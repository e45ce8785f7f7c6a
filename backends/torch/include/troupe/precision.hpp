// The precision port: the number formats of a module's weights, of its inputs and of its steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "troupe/value.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe {

/// The base is 32-true: nothing is converted, nothing is scaled. One per rank; used by its lane
/// only. Order within a step: convert_input, forward_context around the step, pre_backward, (the
/// backward), post_backward, pre_optimizer_step, (clipping), optimizer_step.
class precision {
public:
  /// Undoes in its destructor what the context switched on, in the same thread.
  class context {
  public:
    virtual ~context() = default;
  };

  virtual ~precision() = default;
  virtual std::string_view name() const { return "32-true"; }

  /// Once, before the module moves to its device.
  virtual void convert_module(torch::nn::Module& module) { (void)module; }
  /// Tensors of a batch; keeps the batch's type.
  virtual value convert_input(const value& batch) { return batch; }
  /// Held around every step and forward. Null: nothing to switch.
  virtual std::unique_ptr<context> forward_context() { return nullptr; }
  /// Scales the loss.
  virtual at::Tensor pre_backward(const at::Tensor& loss) { return loss; }
  /// Undoes the scale, for people.
  virtual at::Tensor post_backward(const at::Tensor& loss) { return loss; }
  /// Unscales the gradients, before the module's on_before_optimizer_step and clipping.
  virtual void pre_optimizer_step(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// False: this step's gradients are unusable, leave the weights alone.
  virtual bool step_allowed(torch::optim::Optimizer& optimizer) {
    (void)optimizer;
    return true;
  }
  /// True when the optimizer may call its closure more than once.
  virtual bool allows_closures() const { return true; }
  /// JSON text for a checkpoint; empty: no state.
  virtual std::string state() const { return {}; }
  virtual void load_state(const std::string& json) { (void)json; }
  virtual void teardown() {}
};

using precision_factory = std::function<std::unique_ptr<precision>()>;
/// By name, as `--precision` takes it. A program adds or replaces entries.
using precision_table = std::map<std::string, precision_factory, std::less<>>;

/// 32-true, 64-true, bf16-true, bf16-mixed.
precision_table default_precisions();
/// Throws user_error (bad_configuration) that lists the known names.
std::unique_ptr<precision> make_precision(const precision_table& known, std::string_view name);

}  // namespace troupe
