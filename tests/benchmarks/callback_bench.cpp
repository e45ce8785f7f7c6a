// Measures what callbacks cost: fits of the mlp on one rank without callbacks, with ten empty ones,
// and with all that log, one after the other in rounds. Time is processor time of the lane, so that
// other programs disturb it little.
// Usage: callback_bench [ROUNDS] [STEPS] [BATCH]. Prints one line of JSON.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backends/torch/classifier.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/datasets.hpp"
#include "troupe/trainer.hpp"

namespace {

using namespace troupe;

struct empty_callback : callback {
  bool reads_gradients() const override { return false; }
};

double lane_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct shape {
  std::int64_t steps;
  std::int64_t batch;
  data_ptr data;
};

/// Microseconds of the lane per step, between the ends of the 20th and of the last step.
double step_time(const shape& what, const std::vector<callback_factory>& added) {
  constexpr std::int64_t warm_up = 20;
  const auto began = std::make_shared<std::atomic<double>>(0);
  const auto ended = std::make_shared<std::atomic<double>>(0);
  torch_plugins plugins;
  plugins.callbacks = added;
  plugins.callbacks.push_back(lambda_callback{
      {.on_train_batch_end = [=](module& m, const step_output&, const batch&, std::int64_t) {
        (m.at().step == warm_up ? *began : *ended) = lane_seconds();
      }}});
  trainer t{{.ranks = 1,
             .max_epochs = 1000,
             .max_steps = warm_up + what.steps,
             .batch_size = what.batch,
             .limit_val_batches = std::int64_t{0},
             .checkpoint = {.enabled = false}}};
  t.fit<classifier>(plugins, what.data).rethrow();
  return 1e6 * (*ended - *began) / static_cast<double>(what.steps);
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int at, int otherwise) {
    return count > at ? std::max(1, std::atoi(arguments[at])) : otherwise;
  };
  const int rounds = number(1, 9);
  const shape what{number(2, 400), number(3, 64), synthetic({.samples = 8192, .evaluation = 0})};
  const std::vector<callback_factory> ten(10, callback_factory{empty_callback{}});
  const std::vector<callback_factory> logging{learning_rate_monitor{}, throughput_monitor{},
                                              device_stats_monitor{}};
  std::vector<double> none, empty, log, empty_ratio, log_ratio;
  for (int round = 0; round < rounds; ++round) {
    none.push_back(step_time(what, {}));
    empty.push_back(step_time(what, ten));
    log.push_back(step_time(what, logging));
    empty_ratio.push_back(empty.back() / none.back());
    log_ratio.push_back(log.back() / none.back());
  }
  std::printf(
      "{\"rounds\": %d, \"steps\": %d, \"batch_size\": %d, \"microseconds\": {\"none\": %.1f, "
      "\"ten_empty\": %.1f, \"three_that_log\": %.1f}, \"ratio\": {\"ten_empty\": %.4f, "
      "\"three_that_log\": %.4f}}\n",
      rounds, static_cast<int>(what.steps), static_cast<int>(what.batch), median(none),
      median(empty), median(log), median(empty_ratio), median(log_ratio));
}
