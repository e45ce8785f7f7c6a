#include "actors/deciders.hpp"

#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace troupe {

namespace {

std::string names_of(const metrics& logged) {
  if (logged.empty()) return "nothing was logged";
  std::vector<std::string> names;
  for (const auto& [key, number] : logged) names.push_back(key);
  return fmt::format("logged so far: {}", fmt::join(names, ", "));
}

bool improved(const early_stopping_options& options, const early_stopping_state& state,
              double now) {
  if (std::isnan(now)) return false;
  if (!state.has_best) return true;
  return options.maximize ? now - options.min_delta > state.best
                          : now + options.min_delta < state.best;
}

// Better first; NaN after all numbers; of equals the older.
bool is_better(const kept_checkpoint& a, const kept_checkpoint& b, bool maximize) {
  const bool a_nan = std::isnan(a.monitor);
  const bool b_nan = std::isnan(b.monitor);
  if (a_nan != b_nan) return b_nan;
  if (!a_nan && a.monitor != b.monitor)
    return maximize ? a.monitor > b.monitor : a.monitor < b.monitor;
  return a.step < b.step;
}

// At most `limit` of them, all when it is negative.
std::size_t first_of(std::size_t size, std::int32_t limit) {
  return limit < 0 ? size : std::min(size, static_cast<std::size_t>(limit));
}

}  // namespace

std::vector<early_stopping_state> stop_early_states(std::span<const early_stopping_options> options,
                                                    std::vector<early_stopping_state> saved) {
  std::vector<early_stopping_state> all(options.size());
  for (std::size_t i = 0; i < options.size(); ++i) {
    const auto& of = options[i];
    const auto known = std::ranges::find_if(saved, [&](const auto& one) {
      return one.monitor == of.monitor && one.maximize == of.maximize;
    });
    if (known != saved.end())
      all[i] = *known;
    else if (i < saved.size() && saved[i].monitor.empty())
      all[i] = saved[i];
    all[i].monitor = of.monitor;
    all[i].maximize = of.maximize;
  }
  return all;
}

void check_monitors(std::span<const early_stopping_options> options, const metrics& logged) {
  for (const auto& one : options)
    if (!logged.contains(one.monitor))
      throw user_error(
          errc::bad_configuration,
          fmt::format("early stopping monitors \"{}\", which no hook logged ({}): log it, or "
                      "monitor one of those",
                      one.monitor, names_of(logged)));
}

bool check_early_stopping(const early_stopping_options& options, early_stopping_state& state,
                          const metrics& logged) {
  check_monitors({&options, 1}, logged);
  const auto found = logged.find(options.monitor);
  if (improved(options, state, found->second)) {
    state.best = found->second;
    state.has_best = true;
    state.waited = 0;
    return false;
  }
  ++state.waited;
  return state.waited >= options.patience;
}

bool checkpoint_due(const checkpoint_policy& policy, const checkpoint_moment& now,
                    std::int64_t last_saved) {
  if (!policy.enabled || last_saved == now.steps) return false;
  if (now.run_ends) return true;
  if (now.epoch_ended && policy.every_epoch) return true;
  return policy.every_n_steps && *policy.every_n_steps > 0 && now.steps > 0 &&
         now.steps % *policy.every_n_steps == 0;
}

std::optional<double> monitored_by(const std::string& monitor, const loop_state& loop) {
  const auto found = loop.last.find(monitor);
  if (found == loop.last.end()) return std::nullopt;
  const auto& at = loop.monitored;
  const auto epoch = loop.epoch - (loop.batch == 0 ? 1 : 0);  // of the last step
  const bool known = at.monitor == monitor;
  if (known && at.step != loop.steps && (at.epoch < 0 || at.epoch != epoch)) return std::nullopt;
  return found->second;
}

const kept_checkpoint* best_checkpoint(std::span<const kept_checkpoint> kept,
                                       const checkpoint_policy& policy) {
  const kept_checkpoint* best = nullptr;
  for (const auto& one : kept)
    if (one.has_monitor && (!best || is_better(one, *best, policy.maximize))) best = &one;
  return best;
}

bool waits_as_best(const kept_checkpoint& one, std::span<const kept_checkpoint> waiting,
                   std::span<const kept_checkpoint> others, const checkpoint_policy& policy) {
  if (!one.has_monitor) return false;
  const auto better = [&](const kept_checkpoint& other) {
    return other.has_monitor && is_better(other, one, policy.maximize);
  };
  const auto waiting_better = static_cast<std::size_t>(std::ranges::count_if(waiting, better));
  const auto all_better =
      waiting_better + static_cast<std::size_t>(std::ranges::count_if(others, better));
  const bool kept = policy.keep_best < 0 || all_better < static_cast<std::size_t>(policy.keep_best);
  return kept && waiting_better < waiting_best_limit;
}

void check_monitor(const checkpoint_policy& policy, const metrics& logged) {
  if (!policy.enabled || policy.keep_best == 0 || logged.contains(policy.monitor)) return;
  if (policy.monitor == checkpoint_policy{}.monitor) return;
  throw user_error(
      errc::bad_configuration,
      fmt::format(
          "checkpoint.monitor is \"{}\", which no hook has logged ({}): log it, monitor one "
          "of those, or set checkpoint.keep_best to 0",
          policy.monitor, names_of(logged)));
}

std::vector<std::int64_t> to_remove(std::span<const kept_checkpoint> kept,
                                    const checkpoint_policy& policy) {
  std::vector<kept_checkpoint> newest{kept.begin(), kept.end()};
  std::sort(newest.begin(), newest.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  std::vector<kept_checkpoint> best;
  std::copy_if(kept.begin(), kept.end(), std::back_inserter(best),
               [](const auto& one) { return one.has_monitor; });
  std::sort(best.begin(), best.end(),
            [&](const auto& a, const auto& b) { return is_better(a, b, policy.maximize); });
  newest.resize(first_of(newest.size(), policy.keep_last == 0 ? 1 : policy.keep_last));
  best.resize(first_of(best.size(), policy.keep_best));

  const auto holds = [](const std::vector<kept_checkpoint>& some, std::int64_t step) {
    return std::any_of(some.begin(), some.end(), [&](const auto& one) { return one.step == step; });
  };
  std::vector<std::int64_t> steps;
  for (const auto& one : kept)
    if (!holds(newest, one.step) && !holds(best, one.step)) steps.push_back(one.step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace troupe
