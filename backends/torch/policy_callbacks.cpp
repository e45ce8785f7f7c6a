#include "troupe/callback.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

[[noreturn]] void refuse_both(const std::string& why) {
  throw user_error(errc::bad_configuration, why + ": leave one of them out");
}

std::string_view mode_text(bool maximize) { return maximize ? "max" : "min"; }

std::string settings_text(const early_stopping_options& of) {
  return fmt::format("patience {}, min_delta {} and mode {}", of.patience, of.min_delta,
                     mode_text(of.maximize));
}

std::string schedule_text(const std::map<std::int64_t, std::int64_t>& schedule) {
  std::vector<std::string> entries;
  for (const auto& [epoch, batches] : schedule)
    entries.push_back(fmt::format("{}:{}", epoch, batches));
  return fmt::format("{}", fmt::join(entries, ","));
}

template <class T>
std::string field_text(const T& value) {
  return fmt::format("{}", value);
}
std::string field_text(const std::optional<std::int64_t>& value) {
  return value ? fmt::format("{}", *value) : "none";
}
std::string field_text(const std::optional<std::chrono::nanoseconds>& value) {
  return value ? fmt::format("{} minutes", std::chrono::duration<double>{*value}.count() / 60)
               : "none";
}

// A field in which two policies differ, if possible one that the option does not leave as it is by
// default.
std::string difference(const checkpoint_policy& option, const checkpoint_policy& here) {
  const checkpoint_policy standard;
  std::string found;
  bool is_set = false;
  const auto compare = [&](std::string_view name, const auto& usual, const auto& theirs,
                           const auto& mine) {
    const bool sets = !(theirs == usual);
    if (theirs == mine || is_set || (!found.empty() && !sets)) return;
    is_set = sets;
    found = fmt::format("the option checkpoint.{} is {}, and that of model_checkpoint is {}", name,
                        field_text(theirs), field_text(mine));
  };
  const auto compare_field = [&](std::string_view name, auto field) {
    compare(name, standard.*field, option.*field, here.*field);
  };
  using policy = checkpoint_policy;
  compare_field("enabled", &policy::enabled);
  compare_field("every_epoch", &policy::every_epoch);
  compare_field("every_n_steps", &policy::every_n_steps);
  compare_field("every_n_minutes", &policy::every);
  compare_field("on_exception", &policy::on_exception);
  compare_field("keep_last", &policy::keep_last);
  compare_field("keep_best", &policy::keep_best);
  compare_field("monitor", &policy::monitor);
  compare("mode", mode_text(standard.maximize), mode_text(option.maximize),
          mode_text(here.maximize));
  return found;
}

}  // namespace

void early_stopping::configure(trainer_options& options) const {
  auto& all = options.stop_early;
  const auto same = std::ranges::find(all, how_.monitor, &early_stopping_options::monitor);
  if (same == all.end())
    all.push_back(how_);
  else if (*same != how_)
    refuse_both(
        fmt::format("an entry of the option stop_early (early_stopping.monitor) or another "
                    "early_stopping monitors \"{}\" with {}, and this early_stopping with {}",
                    how_.monitor, settings_text(*same), settings_text(how_)));
}

void model_checkpoint::configure(trainer_options& options) const {
  if (options.fast_dev_run > 0) return;
  auto& policy = options.checkpoint;
  if (policy != checkpoint_policy{} && policy != how_) refuse_both(difference(policy, how_));
  policy = how_;
}

gradient_accumulation_scheduler::gradient_accumulation_scheduler(
    std::map<std::int64_t, std::int64_t> schedule)
    : schedule_(std::move(schedule)) {
  if (schedule_.empty())
    throw user_error(errc::bad_configuration,
                     "gradient_accumulation_scheduler: the schedule is empty: give an epoch and "
                     "the micro-batches of a step from there on");
  for (const auto& [epoch, batches] : schedule_)
    if (epoch < 0 || batches < 1)
      throw user_error(errc::bad_configuration,
                       fmt::format("gradient_accumulation_scheduler: {} micro-batches from epoch "
                                   "{} on: give at least 1 from an epoch that is not negative",
                                   batches, epoch));
}

void gradient_accumulation_scheduler::configure(trainer_options& options) const {
  auto& schedule = options.accumulate_schedule;
  const auto mine = schedule_text(schedule_);
  if (options.accumulate_grad_batches != 1)
    refuse_both(
        fmt::format("the option accumulate_grad_batches is {}, and the schedule of "
                    "gradient_accumulation_scheduler is {}",
                    options.accumulate_grad_batches, mine));
  if (!schedule.empty() && schedule != schedule_)
    refuse_both(
        fmt::format("the option accumulate_schedule is {}, and that of "
                    "gradient_accumulation_scheduler is {}",
                    schedule_text(schedule), mine));
  schedule = schedule_;
}

}  // namespace troupe
