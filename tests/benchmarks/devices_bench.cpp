// Measures other ways to compute than one rank on the CPU, each beside it, one after the other in
// rounds: a fit on lazy tensors, and steps of a module on two copies on the CPU (`replicated`). A
// fit and a module alone have one thread, two copies have two.
// Usage: devices_bench [ROUNDS] [STEPS] [BATCH]. Prints one line of JSON for each built-in model.
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backends/torch/classifier.hpp"
#include "backends/torch/lane_thread.hpp"
#include "troupe/accelerator.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data.hpp"
#include "troupe/replicated.hpp"
#include "troupe/trainer.hpp"

namespace {

using namespace troupe;

using seconds = std::chrono::duration<double>;
const model_options layers{.hidden = {1024, 1024}};
constexpr std::int64_t warm_up = 10;  // steps

struct task {
  std::string model;
  std::int64_t steps;
  std::int64_t batch;
};

/// Of the steps after the first ones.
struct figures {
  double samples_per_second = 0;
  double graphs = 0;  // per step
  double compilations = 0;
};

struct moment {
  std::chrono::steady_clock::time_point at;
  lazy_counts counts;
};

figures between(const task& what, const moment& first, const moment& last) {
  const auto steps = static_cast<double>(what.steps);
  return {steps * static_cast<double>(what.batch) / seconds{last.at - first.at}.count(),
          static_cast<double>(last.counts.graphs - first.counts.graphs) / steps,
          static_cast<double>(last.counts.compilations - first.counts.compilations)};
}

figures by_fit(const task& what, accelerator_kind where, const data_ptr& data) {
  const auto first = std::make_shared<moment>(), last = std::make_shared<moment>();
  torch_plugins plugins;
  plugins.callbacks.emplace_back(lambda_callback{
      {.on_train_batch_end = [=](module& m, const step_output&, const batch&, std::int64_t) {
        if (m.at().step != warm_up && m.at().step != warm_up + what.steps) return;
        (m.at().step == warm_up ? *first : *last) = {std::chrono::steady_clock::now(),
                                                     counts_of_lazy()};
      }}});
  trainer t{{.ranks = 1,
             .max_epochs = 1000,
             .max_steps = warm_up + what.steps,
             .batch_size = what.batch,
             .limit_val_batches = std::int64_t{0},
             .accelerator = where,
             .checkpoint = {.enabled = false}}};
  classifier_options how;
  how.model = what.model;
  how.layers = layers;
  t.fit<classifier>(plugins, data, how).rethrow();
  return between(what, *first, *last);
}

/// A built-in model that can be copied.
struct copied : torch::nn::Cloneable<copied> {
  explicit copied(std::string name) : name_(std::move(name)) { copied::reset(); }
  void reset() override { net = register_module("net", find_model(name_).make(layers)); }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  torch::nn::Sequential net{nullptr};

private:
  std::string name_;
};

figures by_copies(const task& what, std::size_t copies, const data_ptr& data) {
  const lane_thread alone;
  const auto net = std::make_shared<copied>(what.model);
  replicated<copied> parallel{net, {.device_ids = std::vector<c10::Device>(copies, at::kCPU)}};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions{0.05}.momentum(0.9)};
  std::vector<std::int64_t> rows(static_cast<std::size_t>(what.batch));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  const auto batch = tensors_of(data->train()->get(rows));
  moment first;
  for (std::int64_t step = 0; step < warm_up + what.steps; ++step) {
    if (step == warm_up) first = {std::chrono::steady_clock::now(), {}};
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(parallel(batch[0]), batch[1]).backward();
    optimizer.step();
  }
  return between(what, first, {std::chrono::steady_clock::now(), {}});
}

double median(std::vector<double> all) {
  std::ranges::sort(all);
  return all[all.size() / 2];
}

void measure(const task& what, int rounds) {
  const auto data = synthetic({.samples = 4096, .evaluation = 0, .shape = {1, 28, 28}});
  data->setup(stage::train);
  std::vector<double> cpu, lazy, one, two, of_lazy, of_two;
  figures last;
  for (int round = 0; round < rounds; ++round) {
    cpu.push_back(by_fit(what, accelerator_kind::cpu, data).samples_per_second);
    last = by_fit(what, accelerator_kind::lazy, data);
    lazy.push_back(last.samples_per_second);
    one.push_back(by_copies(what, 1, data).samples_per_second);
    two.push_back(by_copies(what, 2, data).samples_per_second);
    of_lazy.push_back(lazy.back() / cpu.back());
    of_two.push_back(two.back() / one.back());
  }
  const auto text = [](const std::vector<double>& ratios) {
    const auto [low, high] = std::ranges::minmax(ratios);
    char found[64];
    std::snprintf(found, sizeof found, "[%.2f, %.2f, %.2f]", median(ratios), low, high);
    return std::string{found};
  };
  std::printf(
      "{\"model\": \"%s\", \"rounds\": %d, \"steps\": %d, \"batch_size\": %d, "
      "\"samples_per_second\": {\"cpu\": %.0f, \"lazy\": %.0f, \"one_copy\": %.0f, \"two_copies\": "
      "%.0f}, \"lazy_over_cpu\": %s, \"two_over_one\": %s, \"lazy\": {\"graphs_per_step\": %.2f, "
      "\"compilations\": %.0f}}\n",
      what.model.c_str(), rounds, static_cast<int>(what.steps), static_cast<int>(what.batch),
      median(cpu), median(lazy), median(one), median(two), text(of_lazy).c_str(),
      text(of_two).c_str(), last.graphs, last.compilations);
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int at, int otherwise) {
    return count > at ? std::max(1, std::atoi(arguments[at])) : otherwise;
  };
  for (const char* model : {"mlp", "cnn"})
    measure({model, number(2, 60), number(3, 128)}, number(1, 5));
}
