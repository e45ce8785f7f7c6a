#include "actors/fit_plan.hpp"

#include "troupe/detail/stable_hash.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ostream>

namespace troupe {

namespace {

// So that ranks times samples cannot overflow.
constexpr std::int64_t batch_size_max = 2'147'483'647;

std::string text_of(const batch_limit& limit) {
  if (const auto* count = std::get_if<std::int64_t>(&limit)) return fmt::format("{}", *count);
  return fmt::format("{} of all", std::get<double>(limit));
}

template <class T>
void refuse_unless(bool valid, std::string_view option, const T& value, std::string_view wanted) {
  if (!valid)
    throw user_error(errc::bad_configuration,
                     fmt::format("{} is {}, but must be {}", option, value, wanted));
}

void check_limit(std::string_view option, const batch_limit& limit) {
  const auto* count = std::get_if<std::int64_t>(&limit);
  const auto* share = std::get_if<double>(&limit);
  if (count ? *count >= 0 : *share >= 0 && *share <= 1) return;
  refuse_unless(false, option, text_of(limit),
                "a count of batches from 0 or a share from 0.0 to 1.0");
}

void check_limits(const trainer_options& o) {
  check_limit("limit_train_batches", o.limit_train_batches);
  check_limit("limit_val_batches", o.limit_val_batches);
  check_limit("limit_test_batches", o.limit_test_batches);
  check_limit("limit_predict_batches", o.limit_predict_batches);
  check_limit("overfit_batches", o.overfit_batches);
  const auto* count = std::get_if<std::int64_t>(&o.val_check_interval);
  const auto* share = std::get_if<double>(&o.val_check_interval);
  if (count ? *count < 1 : !(*share > 0 && *share <= 1))
    refuse_unless(false, "val_check_interval", text_of(o.val_check_interval),
                  "a count of batches from 1 or a share above 0.0 and up to 1.0");
}

void check_extent(const trainer_options& o) {
  refuse_unless(o.ranks >= 1, "ranks", o.ranks, "at least 1");
  refuse_unless(o.batch_size >= 1 && o.batch_size <= batch_size_max, "batch_size", o.batch_size,
                fmt::format("from 1 to {}", batch_size_max));
  refuse_unless(o.accumulate_grad_batches >= 1, "accumulate_grad_batches",
                o.accumulate_grad_batches, "at least 1");
  refuse_unless(o.truncated_bptt_steps >= 0, "truncated_bptt_steps", o.truncated_bptt_steps,
                "at least 0");
  for (const auto& [epoch, batches] : o.accumulate_schedule)
    refuse_unless(epoch >= 0 && batches >= 1, "accumulate_schedule",
                  fmt::format("{} from epoch {} on", batches, epoch),
                  "at least 1 from an epoch that is not negative");
  refuse_unless(o.fast_dev_run >= 0, "fast_dev_run", o.fast_dev_run, "at least 0");
  refuse_unless(o.check_val_every_n_epoch >= 0, "check_val_every_n_epoch",
                o.check_val_every_n_epoch, "at least 1, or 0 to count batches across epochs");
  refuse_unless(o.num_sanity_val_steps >= -1, "num_sanity_val_steps", o.num_sanity_val_steps,
                "at least 0, or -1 for all");
  refuse_unless(o.log_every_n_steps >= 1, "log_every_n_steps", o.log_every_n_steps, "at least 1");
}

void check_length(const trainer_options& o) {
  const auto from_0 = [](std::string_view option, const std::optional<std::int64_t>& value) {
    refuse_unless(value.value_or(0) >= 0, option, value.value_or(0), "at least 0");
  };
  refuse_unless(o.max_epochs >= -1, "max_epochs", o.max_epochs, "at least 0, or -1 for no limit");
  from_0("max_steps", o.max_steps);
  from_0("min_epochs", o.min_epochs);
  from_0("min_steps", o.min_steps);
  refuse_unless(!o.max_time || o.max_time->count() > 0, "max_time",
                fmt::format("{} ns", o.max_time ? o.max_time->count() : 0), "more than 0");
}

void check_gradients(const trainer_options& o) {
  const auto clip = o.gradient_clip_val.value_or(0);
  refuse_unless(std::isfinite(clip) && clip >= 0, "gradient_clip_val", clip,
                "a number above 0, or 0 for no clipping");
  const auto cap = o.gradients.bucket_cap_mb.value_or(1);
  refuse_unless(std::isfinite(cap) && cap > 0, "strategy.bucket_cap_mb", cap, "a number above 0");
  const auto& p = o.gradients.powersgd;
  refuse_unless(p.rank >= 1, "strategy.powersgd.rank", p.rank, "at least 1");
  refuse_unless(p.start_step >= 0, "strategy.powersgd.start_step", p.start_step, "at least 0");
  refuse_unless(std::isfinite(p.min_rate) && p.min_rate > 0, "strategy.powersgd.min_rate",
                p.min_rate, "a number above 0");
  refuse_unless(std::isfinite(p.epsilon) && p.epsilon >= 0, "strategy.powersgd.epsilon", p.epsilon,
                "a number from 0");
  refuse_unless(o.tcp_streams.value_or(1) >= 1, "tcp.streams", o.tcp_streams.value_or(1),
                "at least 1");
}

void check_times(const trainer_options& o) {
  const auto check = [&](std::string_view option,
                         const std::optional<std::chrono::nanoseconds>& time) {
    if (!time) return;
    refuse_unless(time->count() > 0, option, fmt::format("{} ns", time->count()), "more than 0");
  };
  check("checkpoint.every_n_minutes", o.checkpoint.every);
  check("val_check_time", o.val_check_time);
}

void check_policies(const trainer_options& o) {
  const auto& every = o.checkpoint.every_n_steps;
  refuse_unless(!every || *every >= 1, "checkpoint.every_n_steps", every.value_or(0), "at least 1");
  refuse_unless(o.checkpoint.keep_last >= 1, "checkpoint.keep_last", o.checkpoint.keep_last,
                "at least 1");
  refuse_unless(o.checkpoint.keep_best >= 0, "checkpoint.keep_best", o.checkpoint.keep_best,
                "at least 0");
  refuse_unless(o.checkpoint.keep_best == 0 || !o.checkpoint.monitor.empty(), "checkpoint.monitor",
                "empty", "the name of a logged metric");
  for (const auto& one : o.stop_early) {
    refuse_unless(!one.monitor.empty(), "early_stopping.monitor", "empty",
                  "the name of a logged metric");
    refuse_unless(one.patience >= 0, "early_stopping.patience", one.patience, "at least 0");
    refuse_unless(std::isfinite(one.min_delta) && one.min_delta >= 0, "early_stopping.min_delta",
                  one.min_delta, "a number from 0");
  }
}

// A fault that never happens would let a drill pass.
void check_faults(const trainer_options& o) {
  const auto& hooks = hook_names();
  for (const auto& one : o.faults) {
    refuse_unless(one.rank >= 0 && one.rank < o.ranks, "the rank of a fault", one.rank,
                  fmt::format("from 0 to {}", o.ranks - 1));
    refuse_unless(std::ranges::find(hooks, one.hook) != hooks.end(), "the hook of a fault",
                  fmt::format("\"{}\"", one.hook), "one of hook_names(), such as training_step");
    refuse_unless(one.step >= 0 || one.step == undefined, "the step of a fault", one.step,
                  "at least 0, or undefined");
  }
}

void check(const trainer_options& o) {
  check_extent(o);
  check_length(o);
  check_limits(o);
  check_gradients(o);
  check_policies(o);
  check_times(o);
  check_faults(o);
}

void add(stable_hasher& h, const batch_limit& limit) {
  h.add(limit.index());
  std::visit([&](auto x) { h.add(x); }, limit);
}

void shorten(fit_plan& plan) {
  plan.val_by_time = false;
  plan.val_check_interval = 1.0;
  plan.check_val_every_n_epoch = 1;
  plan.max_epochs = 1;
  plan.max_steps.reset();
  plan.sanity_batches = 0;
  plan.stop_early.clear();
  // One snapshot at the end, which returns the weights.
  plan.checkpoint = {.enabled = plan.checkpoint.enabled, .every_epoch = false, .keep_best = 0};
}

}  // namespace

void refuse_accumulated_splits(const fit_plan& plan) {
  const auto refuse = [](std::string_view option, std::int64_t batches) {
    if (batches <= 1) return;
    throw user_error(errc::bad_configuration,
                     fmt::format("truncated_bptt_steps makes a step of each part of a batch, so {} "
                                 "must be 1, not {}: set one of them only",
                                 option, batches));
  };
  refuse("accumulate_grad_batches", plan.accumulate);
  for (const auto& [epoch, batches] : plan.accumulate_schedule)
    refuse("accumulate_schedule", batches);
}

std::int64_t fit_plan::accumulate_in(std::int64_t epoch) const {
  const auto later = accumulate_schedule.upper_bound(epoch);
  return later == accumulate_schedule.begin() ? accumulate : std::prev(later)->second;
}

fit_plan make_plan(const trainer_options& options, stage purpose, std::string resume) {
  check(options);
  fit_plan plan;
  plan.purpose = purpose;
  plan.max_epochs = options.max_epochs;
  plan.max_steps = options.max_steps;
  plan.min_epochs = options.min_epochs.value_or(options.min_steps ? 1 : 0);
  plan.min_steps = options.min_steps.value_or(0);
  plan.accumulate = options.accumulate_grad_batches;
  plan.accumulate_schedule = options.accumulate_schedule;
  if (options.truncated_bptt_steps > 0) refuse_accumulated_splits(plan);
  if (options.gradient_clip_val.value_or(0) > 0)
    plan.clip = clip_plan{*options.gradient_clip_val, options.gradient_clip_algorithm};
  plan.train_batches = limit_of(options, stage::train);
  plan.val_batches = limit_of(options, stage::validate);
  plan.test_batches = limit_of(options, stage::test);
  plan.predict_batches = limit_of(options, stage::predict);
  plan.val_check_interval = options.val_check_interval;
  plan.val_by_time = options.val_check_time.has_value();
  plan.check_val_every_n_epoch = options.check_val_every_n_epoch;
  plan.sanity_batches = options.num_sanity_val_steps;
  plan.stop_early = options.stop_early;
  plan.checkpoint = options.checkpoint;
  plan.resume = std::move(resume);
  plan.one_hook_per_run = options.one_hook_per_run;
  plan.keeps_points = keeps_points(options);
  if (options.fast_dev_run > 0) shorten(plan);
  return plan;
}

std::uint64_t fit_plan::digest() const {
  stable_hasher h;
  h.add(purpose).add(max_epochs).add(max_steps).add(accumulate).add(clip.has_value());
  if (clip) h.add(clip->limit).add(clip->how);
  for (const auto& limit :
       {train_batches, val_batches, test_batches, predict_batches, val_check_interval})
    add(h, limit);
  h.add(sanity_batches).add(stop_early.size());
  for (const auto& one : stop_early)
    h.add(one.monitor).add(one.min_delta).add(one.patience).add(one.maximize);
  h.add(checkpoint.enabled).add(checkpoint.every_epoch).add(checkpoint.every_n_steps);
  h.add(checkpoint.keep_last).add(checkpoint.keep_best).add(checkpoint.monitor);
  h.add(checkpoint.maximize).add(resume).add(one_hook_per_run);
  if (keeps_points) h.add(keeps_points);
  if (begins_again) h.add(begins_again);
  if (min_epochs > 0 || min_steps > 0) h.add(min_epochs).add(min_steps);
  if (check_val_every_n_epoch != 1) h.add(check_val_every_n_epoch);
  if (val_by_time) h.add(val_by_time);
  if (checkpoint.every) h.add(checkpoint.every->count());
  if (checkpoint.on_exception) h.add(checkpoint.on_exception);
  for (const auto& [epoch, batches] : accumulate_schedule) h.add(epoch).add(batches);
  return h.add(run_batches).digest();
}

// A rank may have begun, and reported nothing of, the step after the last one that is known.
std::vector<fault_drill> later_drills(std::vector<fault_drill> all, std::int64_t steps,
                                      const failed_hooks& failed) {
  std::erase_if(all, [&](const fault_drill& one) {
    if (one.step != undefined) return one.step <= steps + 1;
    return one.what == fault_drill::kind::stall || failed.contains({one.rank, one.hook}) ||
           failed.contains({one.rank, ""});
  });
  return all;
}

void check_finished(const fit_plan& plan, const loop_state& from) {
  const auto refuse = [&](std::int64_t finished, const char* what, std::int64_t most) {
    throw user_error(
        errc::bad_configuration,
        fmt::format("{} has finished {} {}, but max_{} is {}: raise max_{} to train on",
                    plan.resume, finished, what, what, most, what));
  };
  if (plan.max_epochs >= 0 && from.epoch > plan.max_epochs)
    refuse(from.epoch, "epochs", plan.max_epochs);
  if (plan.max_steps && from.steps > *plan.max_steps) refuse(from.steps, "steps", *plan.max_steps);
}

std::ostream& operator<<(std::ostream& out, const fit_plan& plan) {
  out << plan.purpose << " epochs " << plan.max_epochs;
  if (plan.max_steps) out << " steps " << *plan.max_steps;
  if (plan.min_epochs > 0) out << " at least " << plan.min_epochs << " epochs";
  if (plan.min_steps > 0) out << " at least " << plan.min_steps << " steps";
  out << " accumulate " << plan.accumulate;
  for (const auto& [epoch, batches] : plan.accumulate_schedule)
    out << " from epoch " << epoch << ' ' << batches;
  out << " train " << text_of(plan.train_batches) << " val " << text_of(plan.val_batches)
      << " every " << text_of(plan.val_check_interval);
  if (plan.check_val_every_n_epoch != 1) out << " in epochs of " << plan.check_val_every_n_epoch;
  if (plan.val_by_time) out << " by time";
  if (!plan.resume.empty()) out << " resume " << plan.resume;
  if (plan.begins_again) out << " again";
  if (plan.one_hook_per_run) out << " one_hook_per_run";
  return out;
}

}  // namespace troupe
