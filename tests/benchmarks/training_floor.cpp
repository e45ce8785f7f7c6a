// Measures the least time of training on this machine: forward and backward passes of a built-in
// model over batches of Fashion-MNIST, in one thread per rank without any communication, and the
// same with an optimizer step in each thread. This is the limit for any runtime on LibTorch.
// Usage: training_floor [mlp | cnn] [BATCH] [STEPS] [RANKS]. Prints one line of JSON.
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/torch/lane_thread.hpp"
#include "backends/torch/models.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/tensor.hpp"

namespace {

using namespace troupe;

constexpr std::int64_t warm_up = 10;  // steps

struct task {
  std::string model;
  std::int64_t batch;
  std::int64_t steps;
  std::int32_t ranks;
  bool optimize;
};

void be_rank(const task& what, const dataset_ptr& data, std::int32_t rank, std::barrier<>& meet) {
  const lane_thread alone;
  auto net = find_model(what.model).make({.hidden = {1024, 1024}});
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions{0.05}.momentum(0.9)};
  loader batches{
      data, loader::options{
                .shuffle = true, .layout = {data->size(), what.ranks, what.batch}, .rank = rank}};
  const auto all = batches.batches();
  std::int64_t left = 0;
  for (std::int64_t step = 0, epoch = 0; step < warm_up + what.steps; ++step, --left) {
    if (step == warm_up) meet.arrive_and_wait();
    if (left == 0) {
      batches.begin(epoch++, 0, all);
      left = all;
    }
    const auto item = tensors_of(batches.next().batch);
    // Gradients that autograd may keep as they arrive are the cheapest.
    optimizer.zero_grad(/*set_to_none=*/true);
    torch::nn::functional::cross_entropy(net->forward(item[0]), item[1]).backward();
    if (what.optimize) optimizer.step();
  }
  meet.arrive_and_wait();
}

// For all ranks together.
double samples_per_second(const task& what, const dataset_ptr& data) {
  std::barrier<> meet{what.ranks + 1};
  std::vector<std::thread> ranks;
  for (std::int32_t rank = 0; rank < what.ranks; ++rank)
    ranks.emplace_back([&, rank] { be_rank(what, data, rank, meet); });
  meet.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  meet.arrive_and_wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (auto& one : ranks) one.join();
  return static_cast<double>(what.ranks * what.batch * what.steps) / took.count();
}

}  // namespace

int main(int count, char** arguments) {
  const auto number = [&](int at, int otherwise) {
    return count > at ? std::max(1, std::atoi(arguments[at])) : otherwise;
  };
  task what{count > 1 ? arguments[1] : "mlp", number(2, 128), number(3, 150), number(4, 2), false};
  const auto data = fashion_mnist();
  data->setup(stage::train);
  const auto passes = samples_per_second(what, data->train());
  what.optimize = true;
  const auto with_step = samples_per_second(what, data->train());
  std::printf(R"({"schema":"troupe.training_floor/1","model":"%s","ranks":%d,)"
              R"("passes":%.1f,"with_step":%.1f})"
              "\n",
              what.model.c_str(), what.ranks, passes, with_step);
}
