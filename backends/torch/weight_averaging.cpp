#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "backends/torch/torch_learner.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/measures.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

// A tensor with several names has the first one only. Measures count samples: they are left out.
template <class F>
void each_averaged(module& m, F use) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& one : m.modules(/*include_self=*/false))
    if (dynamic_cast<const measures::measure*>(one.get()))
      for (const auto& buffer : one->buffers()) seen.insert(buffer.unsafeGetTensorImpl());
  const auto each = [&](auto all) {
    for (auto& item : all)
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        use(item.key(), item.value());
  };
  each(m.named_parameters());
  each(m.named_buffers());
}

nlohmann::json parsed(const std::string& text) {
  return text.empty() ? nlohmann::json::object() : nlohmann::json::parse(text);
}

[[noreturn]] void refuse_option(std::string_view what) {
  throw user_error(errc::bad_configuration, std::string{what});
}

}  // namespace

void weight_averaging::on_train_start(module& m) { show_training(m); }

void weight_averaging::on_train_batch_start(module& m, const batch&, std::int64_t) {
  step_ = m.at().step;
}

void weight_averaging::on_train_batch_end(module& m, const step_output&, const batch&,
                                          std::int64_t) {
  const auto done = m.at().step;
  if (done > step_ && due_after_step(done - 1)) update(m);
  // Before the validation of the epoch's end, which measures what its checkpoint will have.
  if (done > step_ && m.is_last_batch()) take_epoch(m, m.at().epoch);
}

// An epoch that skip_epoch has ended had no last batch.
void weight_averaging::on_train_epoch_end(module& m, std::int64_t epoch) { take_epoch(m, epoch); }

void weight_averaging::take_epoch(module& m, std::int64_t epoch) {
  if (taken_ == epoch || !due_after_epoch(epoch)) return;
  update(m);
  taken_ = epoch;
}

void weight_averaging::on_train_end(module& m) { show_average(m); }
void weight_averaging::on_validation_epoch_start(module& m) { show_average(m); }
void weight_averaging::on_validation_epoch_end(module& m) { show_training(m); }

// Within a validation the average stays.
void weight_averaging::on_save_checkpoint(module& m) {
  shown_to_save_ = !shown_;
  show_average(m);
}
void weight_averaging::on_checkpoint_taken(module& m) {
  if (shown_to_save_) show_training(m);
}

// Computes as torch.optim.swa_utils does: lerp for floating point and complex numbers, in one call
// for all tensors (one kernel on a GPU), and a weighted sum for other types.
void weight_averaging::update(module& m) {
  const at::NoGradGuard no_grad;
  const auto part = share(updates_);
  std::vector<at::Tensor> averages, weights;
  each_averaged(m, [&](const std::string& name, const at::Tensor& now) {
    auto& average = other_[name];
    if (!average.defined()) {
      average = now.detach().clone();
    } else if (average.is_floating_point() || average.is_complex()) {
      averages.push_back(average);
      weights.push_back(now.detach());
    } else {
      average.copy_(average * (1 - part) + now * part);
    }
  });
  if (!averages.empty()) at::_foreach_lerp_(averages, weights, part);
  ++updates_;
}

void weight_averaging::show_average(module& m) {
  if (!shown_ && !other_.empty()) swap(m);
}

void weight_averaging::show_training(module& m) {
  if (shown_) swap(m);
}

void weight_averaging::swap(module& m) {
  const at::NoGradGuard no_grad;
  each_averaged(m, [&](const std::string& name, const at::Tensor& live) {
    const auto found = other_.find(name);
    if (found == other_.end())
      throw user_error(errc::job_failed,
                       fmt::format("the average has no {}: a module that is averaged keeps its "
                                   "parameters and buffers",
                                   name));
    const auto now = live.detach().clone();
    live.detach().copy_(found->second);
    found->second.copy_(now);
  });
  shown_ = !shown_;
}

callback_state weight_averaging::save_state() const {
  if (other_.empty()) return {};
  const nlohmann::json state{
      {"updates", updates_}, {"average_shown", shown_}, {"epoch_taken", taken_}};
  return {.json = state.dump(), .tensors = other_};
}

// The module has the weights of the state's time, unless this callback has exchanged them since.
void weight_averaging::load_state(module& m, const callback_state& from) {
  const auto state = parsed(from.json);
  const bool shown = state.value("average_shown", false);
  if (!other_.empty() && shown_ != shown) swap(m);
  other_.clear();
  std::map<std::string, at::Tensor> live;
  each_averaged(m, [&](const std::string& name, const at::Tensor& one) { live[name] = one; });
  for (const auto& [name, tensor] : from.tensors)
    other_[name] = live.contains(name) ? tensor.to(live[name].options()).detach() : tensor;
  shown_ = shown;
  updates_ = state.value("updates", std::int64_t{0});
  taken_ = state.value("epoch_taken", undefined);
}

// --- exponential ---------------------------------------------------------------------------------

exponential_moving_average::exponential_moving_average(exponential_moving_average_options how)
    : how_(how) {
  if (!(how_.decay >= 0 && how_.decay <= 1))
    refuse_option("exponential_moving_average: decay is not between 0 and 1: 0.999 is usual");
  if (how_.every_n_steps < 1)
    refuse_option("exponential_moving_average: every_n_steps is less than 1: give at least 1");
}

bool exponential_moving_average::due_after_step(std::int64_t step) const {
  return step >= how_.starting_at_step && step % how_.every_n_steps == 0;
}

// --- stochastic ----------------------------------------------------------------------------------

namespace {

// Steps of the first so many epochs, without a limit on steps.
std::int64_t steps_of(const module& m, std::int64_t epochs) {
  auto options = m.strategy_in_use()->about().options;
  options.max_epochs = epochs;
  options.max_steps.reset();
  options.limit_train_batches = 1.0;  // batches_per_epoch is within it
  options.overfit_batches = 0.0;
  return length_of(options, m.batches_per_epoch()).steps.value_or(0);
}

// A resumed fit may have had other batches before.
void refuse_late_start(const module& m, std::int64_t first) {
  const auto& options = m.strategy_in_use()->about().options;
  const auto& at = m.at();
  if (!options.max_steps || options.fast_dev_run > 0 || at.epoch > first) return;
  const auto before = at.step > 0 ? at.step - steps_of(m, at.epoch + 1) : 0;
  const auto needed = before + steps_of(m, first + 1);
  if (*options.max_steps < needed)
    refuse_option(
        fmt::format("stochastic_weight_averaging: the weights at the end of epoch {} are "
                    "the first that count, after step {}, but max_steps is {}, so it "
                    "never starts: raise max_steps, or give a smaller start",
                    first, needed, *options.max_steps));
}

using rates_of_groups = std::vector<std::vector<double>>;

// Earlier checkpoints have one list for all optimizers.
rates_of_groups rates_from(const nlohmann::json& saved, module& m) {
  if (saved.empty() || saved.front().is_array()) return saved.get<rates_of_groups>();
  rates_of_groups all;
  auto next = saved.begin();
  for (const auto& one : m.optimizers_in_use()->all()) {
    auto& rates = all.emplace_back();
    for (auto left = one.optimizer->param_groups().size(); left > 0 && next != saved.end(); --left)
      rates.push_back((next++)->get<double>());
  }
  return all;
}

}  // namespace

stochastic_weight_averaging::stochastic_weight_averaging(stochastic_weight_averaging_options how)
    : how_(how) {
  if (std::visit([](auto x) { return x < 0; }, how_.start))
    refuse_option("stochastic_weight_averaging: start is negative: give an epoch or a share");
  if (const auto* share = std::get_if<double>(&how_.start); share && *share > 1)
    refuse_option(
        "stochastic_weight_averaging: a share of more than 1.0 never starts: give an "
        "integer for an epoch");
  if (how_.learning_rate && *how_.learning_rate < 0)
    refuse_option("stochastic_weight_averaging: learning_rate is negative");
  if (how_.annealing_epochs < 0)
    refuse_option("stochastic_weight_averaging: annealing_epochs is negative");
}

double stochastic_weight_averaging::share(std::int64_t updates) const {
  return 1 / static_cast<double>(updates + 1);
}

// Not in on_train_start, which is not called on a rank that joins a running job.
void stochastic_weight_averaging::setup(module& m, stage purpose) {
  const auto& options = m.strategy_in_use()->about().options;
  const auto epochs = options.max_epochs;
  const auto* share = std::get_if<double>(&how_.start);
  if (share && epochs < 0)
    refuse_option(
        "stochastic_weight_averaging: start is a share of max_epochs, which is -1: give "
        "an epoch from 0");
  first_ = share ? static_cast<std::int64_t>(*share * static_cast<double>(epochs))
                 : std::get<std::int64_t>(how_.start);
  if (purpose == stage::train && options.fast_dev_run == 0 && epochs >= 0 && first_ >= epochs)
    refuse_option(
        fmt::format("stochastic_weight_averaging: start is epoch {} of epochs 0 to {}, so it never "
                    "starts: give a smaller one",
                    first_, epochs - 1));
}

void stochastic_weight_averaging::on_train_start(module& m) {
  weight_averaging::on_train_start(m);
  for (const auto& one : m.optimizers_in_use()->all())
    if (how_.learning_rate && !one.schedulers.empty())
      throw user_error(errc::bad_configuration,
                       "stochastic_weight_averaging: learning_rate and a scheduler of the module "
                       "would both set the rates: leave one of them out");
  refuse_late_start(m, first_);
}

// PyTorch's SWALR after as many steps as epochs have passed since the first. A group that a hook
// adds later comes from its own rate.
void stochastic_weight_averaging::on_train_epoch_start(module& m, std::int64_t epoch) {
  if (!how_.learning_rate || epoch < first_) return;
  const auto past = static_cast<double>(epoch - first_);
  const auto part = how_.annealing_epochs == 0
                        ? 1.0
                        : std::min(1.0, past / static_cast<double>(how_.annealing_epochs));
  const bool cosine = how_.how == stochastic_weight_averaging_options::annealing::cosine;
  const auto alpha = cosine ? (1 - std::cos(std::numbers::pi * part)) / 2 : part;
  auto& all = m.optimizers_in_use()->all();
  base_rates_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& base = base_rates_[i];
    auto& groups = all[i].optimizer->param_groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto& options = groups[g].options();
      if (g == base.size()) base.push_back(options.get_lr());
      options.set_lr(*how_.learning_rate * alpha + base[g] * (1 - alpha));
    }
  }
}

callback_state stochastic_weight_averaging::save_state() const {
  auto held = weight_averaging::save_state();
  if (base_rates_.empty()) return held;
  auto state = parsed(held.json);
  state["base_rates"] = base_rates_;
  held.json = state.dump();
  return held;
}

void stochastic_weight_averaging::load_state(module& m, const callback_state& from) {
  weight_averaging::load_state(m, from);
  base_rates_ = rates_from(parsed(from.json).value("base_rates", nlohmann::json::array()), m);
}

}  // namespace troupe
