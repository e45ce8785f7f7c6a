#include "troupe/precision.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "backends/torch/accelerators/adapters.hpp"
#include "backends/torch/accelerators/host_memory.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"
#include "troupe/measures.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

// The smallest number that an optimizer adds to a denominator; none if its options have none.
std::optional<double> smallest_epsilon(const torch::optim::Optimizer& optimizer) {
  std::optional<double> least;
  for (const auto& group : optimizer.param_groups()) {
    const auto look = [&](const auto* options) {
      if (options && (!least || options->eps() < *least)) least = options->eps();
    };
    look(dynamic_cast<const torch::optim::AdamOptions*>(&group.options()));
    look(dynamic_cast<const torch::optim::AdamWOptions*>(&group.options()));
    look(dynamic_cast<const torch::optim::RMSpropOptions*>(&group.options()));
    look(dynamic_cast<const torch::optim::AdagradOptions*>(&group.options()));
  }
  return least;
}

/// Everything in one type: weights, gradients, inputs.
class true_precision : public precision {
public:
  true_precision(std::string_view name, c10::ScalarType type) : name_(name), type_(type) {}
  std::string_view name() const override { return name_; }
  std::string obstacle(const torch::optim::Optimizer& optimizer) const override {
    const auto least = smallest_epsilon(optimizer);
    if (type_ != at::kHalf || !least || static_cast<float>(c10::Half(*least)) > 0) return {};
    return fmt::format(
        "its eps {} is 0 in float16, so that it divides by 0: use sgd, or precision 16-mixed",
        *least);
  }
  // Integers stay what they are: Module::to would also convert the counters of batch norm.
  void convert_module(torch::nn::Module& module) override {
    const auto convert = [&](at::Tensor& t) {
      if (t.defined() && t.is_floating_point()) t.set_data(t.detach().to(type_));
    };
    for (auto& parameter : module.parameters()) convert(parameter);
    for (auto& buffer : module.buffers(/*recurse=*/false)) convert(buffer);
    for (const auto& one : module.modules(/*include_self=*/false))
      if (!dynamic_cast<const measures::measure*>(one.get()))
        for (auto& buffer : one->buffers(/*recurse=*/false)) convert(buffer);
  }
  value convert_input(const value& batch) override {
    return map_tensors(batch, [&](const at::Tensor& t) {
      return t.defined() && t.is_floating_point() ? t.to(type_) : t;
    });
  }

private:
  std::string_view name_;
  c10::ScalarType type_;
};

/// Autocast is a thread-local state: it does not affect other ranks or the rest of the program. Its
/// cache of weights is not: all threads share it, and one that leaves its step clears it. What it
/// holds is outdated after an optimizer step. So no cast is cached.
class autocast_context : public precision::context {
public:
  autocast_context(c10::DeviceType device, c10::ScalarType type)
      : device_(device),
        was_on_(at::autocast::is_autocast_enabled(device)),
        was_cached_(at::autocast::is_autocast_cache_enabled()),
        was_type_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::increment_nesting();
  }
  ~autocast_context() override {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, was_on_);
    at::autocast::set_autocast_cache_enabled(was_cached_);
    at::autocast::set_autocast_dtype(device_, was_type_);
  }

private:
  c10::DeviceType device_;
  bool was_on_;
  bool was_cached_;
  c10::ScalarType was_type_;
};

/// Weights and gradients in float32, matrix products in bfloat16. Needs no loss scale: bfloat16 has
/// the exponents of float32.
class bf16_mixed : public precision {
public:
  std::string_view name() const override { return "bf16-mixed"; }
  std::unique_ptr<context> forward_context() override {
    return std::make_unique<autocast_context>(autocast_type(), at::kBFloat16);
  }
};

/// The scale is updated after the step of the last optimizer, so that all micro-batches of a window
/// are scaled alike, whichever optimizer they are for. In manual optimization any step may be
/// the last one, so the scale waits for the end of training_step.
class f16_mixed : public precision {
public:
  explicit f16_mixed(scaler_options how) : scaler_(how) {}
  std::string_view name() const override { return "16-mixed"; }
  std::string obstacle(const torch::optim::Optimizer& optimizer) const override {
    if (!dynamic_cast<const torch::optim::LBFGS*>(&optimizer)) return {};
    return "LBFGS runs its closure several times in a step, and the loss scale is for one: use "
           "another optimizer, or precision bf16-mixed";
  }
  void connect(troupe::module& which, optimizers& all, strategy& how) override {
    last_ = which.automatic_optimization() ? all.all().back().optimizer.get() : nullptr;
    how_ = &how;
  }
  std::unique_ptr<context> forward_context() override {
    return std::make_unique<autocast_context>(autocast_type(), at::kHalf);
  }
  at::Tensor pre_backward(const at::Tensor& loss) override {
    if (!unscaled_.empty())
      throw user_error(errc::job_failed,
                       "precision 16-mixed: clip_gradients has unscaled gradients, and this "
                       "backward would add scaled ones: clip after the last manual_backward, right "
                       "before the optimizer's step, or call its zero_grad first");
    return scaler_.scaled(loss);
  }
  at::Tensor post_backward(const at::Tensor& loss) override { return scaler_.unscaled(loss); }
  // Ranks agree, because a communication hook may have left them with different gradients.
  void pre_optimizer_step(torch::optim::Optimizer& optimizer) override {
    if (!unscaled_.insert(&optimizer).second) return;
    const bool mine = scaler_.unscale(optimizer);
    if (how_ && how_->reduce_boolean_decision(mine, decision::any) && !mine)
      scaler_.spoil(optimizer);
  }
  void optimizer_step(torch::optim::Optimizer& optimizer, const step_closure& closure) override {
    closure();
    if (scaler_.usable(optimizer)) optimizer.step();
    unscaled_.erase(&optimizer);
    if (last_ == &optimizer) scaler_.update();
  }
  // An override that makes no step leaves the gradients unscaled, until they are set to zero.
  void end_optimizer_step(torch::optim::Optimizer& optimizer) override {
    if (unscaled_.erase(&optimizer) > 0 && last_ == &optimizer) scaler_.update();
  }
  void on_zero_grad(torch::optim::Optimizer& optimizer) override { unscaled_.erase(&optimizer); }
  void end_manual_step() override { scaler_.update(); }
  std::string state() const override { return scaler_.state(); }
  void load_state(const std::string& json) override {
    scaler_.load_state(json);
    unscaled_.clear();
  }

private:
  gradient_scaler scaler_;
  std::set<const torch::optim::Optimizer*> unscaled_;  // and not stepped yet
  const torch::optim::Optimizer* last_ = nullptr;
  strategy* how_ = nullptr;
};

// Lightning's short names.
std::string_view full_name(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> known{
      {{"32", "32-true"}, {"64", "64-true"}, {"16", "16-mixed"}, {"bf16", "bf16-mixed"}}};
  for (const auto& [alias, full] : known)
    if (name == alias) return full;
  return name;
}

template <class... Arguments>
precision_factory of_type(Arguments... arguments) {
  return [=] { return std::make_unique<true_precision>(arguments...); };
}

}  // namespace

// Every device with autocast has a rule for `linear`.
void check_autocast(const accelerator& kind, std::string_view precision) {
  const auto name = full_name(precision);
  if (name != to_string(precision_kind::f16_mixed) && name != to_string(precision_kind::bf16_mixed))
    return;
  const auto type = kind.autocast_type();
  const auto linear = c10::Dispatcher::singleton().findSchema({"aten::linear", ""});
  if (linear && at::autocast::is_autocast_available(type) &&
      linear->hasKernelForDispatchKey(
          at::autocast::get_autocast_dispatch_key_from_device_type(type)))
    return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("precision = \"{}\": LibTorch's autocast has no rules for devices of the "
                  "accelerator {}, where operators would fail; register rules "
                  "(ATen/autocast_mode.h), or use precision 32-true, bf16-true or 64-true",
                  precision, kind.name()));
}

c10::DeviceType precision::autocast_type() const {
  return hardware_ ? hardware_->autocast_type() : host_device().type();
}

std::string precision::obstacle(const torch::optim::Optimizer&) const { return {}; }

void precision::connect(troupe::module&, optimizers&, strategy&) {}

void precision::backward(const at::Tensor& loss, troupe::module& which, torch::optim::Optimizer&,
                         const value& arguments) {
  which.backward(loss, arguments);
}

void precision::optimizer_step(torch::optim::Optimizer& optimizer, const step_closure& closure) {
  optimizer.step(closure);
}

std::unique_ptr<precision> make_f16_mixed(scaler_options how) {
  return std::make_unique<f16_mixed>(how);
}

precision_table default_precisions() {
  return {
      {"32-true", [] { return std::make_unique<precision>(); }},
      {"64-true", of_type("64-true", at::kDouble)},
      {"bf16-true", of_type("bf16-true", at::kBFloat16)},
      {"bf16-mixed", [] { return std::make_unique<bf16_mixed>(); }},
      {"16-true", of_type("16-true", at::kHalf)},
      {"16-mixed", [] { return make_f16_mixed(); }},
  };
}

std::unique_ptr<precision> make_precision(const precision_table& known, std::string_view name) {
  auto found = known.find(name);
  if (found == known.end()) found = known.find(full_name(name));
  if (found != known.end()) {
    if (auto made = found->second ? found->second() : nullptr) return made;
    throw user_error(errc::bad_usage,
                     fmt::format("the factory of precision \"{}\" made none: return one", name));
  }
  std::vector<std::string_view> names;
  for (const auto& [other, factory] : known) names.push_back(other);
  throw user_error(errc::bad_configuration, fmt::format("unknown precision \"{}\": use one of {}",
                                                        name, fmt::join(names, ", ")));
}

// --- the loss scale ------------------------------------------------------------------------------

gradient_scaler::gradient_scaler(scaler_options how)
    : how_(how),
      scale_(at::full({}, how.init_scale, at::kFloat)),
      tracker_(at::zeros({}, at::kInt)) {
  const bool possible = std::isfinite(how.init_scale) && how.init_scale > 0 &&
                        std::isfinite(how.growth_factor) && how.growth_factor > 1 &&
                        how.backoff_factor > 0 && how.backoff_factor < 1 &&
                        how.growth_interval >= 1;
  if (!possible)
    throw user_error(errc::bad_configuration,
                     "a gradient scaler needs an initial scale above 0, a growth factor above 1, a "
                     "back-off factor between 0 and 1, and a growth interval of at least 1");
}

double gradient_scaler::scale() const { return scale_.item<float>(); }
std::int64_t gradient_scaler::growth_tracker() const { return tracker_.item<std::int32_t>(); }

at::Tensor gradient_scaler::scaled(const at::Tensor& loss) const {
  return loss * scale_.to(loss.device());
}
at::Tensor gradient_scaler::unscaled(const at::Tensor& loss) const {
  return loss / scale_.to(loss.device());
}

bool gradient_scaler::unscale(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, c10::ScalarType>, std::vector<at::Tensor>> kinds;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf)
        throw user_error(errc::job_failed,
                         "float16 gradients cannot be unscaled: with 16-mixed keep parameters in "
                         "float32, or train with 16-true");
      kinds[{gradient.device().str(), gradient.scalar_type()}].push_back(
          gradient.is_sparse() ? gradient._values() : gradient);
    }
  found_.erase(&optimizer);
  if (kinds.empty()) return false;
  // In float64, as Python does: a reciprocal in float32 may be rounded twice.
  const auto inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  auto found = at::zeros({}, at::kFloat);
  for (auto& [kind, gradients] : kinds) {
    const auto place = gradients[0].device();
    auto here = at::zeros({}, inverse.options().device(place));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, here, inverse.to(place));
    found.add_(to_host(here));
  }
  const bool usable = found.item<float>() == 0;
  note(optimizer, usable);
  return !usable;
}

void gradient_scaler::spoil(const torch::optim::Optimizer& optimizer) { note(optimizer, false); }

void gradient_scaler::note(const torch::optim::Optimizer& optimizer, bool usable) {
  found_[&optimizer] = usable;
  any_ = any_.value_or(false) || !usable;
}

bool gradient_scaler::usable(const torch::optim::Optimizer& optimizer) const {
  const auto known = found_.find(&optimizer);
  return known != found_.end() && known->second;
}

void gradient_scaler::update() {
  found_.clear();
  if (!any_) return;
  const auto any = at::full({}, *std::exchange(any_, std::nullopt) ? 1.0 : 0.0, at::kFloat);
  at::_amp_update_scale_(scale_, tracker_, any, how_.growth_factor, how_.backoff_factor,
                         how_.growth_interval);
}

std::string gradient_scaler::state() const {
  return nlohmann::json{{"scale", scale()},
                        {"growth_factor", how_.growth_factor},
                        {"backoff_factor", how_.backoff_factor},
                        {"growth_interval", how_.growth_interval},
                        {"_growth_tracker", growth_tracker()}}
      .dump();
}

void gradient_scaler::load_state(const std::string& json) {
  const auto saved = nlohmann::json::parse(json);
  scaler_options how{.init_scale = saved.at("scale").get<double>(),
                     .growth_factor = saved.at("growth_factor").get<double>(),
                     .backoff_factor = saved.at("backoff_factor").get<double>(),
                     .growth_interval = saved.at("growth_interval").get<std::int64_t>()};
  const auto tracker = saved.at("_growth_tracker").get<std::int32_t>();
  *this = gradient_scaler{how};
  tracker_.fill_(tracker);
}

}  // namespace troupe
