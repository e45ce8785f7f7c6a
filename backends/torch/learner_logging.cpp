// What a module logs: where a value goes, and when it is reported.
#include <fmt/format.h>

#include "backends/torch/torch_learner.hpp"

namespace troupe {

void torch_learner::refuse_lost_value(std::string_view name, bool on_step) const {
  const bool trains = at_.stage == stage::train;
  const bool reported = trains ? !end_reported_ && !in_epoch_schedules_ : evaluation_open_;
  if (reported && trains && on_step && at_.batch == undefined)
    throw user_error(
        errc::job_failed,
        fmt::format("log(\"{}\"): a value that this hook logs would not be reported by step, "
                    "because no step is in progress: set on_epoch in place of on_step",
                    name));
  if (reported || at_.stage == stage::call) return;
  throw user_error(
      errc::job_failed,
      fmt::format("log(\"{}\"): a value that this hook logs would not be reported; log "
                  "it in a step, or in a hook from on_train_start to "
                  "on_train_epoch_end, from on_validation_start to "
                  "on_validation_epoch_end, or those of test and predict",
                  name));
}

namespace {

void refuse_unasked(std::string_view name, bool on_step, bool on_epoch) {
  if (on_step || on_epoch) return;
  throw user_error(
      errc::job_failed,
      fmt::format("log(\"{}\"): on_step and on_epoch are both false here, so the value "
                  "would not be reported: set one of them",
                  name));
}

}  // namespace

void torch_learner::log(std::string_view name, double sum, double count, const log_options& how) {
  const bool in_step = at_.stage == stage::train && at_.batch != undefined;
  const bool on_step = how.on_step.value_or(in_step);
  const bool on_epoch = how.on_epoch.value_or(!in_step);
  refuse_lost_value(name, on_step);
  refuse_unasked(name, on_step, on_epoch);
  if (how.prog_bar) {
    shown_.emplace(name);
    shown_.insert(fmt::format("{}_step", name));
    shown_.insert(fmt::format("{}/dataloader_idx_{}", name, at_.dataloader));
  }
  if (at_.stage == stage::train) {
    const bool both = on_step && on_epoch;
    if (on_step)
      step_book_.add(both ? fmt::format("{}_step", name) : std::string{name}, sum, count,
                     how.reduce);
    if (on_epoch) epoch_book_.add(name, sum, count, how.reduce);
    if (both) epoch_book_.add(fmt::format("{}_epoch", name), sum, count, how.reduce);
    return;
  }
  if (at_.stage == stage::call) return;
  auto& books = evaluation_books_;
  if (books.size() > 1 && at_.batch != undefined && how.add_dataloader_idx)
    books.at(at_.dataloader)
        .add(fmt::format("{}/dataloader_idx_{}", name, at_.dataloader), sum, count, how.reduce);
  else
    books.back().add(name, sum, count, how.reduce);
}

void torch_learner::report(metric_accumulator& book) {
  for (const auto& [name, number] : book.reduce(exchange())) {
    logged_[name] = number;
    outcome_->logged[name] = number;
    show(name);
  }
}

void torch_learner::show(const std::string& name) {
  if (shown_.contains(name)) outcome_->prog_bar.push_back(name);
}

void torch_learner::report_steps() {
  steps_reported_ = true;
  report(step_book_);
}

// All ranks count the same steps, because the loss is summed over ranks. Reports nothing if there
// are none.
void torch_learner::report_non_finite() {
  const auto number = static_cast<double>(non_finite_steps_);
  if (number == 0) return;
  auto& known = logged_[non_finite_name];
  if (known == number) return;
  known = outcome_->logged[non_finite_name] = number;
}

}  // namespace troupe
