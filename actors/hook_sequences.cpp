#include "actors/hook_sequences.hpp"

#include "troupe/failure.hpp"

#include <algorithm>

namespace troupe::hook_sequences {

namespace {

using namespace troupe::hooks;

bool is_fit(const fit_plan& plan) { return plan.purpose == stage::train; }

bool nothing_of(const batch_limit& limit) {
  return std::visit([](auto x) { return x == 0; }, limit);
}

template <class... Plain>
void append(const position& at, hook_list& out) {
  (out.emplace_back(Plain{{at}}), ...);
}

position loader_at(stage s, std::int32_t dataloader) {
  position at;
  at.stage = s;
  at.dataloader = dataloader;
  return at;
}

struct of_validation {
  using model_eval = on_validation_model_eval;
  using start = on_validation_start;
  using epoch_start = on_validation_epoch_start;
  using batch_start = on_validation_batch_start;
  using batch_end = on_validation_batch_end;
  using epoch_end = on_validation_epoch_end;
  using end = on_validation_end;
  using model_train = on_validation_model_train;
};
struct of_test {
  using model_eval = on_test_model_eval;
  using start = on_test_start;
  using epoch_start = on_test_epoch_start;
  using batch_start = on_test_batch_start;
  using batch_end = on_test_batch_end;
  using epoch_end = on_test_epoch_end;
  using end = on_test_end;
  using model_train = on_test_model_train;
};
struct of_predict {
  using model_eval = on_predict_model_eval;
  using start = on_predict_start;
  using epoch_start = on_predict_epoch_start;
  using batch_start = on_predict_batch_start;
  using batch_end = on_predict_batch_end;
  using epoch_end = on_predict_epoch_end;
  using end = on_predict_end;
  using model_train = on_predict_model_train;
};

// Calls `what` with the names of the evaluation that stage `s` runs.
template <class F>
void with_names(stage s, F what) {
  switch (s) {
    case stage::sanity:
    case stage::validate: return what(of_validation{});
    case stage::test: return what(of_test{});
    case stage::predict: return what(of_predict{});
    case stage::start:
    case stage::train:
    case stage::call: break;
  }
  throw internal_error("an evaluation at a stage that has none");
}

void evaluation_step(const position& at, hook_list& out) {
  switch (at.stage) {
    case stage::test: return append<test_step, test_step_end>(at, out);
    case stage::predict: return append<predict_step>(at, out);
    default: return append<validation_step, validation_step_end>(at, out);
  }
}

bool completes_window(const micro_batch& batch) { return batch.at.batch == batch.window_last; }

bool steps_behind(const optimizer_facts& facts, const micro_batch& batch) {
  return completes_window(batch) || facts.accumulates_itself;
}

void closure_of(const fit_plan& plan, const optimizer_facts& facts, const micro_batch& batch,
                const position& at, hook_list& out) {
  const bool first = at.batch == batch.window_first;
  append<training_step, training_step_end>(at, out);
  if (first) append<on_before_zero_grad, optimizer_zero_grad>(at, out);
  append<pre_backward, on_before_backward>(at, out);
  out.emplace_back(backward::of_window(at, batch.window_first, batch.window_last));
  append<on_after_backward, post_backward>(at, out);
  if (!steps_behind(facts, batch)) return;
  append<on_before_optimizer_step>(at, out);
  if (plan.clip) out.emplace_back(clip_gradients{at, plan.clip->limit, plan.clip->how});
}

}  // namespace

void prepare(const fit_plan& plan, hook_list& out) {
  const position at;
  append<connect, setup_environment>(at, out);
  if (plan.purpose == stage::call) return;
  append<prepare_data>(at, out);
  out.emplace_back(barrier{at, "pre_setup"});
  append<setup>(at, out);
  out.emplace_back(barrier{at, "post_setup"});
  append<model_sharded_context, configure_model>(at, out);
  if (!plan.resume.empty()) {
    out.emplace_back(load_checkpoint{at, plan.resume, load_checkpoint::part::weights});
    append<on_load_checkpoint>(at, out);
  }
  append<model_to_device>(at, out);
  if (is_fit(plan)) append<setup_optimizers>(at, out);
  append<setup_precision>(at, out);
  append<process_dataloader>(loader_at(plan.purpose, 0), out);
  if (is_fit(plan) && !nothing_of(plan.val_batches))
    append<process_dataloader>(loader_at(stage::validate, 0), out);
}

void launch(const fit_plan& plan, const std::vector<loader_length>& loaders, hook_list& out) {
  const position at;
  for (const auto& loader : loaders)
    if (loader.dataloader > 0)
      append<process_dataloader>(loader_at(loader.stage, loader.dataloader), out);
  if (is_fit(plan)) append<on_fit_start>(at, out);
  append<pre_dispatch>(at, out);
  if (is_fit(plan) && !plan.resume.empty())
    out.emplace_back(load_checkpoint{at, plan.resume, load_checkpoint::part::everything});
  auto dispatched = at;
  if (plan.purpose == stage::call) dispatched.stage = stage::call;
  append<dispatch>(dispatched, out);
  if (plan.purpose != stage::call) out.emplace_back(barrier{at, "run-stage"});
}

void train_batch(const fit_plan& plan, const optimizer_facts& facts, const micro_batch& batch,
                 hook_list& out) {
  append<batch_to_device, on_train_batch_start>(batch.at, out);
  if (facts.splits_batches) append<tbptt_split_batch>(batch.at, out);
  if (facts.manual) append<training_step, training_step_end>(batch.at, out);
  const bool steps = steps_behind(facts, batch);
  const bool completes = completes_window(batch);
  for (auto at = batch.at; !facts.manual && at.split < std::max(1, batch.splits); ++at.split)
    for (at.optimizer = 0; at.optimizer < std::max(1, facts.optimizers); ++at.optimizer) {
      const auto step = out.size();
      if (steps) out.emplace_back(optimizer_step{at, 0});
      closure_of(plan, facts, batch, at, out);
      if (steps) out[step] = optimizer_step{at, static_cast<std::uint32_t>(out.size() - step - 1)};
    }
  auto behind = batch.at;
  if (completes) ++behind.step;
  if (completes && facts.step_schedulers)
    out.emplace_back(lr_scheduler_step{behind, lr_scheduler_step::interval::step});
  append<on_train_batch_end>(behind, out);
}

void epoch_end(const optimizer_facts& facts, const position& at, hook_list& out) {
  append<on_train_epoch_end>(at, out);
  if (facts.epoch_schedulers)
    out.emplace_back(lr_scheduler_step{at, lr_scheduler_step::interval::epoch});
}

void open_evaluation(const position& at, bool zero_grad, hook_list& out) {
  if (at.stage == stage::sanity) append<on_sanity_check_start>(at, out);
  if (zero_grad) append<on_validation_model_zero_grad>(at, out);
  with_names(at.stage, [&](auto names) {
    using n = decltype(names);
    append<typename n::model_eval, typename n::start, typename n::epoch_start>(at, out);
  });
}

void evaluation_batch(const position& at, hook_list& out) {
  with_names(at.stage, [&](auto names) {
    using n = decltype(names);
    append<batch_to_device, typename n::batch_start>(at, out);
    evaluation_step(at, out);
    append<typename n::batch_end>(at, out);
  });
}

void close_evaluation(const position& at, hook_list& out) {
  with_names(at.stage, [&](auto names) {
    using n = decltype(names);
    append<typename n::epoch_end, typename n::end, typename n::model_train>(at, out);
  });
  if (at.stage == stage::sanity) append<on_sanity_check_end>(at, out);
}

void checkpoint(const optimizer_facts& facts, const position& at, const loop_state& loop,
                hook_list& out) {
  for (std::int32_t i = 0; i < std::max(1, facts.optimizers); ++i) {
    auto one = at;
    one.optimizer = i;
    append<optimizer_state>(one, out);
  }
  append<on_save_checkpoint>(at, out);
  out.emplace_back(save_checkpoint{at, loop});
}

void close(const fit_plan& plan, bool trained, const hooks::fit_end& end, hook_list& out) {
  if (trained) out.emplace_back(on_train_end{end});
  append<post_dispatch>(position{}, out);
  if (is_fit(plan)) out.emplace_back(on_fit_end{{position{}, end.why}});
}

}  // namespace troupe::hook_sequences
