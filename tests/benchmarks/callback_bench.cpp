// Measures what callbacks and loggers cost: fits of the mlp on one rank without callbacks, with ten
// empty ones, with ten ready ones, with these and all loggers, and with an average of the weights,
// one after the other in rounds. Time is processor time, so that other programs disturb it little:
// of the lane, which a step waits for, and of the whole process, where loggers have threads.
// Usage: callback_bench [ROUNDS] [STEPS] [BATCH]. Prints one line of JSON.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>
#include <vector>

#include "apps/http/prometheus_text.hpp"
#include "backends/telemetry/csv_logger.hpp"
#include "backends/telemetry/tensorboard_logger.hpp"
#include "backends/torch/classifier.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data.hpp"
#include "troupe/trainer.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr std::int64_t warm_up = 20;  // steps that are not measured

struct empty_callback : callback {
  bool reads_gradients() const override { return false; }
};

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct shape {
  std::int64_t steps;
  std::int64_t batch;
  data_ptr data;
};

/// What a fit has beside its module.
struct variant {
  std::string name;
  std::vector<callback_factory> callbacks;
  bool logs = false;  ///< csv, TensorBoard, and Prometheus with a scrape every 100 ms
};

/// Microseconds of processor time per step.
struct cost {
  double lane = 0;
  double process = 0;
};

/// Reads the metrics of a job as a scraper does.
class scraper {
public:
  explicit scraper(job_handle of)
      : thread_([of](const std::stop_token& stop) {
          std::mutex guard;
          std::unique_lock lock(guard);
          do {
            const auto status = nlohmann::ordered_json::parse(to_json(of.status()));
            program::prometheus_text({{.labels = "", .status = status}});
          } while (!std::condition_variable_any{}.wait_for(lock, stop, 100ms,
                                                           [&] { return stop.stop_requested(); }));
        }) {}

private:
  std::jthread thread_;
};

/// Between the end of the last step of the warm-up and the end of the fit's last step.
cost step_cost(const shape& what, const variant& with) {
  struct moment {
    std::atomic<double> lane = 0, process = 0;
    void take() {
      lane = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      process = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    }
  };
  const auto began = std::make_shared<moment>();
  const auto ended = std::make_shared<moment>();
  torch_plugins plugins;
  plugins.callbacks = with.callbacks;
  plugins.callbacks.push_back(lambda_callback{
      {.on_train_batch_end = [=](module& m, const step_output&, const batch&, std::int64_t) {
        if (m.at().step == warm_up) began->take();
        if (m.at().step == warm_up + what.steps) ended->take();
      }}});
  const testing::temporary_folder folder;
  std::optional<scraper> scrapes;
  job_context around;
  if (with.logs) {
    const auto path = folder.path().string();
    around.observers = {[=] { return std::make_unique<csv_logger>(path + "/metrics.csv"); },
                        [=] {
                          return std::make_unique<tensorboard_logger>(
                              path, tensorboard_logger::facts{}, std::chrono::system_clock::now);
                        }};
    around.started = [&](const job_handle& of) { scrapes.emplace(of); };
  }
  trainer t{{.ranks = 1,
             .max_epochs = 1000,
             .max_steps = warm_up + what.steps,
             .batch_size = what.batch,
             .limit_val_batches = std::int64_t{0},
             .checkpoint = {.enabled = false}},
            around};
  t.fit<classifier>(plugins, what.data).rethrow();
  const auto each = 1e6 / static_cast<double>(what.steps);
  return {each * (ended->lane - began->lane), each * (ended->process - began->process)};
}

std::vector<variant> variants() {
  const std::vector<callback_factory> ten{
      learning_rate_monitor{},
      gradient_norms{},
      throughput_monitor{},
      device_stats_monitor{},
      rank_monitor{},
      timer{{.max_time = 1h}},
      early_stopping{},
      model_checkpoint{{.enabled = false}},
      gradient_accumulation_scheduler{{0, 1}},
      lambda_callback{{.on_train_batch_start = [](auto&&...) {}}}};
  return {{"none", {}},
          {"ten_empty", std::vector<callback_factory>(10, callback_factory{empty_callback{}})},
          {"ten", ten},
          {"ten_and_loggers", ten, true},
          {"average", {exponential_moving_average{}}}};
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
  const auto all = variants();
  std::vector<std::vector<double>> lane(all.size()), lane_ratio(all.size()),
      process_ratio(all.size());
  for (int round = 0; round < rounds; ++round) {
    cost none;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto here = step_cost(what, all[i]);
      if (i == 0) none = here;
      lane[i].push_back(here.lane);
      lane_ratio[i].push_back(here.lane / none.lane);
      process_ratio[i].push_back(here.process / none.process);
    }
  }
  nlohmann::ordered_json out{{"rounds", rounds}, {"steps", what.steps}, {"batch_size", what.batch}};
  for (std::size_t i = 0; i < all.size(); ++i)
    out[all[i].name] = {{"lane_microseconds", median(lane[i])},
                        {"lane_ratio", median(lane_ratio[i])},
                        {"process_ratio", median(process_ratio[i])}};
  std::puts(out.dump().c_str());
}
