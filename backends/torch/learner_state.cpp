#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "backends/checkpoint/digest.hpp"
#include "backends/torch/learner_json.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/scalar_types.hpp"
#include "backends/torch/torch_learner.hpp"

namespace troupe {

namespace {

using entries = std::map<std::string, metric_accumulator::entry>;
using namespace learner_json;

// Errors of the JSON library name neither the file nor the fix.
template <class F>
auto reading(const std::string& path, F read) {
  try {
    return read();
  } catch (const json::exception& error) {
    throw user_error(errc::checkpoint,
                     fmt::format("{}: its state is not what this version writes ({}): take another "
                                 "checkpoint",
                                 path, error.what()));
  }
}

}  // namespace

// --- saving --------------------------------------------------------------------------------------

void torch_learner::handle(const hooks::optimizer_state& h) {
  optimizer_states_[h.at.optimizer] = strategy_->optimizer_state(h.at.optimizer);
}

void torch_learner::handle(const hooks::on_save_checkpoint&) {
  callbacks_.call(*module_, &callback::on_save_checkpoint);
  module_json_ = module_->on_save_checkpoint();
}

void torch_learner::add_hook_changes(json& state) const {
  if (groups_at_start_.empty()) return;
  const auto now = before_evaluation_ ? *before_evaluation_ : flags_of(*module_);
  auto flags = at_start_ ? flag_changes(*module_, *at_start_, now) : parse_state(hook_changes_);
  auto added = added_parameters(optimizers_, *module_, groups_at_start_);
  if (flags.empty() && added.empty()) return;
  state["from_hooks"] = {{"flags", std::move(flags)}, {"parameters", std::move(added)}};
}

std::string torch_learner::state_text(const entries& steps, const entries& epochs) {
  json state;
  state["seed"] = about_.options.seed;
  state["made_with"] = json::parse(record_text(record()));
  state["strategy"] = strategy_->name();
  state["optimizers"] = json::array();
  for (std::size_t i = 0; i < optimizers_.all().size(); ++i) {
    const auto& kept = optimizer_states_[static_cast<std::int32_t>(i)];
    state["optimizers"].push_back({{"groups", parse_state(kept.groups)},
                                   {"schedulers", schedulers_to(optimizers_.all()[i].schedulers)}});
  }
  state["precision"] = {{"name", precision_->name()}, {"state", precision_->state()}};
  state["data"] = data_ ? data_->state() : std::string{};
  state["module"] = module_json_;
  if (const auto& all = module_->hyper_parameters(); !all.items.empty())
    state["hyper_parameters"] = hyper_parameters_to(all);
  callbacks_.describe(state);
  add_hook_changes(state);
  state["log"] = {
      {"steps", book_to(steps)}, {"steps_reported", steps_reported_}, {"epochs", book_to(epochs)}};
  if (non_finite_steps_ > 0) state["non_finite_steps"] = non_finite_steps_;
  if (wants_stop_ && done_.pending_stop == 0) state["wants_stop"] = true;  // else it is the loop's
  try {
    return state.dump();
  } catch (const json::exception& error) {
    throw user_error(errc::checkpoint,
                     fmt::format("what on_save_checkpoint, a callback's save_state or the data "
                                 "module's state returned is not UTF-8 text: {}",
                                 error.what()));
  }
}

snapshot_ptr torch_learner::take_snapshot(const loop_state& loop) {
  for (std::size_t i = 0; i < optimizers_.all().size(); ++i)
    if (const auto index = static_cast<std::int32_t>(i); !optimizer_states_.contains(index))
      optimizer_states_[index] = strategy_->optimizer_state(index);
  wants_stop_ = strategy_->reduce_boolean_decision(wants_stop_, decision::any);
  const auto steps = step_book_.total(exchange());
  const auto epochs = epoch_book_.total(exchange());
  auto model = strategy_->module_state();
  auto taken = strategy_->is_global_zero() ? snapshot_of(loop, std::move(model), steps, epochs)
                                           : std::make_shared<snapshot>();
  optimizer_states_.clear();
  callbacks_.call(*module_, &callback::on_checkpoint_taken);
  return taken;
}

// Also takes the states from optimizer_states_ and module_json_.
std::shared_ptr<snapshot> torch_learner::snapshot_of(const loop_state& loop,
                                                     std::vector<tensor_blob> model,
                                                     const metric_accumulator& steps,
                                                     const metric_accumulator& epochs) {
  auto taken = std::make_shared<snapshot>();
  taken->model = std::move(model);
  taken->loop = loop;
  taken->ranks = strategy_->world();
  taken->generation = generation_.value();
  taken->weights_digest = weights_digest(taken->model);
  taken->state = state_text(steps.entries(), epochs.entries());
  for (auto& [index, kept] : optimizer_states_)
    for (auto& blob : kept.tensors) taken->optimizer.push_back(std::move(blob));
  for (auto& blob : callbacks_.tensors()) taken->optimizer.push_back(std::move(blob));
  add_gradients(taken->optimizer);
  return taken;
}

namespace {

// Rates go back to a point by themselves.
std::string at_positions(const std::string& text,
                         const std::vector<std::pair<std::int64_t, std::size_t>>& positions) {
  auto state = parse_state(text);
  auto position = positions.begin();
  for (auto& one : state["optimizers"])
    for (auto& schedule : one["schedulers"]) {
      const auto& [offered, fed] = *position++;
      schedule["offered"] = offered;
      auto& metrics = schedule["fed"];
      metrics.erase(metrics.begin() + static_cast<std::ptrdiff_t>(fed), metrics.end());
    }
  return state.dump();
}

}  // namespace

// Saves the point of a job that has failed. The other ranks take no part, so their logged values
// are those of the last exchange. Nothing is saved if the weights are not those of the point.
void torch_learner::save_point(const loop_state& loop) {
  if (!module_ || !kept_ || torn_ || kept_->done.steps != loop.steps) return;
  forget_step();
  return_to_point();
  handle(hooks::on_save_checkpoint{});
  for (std::size_t i = 0; i < optimizers_.all().size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    optimizer_states_[index] = strategy_->local_optimizer_state(index);
  }
  const auto steps = books_of_step_ ? exchanged_books(false) : std::vector<metric_accumulator>{};
  auto epochs = exchanged_books(true);
  if (epochs.empty()) epochs.emplace_back();
  epochs.front() = epoch_book_;  // with what this rank has logged since
  auto taken = snapshot_of(loop, strategy_->local_module_state(), metric_accumulator::joined(steps),
                           metric_accumulator::joined(epochs));
  taken->state = at_positions(taken->state, kept_->schedulers);
  optimizer_states_.clear();
  outcome_->snapshot = strategy_->save_checkpoint(std::move(taken), {}, {});
}

// The first checkpoint may come after hours.
void torch_learner::refuse_unsaved() const {
  if (!about_.saves || !about_.checkpoints) return;
  for (const auto& [name, tensor] : state_tensors(*module_)) {
    const auto* type = find_scalar_type(tensor.scalar_type());
    const auto why = type ? about_.checkpoints->obstacle(std::string{type->name})
                          : std::string{"it has no name outside of LibTorch"};
    if (why.empty()) continue;
    throw user_error(
        errc::checkpoint,
        fmt::format("the module's tensor \"{}\" is of {}, which checkpoints cannot hold: {}. Give "
                    "it another type, or train without checkpoints",
                    name, c10::toString(tensor.scalar_type()), why));
  }
}

// After a step, because an optimizer makes its state there.
void torch_learner::refuse_unsaved_optimizers() {
  if (std::exchange(optimizers_checked_, true) || strategy_->restores_optimizers()) return;
  if (!about_.saves && !about_.options.elastic.enabled()) return;
  for (std::size_t i = 0; i < optimizers_.all().size(); ++i)
    check_saves(*optimizers_.all()[i].optimizer, static_cast<std::int32_t>(i));
}

void torch_learner::handle(const hooks::save_checkpoint& h) {
  common_stays_ = true;
  auto saved = strategy_->save_checkpoint(take_snapshot(h.loop), {}, {});
  if (!strategy_->is_global_zero()) return;
  if (!saved)
    throw user_error(errc::checkpoint,
                     fmt::format("save_checkpoint of strategy \"{}\" returned no state on rank 0: "
                                 "return the one that it got, or one of its own",
                                 strategy_->name()));
  outcome_->snapshot = std::move(saved);
}

void torch_learner::save(const std::string& path, const value& storage_options) {
  const auto refuse = [](std::string_view why) {
    throw user_error(errc::checkpoint, fmt::format("save_checkpoint: {}", why));
  };
  if (path.empty()) refuse("the path is empty: name a folder");
  if (about_.purpose != stage::train || !optimizers_there_ || at_.stage == stage::start)
    refuse("there is no fit in progress: call it in a hook of a fit, from on_train_start on");
  if (in_step_) refuse("a step is in progress: call it in on_train_batch_end, or another hook");
  handle(hooks::on_save_checkpoint{});
  auto loop = loop_to_repeat();
  exchange_logs_of_end();
  loop.last = logged_;
  auto taken = take_snapshot(loop);
  exchange_logs_of_end();
  strategy_->save_checkpoint(std::move(taken), path, storage_options);
}

// A resume goes on in the epoch whose values its end, or that of the fit, has reported.
void torch_learner::exchange_logs_of_end() {
  if (!before_end_) return;
  std::swap(step_book_, before_end_->steps);
  std::swap(epoch_book_, before_end_->epochs);
  std::swap(logged_, before_end_->logged);
  std::swap(steps_reported_, before_end_->steps_reported);
}

// The last step boundary, before what is due there. Of a stop only one that waits is kept, and
// only the fit machine knows what early stopping has counted.
loop_state torch_learner::loop_to_repeat() const {
  const auto& o = about_.options;
  auto loop = done_;
  loop.validated = false;
  loop.early_stopping.clear();
  loop.monitored = {};
  loop.ended_by = 0;
  const auto min_epochs = o.min_epochs.value_or(o.min_steps ? 1 : 0);
  if (loop.epoch >= min_epochs && loop.steps >= o.min_steps.value_or(0)) loop.pending_stop = 0;
  return loop;
}

// --- loading -------------------------------------------------------------------------------------

void torch_learner::handle(const hooks::load_checkpoint& h) {
  if (!loaded_ || loaded_path_ != h.path) {
    loaded_ = strategy_->load_checkpoint(h.path);
    loaded_path_ = h.path;
    if (strategy_->restore_checkpoint_after_setup() && !optimizers_there_)
      weights_due_ = true;
    else
      take_loaded_weights();
  }
  if (h.what == hooks::load_checkpoint::part::everything)
    reading(h.path, [&] { take_everything(*loaded_); });
  else if (about_.purpose != stage::train)
    reading(h.path, [&] { take_data_of_evaluation(parse_state(loaded_->state)); });
  outcome_->restored = loaded_->loop;
  if (h.what == hooks::load_checkpoint::part::weights) return;
  loaded_.reset();
}

void torch_learner::handle(const hooks::on_load_checkpoint&) {
  if (!loaded_) return;
  module_->on_load_checkpoint(reading(
      loaded_path_, [&] { return parse_state(loaded_->state).value("module", std::string{}); }));
  callbacks_.call(*module_, &callback::on_load_checkpoint);
}

// Releases the loaded weights, which are used once.
void torch_learner::take_loaded_weights() {
  take_weights(*loaded_);
  loaded_->model = {};
}

void torch_learner::take_weights(const snapshot& from) { strategy_->load_module_state(from.model); }

// A snapshot of a fit has the module's text too; a file of weights has no state.
void torch_learner::take_initial(const snapshot& from) {
  take_weights(from);
  const auto state = reading("the initial weights", [&] { return parse_state(from.state); });
  if (const auto text = state.find("module"); text != state.end())
    module_->on_load_checkpoint(
        reading("the initial weights", [&] { return text->get<std::string>(); }));
}

fit_record torch_learner::record() const {
  fit_record all{.seed = about_.options.seed, .data = data_ ? data_->name() : std::string{}};
  const auto train = cursors_.find(stage::train);
  if (train != cursors_.end() && !train->second.empty())
    all.samples = train->second.front().samples;
  return all;
}

void torch_learner::take_data(const json& state) {
  if (const auto kept = state.value("data", std::string{}); data_ && !kept.empty())
    data_->load_state(kept);
}

// A fit that resumes has the same data, an evaluation may have another.
void torch_learner::take_data_of_evaluation(const json& state) {
  const auto with = state.value("made_with", json::object());
  if (data_ && with.value("data", std::string{}) == data_->name()) take_data(state);
}

void torch_learner::take_everything(snapshot& from) {
  check_record(from, record(), loaded_path_);
  auto& loop = from.loop;
  for (auto& cursor : cursors_[stage::train]) {
    loop.cursor = cursor_of(from, cursor.way->layout(), about_.options, loaded_path_);
    cursor.way->resume(loop.epoch, loop.batch, loop.cursor);
  }
  done_ = loop;
  const auto state = parse_state(from.state);
  const auto saved = state.value("optimizers", json::array());
  auto& all = optimizers_.all();
  if (saved.size() != all.size())
    throw user_error(errc::checkpoint,
                     fmt::format("{} holds {} optimizers, the module configures {}: go on with the "
                                 "module that was saved",
                                 loaded_path_, saved.size(), all.size()));
  const auto from_hooks = state.value("from_hooks", json::object());
  hook_changes_ = from_hooks.value("flags", json::object()).dump();
  groups_at_start_ = group_sizes_of(optimizers_);
  if (!strategy_->restores_optimizers())
    add_parameters(optimizers_, *module_, from_hooks.value("parameters", json::array()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (strategy_->restores_optimizers()) continue;
    // Schedulers first: replaying them changes learning rates, which the groups then restore.
    schedulers_from(all[i].schedulers, saved[i].at("schedulers"));
    troupe::optimizer_state kept;
    kept.groups = saved[i].at("groups").dump();
    const auto prefix = fmt::format("{}.", i);
    for (const auto& blob : from.optimizer)
      if (blob.name.starts_with(prefix)) kept.tensors.push_back(blob);
    strategy_->load_optimizer_state(static_cast<std::int32_t>(i), kept);
  }
  if (!strategy_->restores_optimizers()) check_precision(*precision_, optimizers_);  // new options
  // A run that goes on in another precision begins that one's state anew.
  const auto numbers = state.value("precision", json::object());
  if (const auto kept = numbers.value("state", std::string{});
      !kept.empty() && numbers.value("name", std::string{}) == precision_->name())
    precision_->load_state(kept);
  take_data(state);
  callbacks_.load(*module_, state, from.optimizer);
  step_end_due_ = callbacks_behind_ = false;
  wants_stop_ = state.value("wants_stop", false);
  take_gradients(from.optimizer);
  if (const auto kept = state.value("log", json::object()); !kept.empty()) {
    const bool numbers = strategy_->is_global_zero();
    step_book_.restore(book_from(kept.at("steps")), numbers);
    epoch_book_.restore(book_from(kept.at("epochs")), numbers);
    steps_reported_ = kept.value("steps_reported", true);
    stepped_ = true;  // the next step discards the values of the last one
  }
  non_finite_steps_ = state.value("non_finite_steps", std::int64_t{0});
  logged_ = from.loop.last;
}

}  // namespace troupe
