#include "backends/telemetry/progress_line.hpp"

#include "backends/telemetry/unsigned_nan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe {

namespace {

constexpr std::size_t ranks_shown = 8;

// 1:02:03, 2:03
std::string clock_text(double left) {
  const auto whole = static_cast<std::int64_t>(left + 0.5);
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string count_text(double number) {
  auto digits = fmt::format("{:.0f}", number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string_view doing(stage s) {
  switch (s) {
    case stage::sanity: return "sanity check";
    case stage::validate: return "validating";
    case stage::test: return "testing";
    case stage::predict: return "predicting";
    default: return "training";
  }
}

std::string batch_text(const seen::progress& what) {
  if (what.at.batch == undefined) return {};
  if (what.batches == undefined) return fmt::format("  batch {}", what.at.batch + 1);
  return fmt::format("  batch {}/{}", what.at.batch + 1, what.batches);
}

// Leaves out whole fields, because a number that is cut is another number. Epoch and batch stay
// longest, and then the time left, which is the last field.
std::string without_what_is_too_long(std::string_view line, std::size_t columns) {
  constexpr std::string_view between = "  ";
  std::vector<std::string_view> fields;
  auto size = line.size();
  for (auto rest = line;;) {
    const auto end = rest.find(between);
    fields.push_back(rest.substr(0, end));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + between.size());
  }
  while (size > columns && fields.size() > 1) {
    const bool last_stays = fields.size() > 3 && fields.back().starts_with("ETA ");
    const auto out = fields.end() - (last_stays ? 2 : 1);
    size -= out->size() + between.size();
    fields.erase(out);
  }
  return fmt::format("{}", fmt::join(fields, between));
}

}  // namespace

double progress_line::seconds_between(const mark& first, const mark& last) {
  return std::chrono::duration<double>(last.when - first.when).count();
}

progress_line::style progress_line::style::of(const trainer_options& options) {
  style how;
  how.epochs = options.fast_dev_run > 0 ? 1 : options.max_epochs;
  how.max_steps = options.max_steps;
  how.max_time = options.max_time;
  return how;
}

progress_line::progress_line(style how, clock now, writer write)
    : how_(how), now_(std::move(now)), write_(std::move(write)) {}

void progress_line::on(const observation& what) {
  if (const auto* seen = std::get_if<seen::metrics>(&what)) {
    for (const auto& [name, value] : seen->logged)
      if (!ranks_.take(name, value)) last_[name] = value;
    chosen_.insert(seen->prog_bar.begin(), seen->prog_bar.end());
  }
  if (const auto* seen = std::get_if<seen::progress>(&what)) progress(*seen);
  // Ranks return to an earlier step, and their number may change.
  if (const auto* seen = std::get_if<seen::lifecycle>(&what);
      seen && seen->event == lifecycle_kind::generation_forming)
    first_ = mark_ = std::nullopt;
}

void progress_line::finish(std::uint64_t) {
  if (std::exchange(live_, false)) write_("\r\x1b[K");
}

void progress_line::progress(const seen::progress& what) {
  const auto now = now_();
  track(what, now);
  // Nothing is shown before an interval has passed: a short run needs no line.
  if (!shown_) shown_ = now;
  if (now - *shown_ < (how_.live ? how_.live_interval : how_.line_interval)) return;
  shown_ = now;
  measure();
  show(text(what));
}

// Restarts the measurement of the rate after a validation, whose time must not count for it.
void progress_line::track(const seen::progress& what, std::chrono::nanoseconds now) {
  if (what.at.stage != stage::train) return mark_.reset();
  last_seen_ = mark_of(what, now);
  if (!mark_) mark_ = last_seen_;
  if (!first_) first_ = last_seen_;
  if (!began_) began_ = now;
}

progress_line::mark progress_line::mark_of(const seen::progress& what,
                                           std::chrono::nanoseconds now) {
  mark here{now, what.samples, what.at.step, {}};
  if (what.batches > 0)
    here.epochs = static_cast<double>(what.at.epoch) +
                  static_cast<double>(what.at.batch + 1) / static_cast<double>(what.batches);
  return here;
}

void progress_line::measure() {
  if (!mark_) return;
  const auto& here = last_seen_;
  if (here.when <= mark_->when || here.samples <= mark_->samples) return;
  const auto rate =
      static_cast<double>(here.samples - mark_->samples) / seconds_between(*mark_, here);
  // Smoothed over about five measurements; the first one counts whole.
  const double weight = samples_per_second_ > 0 ? 0.2 : 1.0;
  samples_per_second_ += weight * (rate - samples_per_second_);
  mark_ = here;
}

std::string progress_line::text(const seen::progress& what) const {
  if (what.at.stage != stage::train)
    return fmt::format("{}{}", doing(what.at.stage), batch_text(what));
  const auto total = how_.epochs < 0 ? std::string{} : fmt::format("/{}", how_.epochs);
  auto line = fmt::format("epoch {}{}{}", what.at.epoch + 1, total, batch_text(what));
  const auto loss = last_.find("train/loss");
  const auto accuracy = last_.find("val/accuracy");
  if (loss != last_.end()) line += fmt::format("  loss {:.4f}", unsigned_nan(loss->second));
  if (accuracy != last_.end()) line += fmt::format("  val/accuracy {:.4f}", accuracy->second);
  for (const auto& name : chosen_)
    if (const auto found = last_.find(name);
        found != last_.end() && found != loss && found != accuracy)
      line += fmt::format("  {} {:.4g}", name, unsigned_nan(found->second));
  if (samples_per_second_ > 0)
    line += fmt::format("  {} samples/s", count_text(samples_per_second_));
  if (const auto left = seconds_left()) line += "  ETA " + clock_text(*left);
  return line;
}

// To the sooner limit. Validations, checkpoints and waits so far count, so that those to come do.
std::optional<double> progress_line::seconds_left() const {
  if (!first_) return std::nullopt;
  std::optional<double> left;
  const auto until = [&](double first, double done, double all) {
    if (!(done > first)) return;
    const auto more = (all - done) / (done - first) * seconds_between(*first_, last_seen_);
    left = std::max(std::min(left.value_or(more), more), 0.0);
  };
  if (first_->epochs && last_seen_.epochs && how_.epochs >= 0)
    until(*first_->epochs, *last_seen_.epochs, static_cast<double>(how_.epochs));
  if (how_.max_steps)
    until(static_cast<double>(first_->steps), static_cast<double>(last_seen_.steps),
          static_cast<double>(*how_.max_steps));
  if (how_.max_time && began_) {
    const std::chrono::duration<double> more = *how_.max_time - (last_seen_.when - *began_);
    left = std::max(std::min(left.value_or(more.count()), more.count()), 0.0);
  }
  return left;
}

void progress_line::show(const std::string& line) {
  if (!how_.live) {
    write_(line + "\n");
    return;
  }
  // One column stays free: a terminal moves on when the last one is written.
  const auto columns = std::max<std::size_t>(how_.columns(), 2) - 1;
  const auto cut = [columns](std::string_view text) {
    return fmt::format("{}\x1b[K", text.substr(0, columns));
  };
  // Half of the terminal stays for what the program and others have written before.
  auto all = "\r" + cut(without_what_is_too_long(line, columns));
  for (const auto& rank : ranks_.lines(std::min(ranks_shown, how_.rows() / 2)))
    all += "\n" + cut(rank);
  live_ = true;
  write_(all);
}

}  // namespace troupe
