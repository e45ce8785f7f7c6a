// The precision port: the number formats of a module's weights, of its inputs and of its steps, and
// what they change in backward and in the optimizer's step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "troupe/detail/gradient_scaler.hpp"
#include "troupe/value.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace troupe {

struct module;
class accelerator;
class optimizers;
class strategy;

/// Forward and backward of one optimizer step; may be called more than once. Returns the loss, the
/// same on all ranks; undefined when the step has none.
using step_closure = std::function<at::Tensor()>;

/// The number format of a fit. This class itself is 32-true: it converts and scales nothing. Each
/// rank has an object of its own, which only its lane uses. Order within a step: convert_input,
/// optimizer_step, and in its closure: forward_context around the step, pre_backward, backward,
/// post_backward, pre_optimizer_step, (clipping).
class precision {
public:
  /// Undoes in its destructor what the context switched on, in the same thread.
  class context {
  public:
    virtual ~context() = default;
  };

  virtual ~precision() = default;
  /// As `--precision` takes it; a checkpoint's state is loaded into a precision of the same name
  /// only.
  virtual std::string_view name() const { return "32-true"; }
  /// What the rank computes on; before all other members.
  void place(std::shared_ptr<const accelerator> hardware) { hardware_ = std::move(hardware); }

  /// Why this precision cannot train with an optimizer; empty: it can. Asked before ranks start (of
  /// a precision other than the base, see learner_recipe::check_fit), and by each rank.
  virtual std::string obstacle(const torch::optim::Optimizer& optimizer) const;
  /// Held while the module is made, and while configure_model runs. Null: nothing to switch.
  virtual std::unique_ptr<context> init_context() { return nullptr; }
  /// Once, before weights are loaded and before the module moves to its device.
  virtual void convert_module(torch::nn::Module& module) { (void)module; }
  /// In the hook setup_precision of a fit; with late optimizers in pre_dispatch. `all` may be
  /// changed: the rank trains with the optimizers and schedulers that it holds afterwards. `how`
  /// outlives the precision's use of it.
  virtual void connect(troupe::module& which, optimizers& all, strategy& how);
  /// Tensors of a batch; keeps the batch's type.
  virtual value convert_input(const value& batch) { return batch; }
  /// Held around every step and forward. Null: nothing to switch.
  virtual std::unique_ptr<context> forward_context() { return nullptr; }
  /// Scales the loss.
  virtual at::Tensor pre_backward(const at::Tensor& loss) { return loss; }
  /// `loss` is scaled and weighted. The base calls the module's backward with `arguments`. Runs the
  /// graph once.
  virtual void backward(const at::Tensor& loss, troupe::module& which,
                        torch::optim::Optimizer& optimizer, const value& arguments);
  /// Undoes the scale, for people.
  virtual at::Tensor post_backward(const at::Tensor& loss) { return loss; }
  /// Unscales the gradients, which are summed over ranks, before the module's
  /// on_before_optimizer_step and clipping. May use collectives. In manual optimization
  /// strategy::clip_gradients calls it, too, so it may be called twice for a step.
  virtual void pre_optimizer_step(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// Runs the closure, and updates the weights or leaves them alone: on all ranks alike, and
  /// without a collective after the closure. The base lets the optimizer run the closure.
  virtual void optimizer_step(torch::optim::Optimizer& optimizer, const step_closure& closure);
  /// After the module's optimizer_step has called the closure, whether it came to the call above or
  /// not. Not in manual optimization.
  virtual void end_optimizer_step(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// In manual optimization, after manual_optimizer::zero_grad has dropped the gradients.
  virtual void on_zero_grad(torch::optim::Optimizer& optimizer) { (void)optimizer; }
  /// After each training_step in manual optimization.
  virtual void end_manual_step() {}
  /// JSON text for checkpoints, for ranks that join and for points to return to; empty: no state.
  /// The same on all ranks.
  virtual std::string state() const { return {}; }
  /// Not called for an empty state.
  virtual void load_state(const std::string& json) { (void)json; }
  /// The last call; also after a failure.
  virtual void teardown() {}

protected:
  /// The device type whose autocast a forward_context switches on.
  c10::DeviceType autocast_type() const;

private:
  std::shared_ptr<const accelerator> hardware_;
};

/// Called once per rank, in its lane, and by checks before ranks start. Never returns null.
using precision_factory = std::function<std::unique_ptr<precision>()>;
/// By name, as `--precision` takes it. A program adds or replaces entries.
using precision_table = std::map<std::string, precision_factory, std::less<>>;

/// 16-mixed: weights and gradients in float32, matrix products in float16, the loss scaled. A step
/// with an infinite or undefined gradient on some rank is skipped by all.
std::unique_ptr<precision> make_f16_mixed(scaler_options how = {});

/// 32-true, 64-true, bf16-true, bf16-mixed, 16-true, 16-mixed.
precision_table default_precisions();
/// Lightning's short names work too: 32, 64, 16 (16-mixed) and bf16 (bf16-mixed). Throws user_error
/// (bad_configuration) that lists the known names.
std::unique_ptr<precision> make_precision(const precision_table& known, std::string_view name);

}  // namespace troupe
