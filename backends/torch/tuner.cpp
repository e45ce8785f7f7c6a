#include "troupe/tuner.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troupe/failure.hpp"
#include "troupe/module.hpp"

namespace troupe {

namespace {

constexpr double smoothing = 0.98;
constexpr const char* name_of_curve = "learning_rate_range";

value_list as_list(const std::vector<double>& numbers) {
  value_list all;
  for (const double x : numbers) all.items.emplace_back(x);
  return all;
}

std::vector<double> numbers_in(const value_map& named, const char* name) {
  std::vector<double> all;
  const auto found = named.items.find(name);
  const auto* list = found == named.items.end() ? nullptr : found->second.get_if<value_list>();
  if (!list) return all;
  for (const auto& one : list->items)
    if (const auto* x = one.get_if<double>()) all.push_back(*x);
  return all;
}

}  // namespace

// --- the learning rate ---------------------------------------------------------------------------

learning_rate_range::learning_rate_range(learning_rate_range_options how) : how_(how) {
  if (!(how_.min > 0 && how_.min < how_.max && std::isfinite(how_.max)))
    throw user_error(errc::bad_configuration,
                     fmt::format("learning_rate_range: min is {} and max is {}: give 0 < min < max",
                                 how_.min, how_.max));
  if (how_.steps < 2)
    throw user_error(errc::bad_configuration,
                     fmt::format("learning_rate_range: steps is {}: give at least 2", how_.steps));
}

trainer_options learning_rate_range::options(trainer_options base) const {
  base.max_epochs = -1;
  base.max_steps = how_.steps;
  base.min_epochs.reset();
  base.min_steps.reset();
  base.max_time.reset();
  base.fast_dev_run = 0;
  base.overfit_batches = 0.0;
  base.limit_val_batches = std::int64_t{0};
  base.checkpoint.enabled = false;
  base.stop_early.clear();
  base.elastic.max_restarts = 0;
  base.elastic.spares = 0;
  return base;
}

double learning_rate_range::rate_of(std::int64_t step) const {
  if (step == 0) return how_.min;
  const auto share = static_cast<double>(step + 1) / static_cast<double>(how_.steps);
  return how_.mode == learning_rate_range_options::growth::linear
             ? how_.min + share * (how_.max - how_.min)
             : how_.min * std::pow(how_.max / how_.min, share);
}

void learning_rate_range::on_train_batch_start(module& m, const batch&, std::int64_t) {
  auto& all = m.optimizers_in_use()->all();
  if (all.size() != 1)
    throw user_error(errc::bad_configuration,
                     fmt::format("learning_rate_range: the module has {} optimizers, but a rate is "
                                 "found for one",
                                 all.size()));
  for (auto& group : all.front().optimizer->param_groups())
    group.options().set_lr(rate_of(m.at().step));
}

void learning_rate_range::on_train_batch_end(module& m, const step_output& output, const batch&,
                                             std::int64_t) {
  const auto steps = m.at().step;  // done
  if (m.rank() != 0 || steps == static_cast<std::int64_t>(rates_.size())) return;
  rates_.push_back(rate_of(steps - 1));
  const auto mine = output.has_loss() ? output.loss().item<double>() : NAN;
  if (std::isnan(mine)) {
    losses_.push_back(NAN);
    return;
  }
  average_ = smoothing * average_ + (1 - smoothing) * mine;
  const auto loss = average_ / (1 - std::pow(smoothing, static_cast<double>(steps + 1)));
  if (how_.stop_at && least_ && loss > *how_.stop_at * *least_) m.stop();
  if (!least_ || loss < *least_) least_ = loss;
  losses_.push_back(loss);
}

void learning_rate_range::on_train_end(module& m) {
  if (m.rank() != 0) return;
  m.add_to_queue(value_map{
      {{"name", name_of_curve}, {"rates", as_list(rates_)}, {"losses", as_list(losses_)}}});
}

std::optional<double> learning_rate_curve::suggestion(std::size_t skip_begin,
                                                      std::size_t skip_end) const {
  std::vector<float> x;  // float, as Lightning's tensors
  std::vector<float> y;
  std::vector<double> kept;
  for (std::size_t i = skip_begin; i + skip_end < losses.size(); ++i) {
    if (!std::isfinite(static_cast<float>(losses[i]))) continue;
    x.push_back(static_cast<float>(rates[i]));
    y.push_back(static_cast<float>(losses[i]));
    kept.push_back(rates[i]);
  }
  if (y.size() < 2) return std::nullopt;
  const auto size = static_cast<std::int64_t>(y.size());
  const auto spacing = at::from_blob(x.data(), {size});
  const auto slopes = at::gradient(at::from_blob(y.data(), {size}), at::TensorList{spacing});
  return kept.at(static_cast<std::size_t>(slopes.at(0).argmin().item<std::int64_t>()));
}

learning_rate_curve curve_of(const job_outcome& outcome) {
  outcome.rethrow();
  for (const auto& one : outcome.queue) {
    const auto* named = one.get_if<value_map>();
    if (!named || !named->items.contains("name")) continue;
    if (named->items.at("name") != value{name_of_curve}) continue;
    return {numbers_in(*named, "rates"), numbers_in(*named, "losses")};
  }
  throw user_error(errc::job_failed,
                   "the job had no learning_rate_range: give it one as a callback");
}

// --- the batch size ------------------------------------------------------------------------------

std::int64_t find_batch_size(const batch_size_search& how,
                             const std::function<bool(std::int64_t)>& fits) {
  if (how.first < 1 || how.max < 1 || how.max_trials < 1 || !(how.margin >= 0 && how.margin < 1))
    throw user_error(errc::bad_configuration,
                     "find_batch_size: first, max and max_trials must be at least 1, and margin "
                     "from 0 and below 1");
  std::int64_t low = 0;           // fits
  std::int64_t high = undefined;  // does not
  auto size = std::min(how.first, how.max);
  for (std::int64_t trial = 0; trial < how.max_trials; ++trial) {
    if (fits(size))
      low = size;
    else
      high = size;
    if (low == how.max || (high != undefined && high - low <= 1)) break;
    const bool bisects = how.mode == batch_size_search::search::bisect;
    if (high != undefined && low > 0 && !bisects) break;
    size = high == undefined    ? std::min(2 * low, how.max)
           : low > 0 && bisects ? low + (high - low) / 2
                                : high / 2;
  }
  if (low == 0)
    throw user_error(errc::job_failed,
                     fmt::format("no batch size fits into the memory: the least that was tried is "
                                 "{}",
                                 high));
  if (how.mode == batch_size_search::search::power) return low;
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(low) * (1 - how.margin)));
}

bool fits_memory(const job_outcome& outcome) {
  if (outcome.ok()) return true;
  const auto& record = outcome.failed_with->record;
  // LibTorch's allocators have a type for GPUs only.
  const bool out = record.type.find("OutOfMemory") != std::string::npos ||
                   record.type.find("bad_alloc") != std::string::npos ||
                   record.what.find("can't allocate memory") != std::string::npos ||
                   record.what.find("not enough memory") != std::string::npos;
  if (!out) outcome.rethrow();
  return false;
}

}  // namespace troupe
