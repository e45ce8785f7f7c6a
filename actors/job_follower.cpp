#include "actors/job_follower.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t failures_max = 16;
constexpr std::size_t metrics_max = 512;
// Samples per second are counted over the last one to two of these; the time left is unknown for so
// long.
constexpr double rate_seconds = 2;

class into_follower final : public observer {
public:
  into_follower(std::function<void(const observation&)> see,
                std::function<void(std::uint64_t)> finish)
      : see_(std::move(see)), finish_(std::move(finish)) {}
  void on(const observation& what) override { see_(what); }
  void finish(std::uint64_t dropped) override { finish_(dropped); }

private:
  std::function<void(const observation&)> see_;
  std::function<void(std::uint64_t)> finish_;
};

std::optional<std::int32_t> number_in(const seen::lifecycle& what, const char* name) {
  const auto found = what.details.find(name);
  if (found == what.details.end()) return std::nullopt;
  std::int32_t number = 0;
  const auto* end = found->second.data() + found->second.size();
  const auto [stopped, error] = std::from_chars(found->second.data(), end, number);
  return error == std::errc{} && stopped == end ? std::optional{number} : std::nullopt;
}

std::optional<double> sooner(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

job_follower::job_follower(std::uint64_t id, const job& what, std::int64_t step, clock now)
    : now_(std::move(now)), max_steps_(what.options.max_steps), max_time_(what.options.max_time) {
  const auto& o = what.options;
  all_.id = id;
  all_.purpose = what.purpose;
  all_.ranks = o.ranks;
  all_.shards = o.elastic.shards.value_or(o.ranks);
  all_.step = step;
  all_.epochs = o.fast_dev_run > 0 ? 1 : o.max_epochs;
  all_.restarts_left = o.elastic.max_restarts;
}

observer_factory job_follower::observe(std::shared_ptr<job_follower> self) {
  return [self = std::move(self)] {
    return std::make_unique<into_follower>(
        [self](const observation& what) { self->see(what); },
        [self](std::uint64_t dropped) { self->finish(dropped); });
  };
}

void job_follower::stop_asked() {
  const std::lock_guard lock(guard_);
  stop_asked_ = true;
}

void job_follower::end(const job_outcome& outcome) {
  const std::lock_guard lock(guard_);
  if (all_.state == job_state::ended) return;
  all_.state = job_state::ended;
  all_.ended = outcome.status;
  if (all_.purpose == stage::train) all_.step = std::max(all_.step, outcome.loop.steps);
  all_.generation = std::max(all_.generation, outcome.generation);
  for (const auto& one : std::exchange(readers_, {}))
    if (const auto stream = one.stream.lock()) stream->end();
}

job_status job_follower::status() const {
  const std::lock_guard lock(guard_);
  auto status = all_;
  if (stop_asked_ && status.state == job_state::active) status.state = job_state::stopping;
  status.samples_per_second = rate();
  status.seconds_left = time_left();
  return status;
}

void job_follower::add(const std::shared_ptr<event_stream>& stream,
                       std::unique_ptr<observer> into) {
  const std::lock_guard lock(guard_);
  if (all_.state == job_state::ended) return stream->end();
  readers_.push_back({stream, std::move(into)});
}

void job_follower::see(const observation& what) {
  const std::lock_guard lock(guard_);
  if (const auto* event = std::get_if<seen::lifecycle>(&what)) see(*event);
  if (const auto* progress = std::get_if<seen::progress>(&what)) see(*progress);
  if (const auto* logged = std::get_if<seen::metrics>(&what)) see(*logged);
  std::erase_if(readers_, [](const reader& one) { return one.stream.expired(); });
  for (const auto& one : readers_) one.into->on(what);
}

void job_follower::finish(std::uint64_t dropped) {
  const std::lock_guard lock(guard_);
  for (const auto& one : readers_) one.into->finish(dropped);
}

void job_follower::see(const seen::progress& what) {
  const auto& at = what.at;
  all_.batch = at.batch;
  all_.batches = what.batches;
  last_.at = seconds();
  if (all_.purpose == stage::train) {
    all_.step = std::max(all_.step, at.step);
    all_.samples = std::max(all_.samples, what.samples);
    all_.epoch = std::max(all_.epoch, at.epoch);
  }
  last_.samples = what.samples;
  if (!since_) before_ = since_ = last_;
  if (last_.at - since_->at >= rate_seconds) before_ = std::exchange(since_, last_);
  const bool of_fit = all_.purpose == stage::train && at.stage == stage::train;
  if (!of_fit || what.batches < 1) return;
  last_.step = at.step;
  last_.epochs = static_cast<double>(at.epoch) +
                 static_cast<double>(at.batch + 1) / static_cast<double>(what.batches);
  if (!first_) first_ = last_;
  if (!began_) began_ = last_.at;
}

// A learner may log under a new name in each step.
void job_follower::see(const seen::metrics& what) {
  for (const auto& [name, value] : what.logged)
    if (all_.last.size() < metrics_max || all_.last.contains(name)) all_.last[name] = value;
}

void job_follower::see(const seen::lifecycle& what) {
  if (all_.state == job_state::ended) return;  // its thread may be late
  all_.generation = std::max(all_.generation, what.generation);
  switch (what.event) {
    case lifecycle_kind::generation_forming: form_again(what); break;
    case lifecycle_kind::generation_active:
      all_.state = job_state::active;
      all_.ranks = number_in(what, "ranks").value_or(all_.ranks);
      all_.shards = number_in(what, "shards").value_or(all_.shards);
      break;
    case lifecycle_kind::rank_failed: failed(what); break;
    case lifecycle_kind::checkpoint_written:
      ++all_.checkpoints;
      all_.checkpoint_step = std::max(all_.checkpoint_step, what.step);
      break;
    case lifecycle_kind::stop_requested: stop_asked_ = true; break;
    case lifecycle_kind::generation_closing: all_.state = job_state::closing; break;
    case lifecycle_kind::teardown: all_.state = job_state::ending; break;
    default: break;
  }
}

void job_follower::form_again(const seen::lifecycle& what) {
  all_.state = job_state::forming;
  const auto cause = what.details.find("cause");
  if (cause != what.details.end() && cause->second == "failure") ++all_.restarts;
  all_.restarts_left = number_in(what, "restarts_left").value_or(all_.restarts_left);
  before_ = since_ = first_ = std::nullopt;
}

void job_follower::failed(const seen::lifecycle& what) {
  ++all_.failures;
  if (!what.cause) return;
  if (all_.newest_failures.size() == failures_max)
    all_.newest_failures.erase(all_.newest_failures.begin());
  all_.newest_failures.push_back(*what.cause);
  all_.newest_failures.back().generation = what.generation;
}

double job_follower::seconds() const { return std::chrono::duration<double>(now_()).count(); }

std::optional<double> job_follower::rate() const {
  if (!before_ || all_.state != job_state::active) return std::nullopt;
  if (all_.purpose != stage::train) return std::nullopt;  // progress counts samples of training
  const auto passed = seconds() - before_->at;
  if (passed < rate_seconds / 2) return std::nullopt;
  return static_cast<double>(last_.samples - before_->samples) / passed;
}

std::optional<double> job_follower::time_left() const {
  if (!first_ || all_.state != job_state::active) return std::nullopt;
  const auto passed = last_.at - first_->at;
  if (passed < rate_seconds) return std::nullopt;
  const auto until = [&](double done, double first, double all) -> std::optional<double> {
    if (!(done > first)) return std::nullopt;
    const auto left = (all - done) / (done - first) * passed;
    return std::max(left - (seconds() - last_.at), 0.0);
  };
  std::optional<double> left;
  if (all_.epochs >= 0)
    left = until(last_.epochs, first_->epochs, static_cast<double>(all_.epochs));
  if (max_steps_)
    left = sooner(left, until(static_cast<double>(last_.step), static_cast<double>(first_->step),
                              static_cast<double>(*max_steps_)));
  if (max_time_ && began_)
    left = sooner(
        left,
        std::max(std::chrono::duration<double>(*max_time_).count() - (seconds() - *began_), 0.0));
  return left;
}

}  // namespace troupe
