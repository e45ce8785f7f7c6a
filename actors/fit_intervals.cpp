#include "actors/fit_intervals.hpp"

#include "actors/deciders.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

const batch_limit& limit_of(const fit_plan& plan, stage s) {
  switch (s) {
    case stage::train: return plan.train_batches;
    case stage::test: return plan.test_batches;
    case stage::predict: return plan.predict_batches;
    default: return plan.val_batches;
  }
}

}  // namespace

void loader_table::learn(const std::vector<loader_length>& reported, bool may_add) {
  for (const auto& one : reported) {
    const auto same = std::ranges::find_if(all, [&](const auto& known) {
      return known.stage == one.stage && known.dataloader == one.dataloader;
    });
    if (same != all.end())
      *same = one;
    else if (may_add)
      all.push_back(one);
    else
      throw internal_error("fit machine: a loader that process_dataloader 0 did not name");
  }
}

void loader_table::resume(const loop_state& loop) {
  resumed_epoch = loop.epoch;
  resumed_batch = loop.batch;
  resumed_cursor = loop.cursor;
}

void hook_requests::take(const hook_outcome& outcome) {
  if (outcome.stop && stop == stop_reason::none) stop = stop_reason::hook;
  save |= outcome.save_due;
  validate |= outcome.validation_due;
}

void hook_requests::take(loop_state& restored, bool again) {
  const auto waiting = std::exchange(restored.pending_stop, std::uint8_t{0});
  const auto ended = std::exchange(restored.ended_by, std::uint8_t{0});
  stop = static_cast<stop_reason>(again && waiting == 0 ? ended : waiting);
}

void hook_requests::stop_early(const fit_plan& plan, bool validated, loop_state& loop) {
  for (std::size_t i = 0; i < plan.stop_early.size(); ++i) {
    const auto& entry = plan.stop_early[i];
    const bool due = loop.of_validation.contains(entry.monitor) == validated;
    if (!due || !loop.last.contains(entry.monitor)) continue;
    if (check_early_stopping(entry, loop.early_stopping[i], loop.last) && stop == stop_reason::none)
      stop = stop_reason::early_stopping;
  }
}

// The number of batches of the epoch in progress, those before a resume included.
std::int64_t fit_intervals::epoch_batches(const loader_length& loader) const {
  if (loop_.epoch != loaders_.resumed_epoch || loader.batch_samples < 1 ||
      loaders_.resumed_cursor < 0)
    return loader.batches;
  const auto left = std::max<std::int64_t>(0, loader.samples - loaders_.resumed_cursor);
  return loaders_.resumed_batch + left / loader.batch_samples +
         (left % loader.batch_samples != 0 ? 1 : 0);
}

std::int64_t fit_intervals::batches_of(const loader_length& loader, stage s) const {
  const auto there = s == stage::train ? epoch_batches(loader) : loader.batches;
  const auto limited = apply_limit(limit_of(plan_, s), there);
  const bool all = s != stage::sanity || plan_.sanity_batches < 0;
  return all ? limited : std::min(limited, plan_.sanity_batches);
}

std::int64_t fit_intervals::batches_of(stage s) const {
  std::int64_t sum = 0;
  for (const auto& loader : loaders_.all)
    if (loader.stage == (s == stage::sanity ? stage::validate : s)) sum += batches_of(loader, s);
  return sum;
}

std::int64_t fit_intervals::window_end() const {
  const auto each = plan_.accumulate_in(loop_.epoch);
  return std::min((loop_.batch / each + 1) * each, train_batches());
}

std::int64_t fit_intervals::span_end(std::int64_t first) const {
  const auto end = std::min(window_end(), first + plan_.run_batches);
  if (plan_.val_by_time || !validates_in_epoch()) return end;
  const auto every = validation_interval();
  return std::min(end, first + every - (interval_counted() + first) % every);
}

std::int64_t fit_intervals::validation_interval() const {
  if (batches_of(stage::validate) == 0) return 0;
  if (const auto* count = std::get_if<std::int64_t>(&plan_.val_check_interval)) return *count;
  return std::max<std::int64_t>(1, apply_limit(plan_.val_check_interval, train_batches()));
}

// What the interval has counted before the epoch in progress.
std::int64_t fit_intervals::interval_counted() const {
  return plan_.check_val_every_n_epoch == 0 ? loop_.earlier_batches : 0;
}

bool fit_intervals::validates_in_epoch() const {
  const auto n = plan_.check_val_every_n_epoch;
  return validation_interval() > 0 && (n == 0 || (loop_.epoch + 1) % n == 0);
}

bool fit_intervals::validation_due_after(std::int64_t batches) const {
  return batches > 0 && !plan_.val_by_time && validates_in_epoch() &&
         (interval_counted() + batches) % validation_interval() == 0;
}

// As in Lightning, a run that a hook ends validates first.
bool fit_intervals::validation_due(const hook_requests& requests) const {
  if (loop_.validated) return false;
  if (validation_due_after(loop_.batch)) return true;
  if (requests.validate && validates_in_epoch()) return true;
  return requests.stop == stop_reason::hook && may_stop() && loop_.batch > 0 &&
         validates_in_epoch();
}

bool fit_intervals::validation_was_due() const {
  if (plan_.val_by_time) return false;
  const auto every = validation_interval();
  const auto n = plan_.check_val_every_n_epoch;
  return every == 0 || (n > 0 ? loop_.epoch >= n : loop_.earlier_batches >= every);
}

bool fit_intervals::measured_inside_epoch() const {
  const auto& at = loop_.monitored;
  return loop_.validated && at.epoch < 0 && at.step == loop_.steps &&
         !validation_due_after(train_batches());
}

bool fit_intervals::save_due(const hook_requests& requests, std::int64_t last_saved,
                             bool epoch_ended) const {
  const auto& policy = plan_.checkpoint;
  const bool ends = epoch_ended || (policy.keep_best != 0 && measured_inside_epoch());
  return checkpoint_due(policy, {loop_.steps, ends, false}, last_saved) ||
         (requests.save && policy.enabled && last_saved != loop_.steps);
}

bool fit_intervals::limits_reached() const {
  return (plan_.max_epochs >= 0 && loop_.epoch >= plan_.max_epochs) ||
         (plan_.max_steps && loop_.steps >= *plan_.max_steps);
}

bool fit_intervals::may_stop() const {
  return loop_.epoch >= plan_.min_epochs && loop_.steps >= plan_.min_steps;
}

loop_state fit_intervals::saved_loop(const hook_requests& requests) const {
  auto loop = loop_;
  (may_stop() ? loop.ended_by : loop.pending_stop) = static_cast<std::uint8_t>(requests.stop);
  return loop;
}

}  // namespace troupe
