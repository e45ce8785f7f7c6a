// Modules that run backward and their optimizers themselves (module::automatic_optimization).
#include <fmt/format.h>

#include "backends/torch/torch_learner.hpp"
#include "troupe/data_parallel.hpp"

namespace troupe {

void torch_learner::refuse_manual() const {
  const auto& o = about_.options;
  const auto refuse = [](std::string_view what) {
    throw user_error(errc::bad_configuration,
                     fmt::format("the module's automatic_optimization returns false: {}", what));
  };
  if (o.accumulate_grad_batches > 1)
    refuse("call step and zero_grad in each n-th batch, and set accumulate_grad_batches to 1");
  if (!o.accumulate_schedule.empty())
    refuse("call step and zero_grad in each n-th batch, and leave accumulate_schedule out");
  if (o.gradient_clip_val.value_or(0) > 0)
    refuse("clip with strategy_in_use()->clip_gradients, and leave gradient_clip_val out");
  if (splits_batches()) refuse("leave truncated_bptt_steps out");
  if (strategy_->handles_gradient_accumulation())
    refuse(fmt::format("the strategy {} counts micro-batches itself", strategy_->name()));
}

// Only the last batch of an epoch may have fewer samples than others. A rank without one would not
// run its training_step, and the others would wait for its gradients.
void torch_learner::refuse_empty_share(std::int64_t epoch) {
  const auto layout = cursor_at(at_).way->layout(epoch);
  const auto last = limit_of(stage::train, layout.batches()) - 1;
  if (last < layout.first_batch || layout.samples(last, last) >= layout.ranks) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("the last batch of an epoch has {} samples for {} ranks, and in "
                               "manual optimization each rank needs some: set drop_last for the "
                               "training data, or limit_train_batches to {}",
                               layout.samples(last, last), layout.ranks, last));
}

void torch_learner::backward_manually(const at::Tensor& loss) {
  if (!in_manual_)
    throw user_error(errc::job_failed,
                     "manual_backward: call it in training_step, in a module whose "
                     "automatic_optimization returns false");
  const auto total = cursor_at(at_).way->layout(at_.epoch).samples(at_.batch, at_.batch);
  const auto scaled = strategy_->pre_backward(loss);
  callbacks_.call(*module_, &callback::on_before_backward, scaled);
  module_->on_before_backward(scaled);
  strategy_->manual_backward(scaled,
                             static_cast<double>(batch_.samples()) / static_cast<double>(total));
  callbacks_.call(*module_, &callback::on_after_backward);
  module_->on_after_backward();
}

void torch_learner::step_manually(std::int32_t index, const step_closure& closure) {
  if (!in_manual_)
    throw user_error(errc::job_failed,
                     "optimizer().step: call it in training_step, in a module whose "
                     "automatic_optimization returns false");
  const auto before = std::exchange(at_.optimizer, index);
  auto& which = optimizer();
  const step_closure run = [&] {
    auto loss = closure ? closure() : at::Tensor{};
    if (const auto* sums = dynamic_cast<const data_parallel*>(strategy_.get()))
      sums->refuse_unsummed(which);
    precision_->pre_optimizer_step(which);
    callbacks_.call(*module_, &callback::on_before_optimizer_step, which);
    module_->on_before_optimizer_step(which);
    return loss;
  };
  strategy_->optimizer_step(which, index, run, *module_);
  at_.optimizer = before;
}

void torch_learner::end_manual_step(const position& at) {
  synchronize_buffers();
  look_at_clock();
  if (keeps_points()) {
    books_of_step_ = true;
    exchange_books();
  }
  agree_on_stop();
  mark_step();
  stepped_ = true;
  steps_reported_ = false;
  outcome_->samples = cursor_at(at).way->layout(at.epoch).samples(at.batch, at.batch);
  done_.batch = at.batch + 1;
  done_.steps = at.step + 1;
  done_.samples += outcome_->samples;
  done_.cursor += outcome_->samples;
  in_step_ = false;
  report_due();
  if (keeps_points()) step_updated(at);
}

}  // namespace troupe
