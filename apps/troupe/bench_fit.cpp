#include "apps/troupe/bench_fit.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace troupe::program {

namespace {

// Written by the rank's lane only.
struct alignas(64) rank_clock {
  std::atomic<double> waited{0};  // since the job began
  std::atomic<double> began{0};   // 0: training is not warm yet
  std::atomic<double> waited_before{0};
  std::atomic<double> ended{0};
  std::atomic<double> waited_after{0};
};

constexpr std::int64_t warm_up_steps = 2;

}  // namespace

struct wait_watch::state {
  explicit state(std::int32_t ranks) : clocks(static_cast<std::size_t>(ranks)) {}
  std::vector<rank_clock> clocks;
  std::mutex mutex;
  std::string opened;
};

namespace {

class stopwatch {
public:
  explicit stopwatch(rank_clock& clock) : clock_(clock), began_(bench_now()) {}
  ~stopwatch() { clock_.waited.store(clock_.waited.load() + bench_now() - began_); }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;

private:
  rank_clock& clock_;
  const double began_;
};

class watched_work final : public work {
public:
  watched_work(work_ptr inner, rank_clock& clock) : inner_(std::move(inner)), clock_(clock) {}
  work_result poll() override { return inner_->poll(); }
  void wait() override {
    const stopwatch running{clock_};
    inner_->wait();
  }

private:
  work_ptr inner_;
  rank_clock& clock_;
};

class watched_communicator final : public communicator {
public:
  watched_communicator(std::shared_ptr<communicator> inner, std::shared_ptr<wait_watch::state> all)
      : inner_(std::move(inner)),
        all_(std::move(all)),
        clock_(all_->clocks.at(static_cast<std::size_t>(inner_->group().rank))) {}

  const group_description& group() const override { return inner_->group(); }
  std::string_view name() const override { return inner_->name(); }
  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    return watched(inner_->all_reduce(data, operation, among));
  }
  work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among) override {
    return watched(inner_->broadcast(data, root, among));
  }
  work_ptr all_gather(buffer in, buffer out, const subgroup& among) override {
    return watched(inner_->all_gather(in, out, among));
  }
  work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                          const subgroup& among) override {
    return watched(inner_->reduce_scatter(in, out, operation, among));
  }
  work_ptr barrier(std::string_view label, std::chrono::nanoseconds deadline,
                   const subgroup& among) override {
    return watched(inner_->barrier(label, deadline, among));
  }
  bool decide(bool yes, bool all, const subgroup& among) override {
    const stopwatch running{clock_};
    return inner_->decide(yes, all, among);
  }
  bool waiting() const noexcept override { return inner_->waiting(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  bool aborted() const noexcept override { return inner_->aborted(); }
  bool quiescent() const noexcept override { return inner_->quiescent(); }

private:
  // Submitting may do the work of those who wait: that is waiting too, from the lane's view, only
  // where it happens inside `wait`.
  work_ptr watched(work_ptr inner) {
    return std::make_shared<watched_work>(std::move(inner), clock_);
  }

  const std::shared_ptr<communicator> inner_;
  const std::shared_ptr<wait_watch::state> all_;
  rank_clock& clock_;
};

class watched_backend final : public communicator_backend {
public:
  watched_backend(std::shared_ptr<communicator_backend> inner,
                  std::shared_ptr<wait_watch::state> all)
      : inner_(std::move(inner)), all_(std::move(all)) {}
  std::string_view name() const override { return inner_->name(); }
  std::string unusable() const override { return inner_->unusable(); }
  std::shared_ptr<communicator> open(const group_description& group) override {
    {
      const std::lock_guard hold{all_->mutex};
      all_->opened = inner_->name();
    }
    return std::make_shared<watched_communicator>(inner_->open(group), all_);
  }

private:
  const std::shared_ptr<communicator_backend> inner_;
  const std::shared_ptr<wait_watch::state> all_;
};

}  // namespace

wait_watch::wait_watch(std::int32_t ranks) : state_(std::make_shared<state>(ranks)) {}
wait_watch::~wait_watch() = default;

ports wait_watch::watch(ports world) const {
  for (auto& one : world.communicators) one = std::make_shared<watched_backend>(one, state_);
  return world;
}

std::function<void(std::int32_t, const hook&)> wait_watch::trace() const {
  return [all = state_](std::int32_t rank, const hook& what) {
    const auto* start = std::get_if<hooks::on_train_batch_start>(&what);
    if (!start || start->at.step < warm_up_steps) return;
    auto& clock = all->clocks.at(static_cast<std::size_t>(rank));
    const auto now = bench_now();
    const auto waited = clock.waited.load();
    if (clock.began.load() == 0) {
      clock.began.store(now);
      clock.waited_before.store(waited);
    }
    clock.ended.store(now);
    clock.waited_after.store(waited);
  };
}

double wait_watch::share() const {
  double largest = 0;
  for (const auto& clock : state_->clocks) {
    const auto took = clock.ended.load() - clock.began.load();
    if (took > 0)
      largest = std::max(largest, (clock.waited_after.load() - clock.waited_before.load()) / took);
  }
  return largest;
}

std::string wait_watch::communicator() const {
  const std::lock_guard hold{state_->mutex};
  return state_->opened;
}

fit_row fit_summary(const std::vector<fit_figures>& one_rank,
                    const std::vector<fit_figures>& all_ranks) {
  std::vector<double> one;
  std::vector<double> all;
  std::vector<double> waiting;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < one_rank.size(); ++round) {
    one.push_back(one_rank[round].samples_per_second);
    all.push_back(all_ranks[round].samples_per_second);
    waiting.push_back(all_ranks[round].waiting_share);
    if (one.back() > 0) ratios.push_back(all.back() / one.back());
  }
  fit_row row{summary(one), summary(all), summary(waiting), {}, 0, 0};
  if (!all_ranks.empty()) row.communicator = all_ranks.back().communicator;
  const auto speed_up = summary(ratios);
  row.speed_up = speed_up.median;
  row.speed_up_spread = speed_up.spread;
  return row;
}

}  // namespace troupe::program
