// Trains with the reference executor and writes the files that an oracle needs to repeat it. Usage:
// torch_sample FOLDER MODEL OPTIMIZER SEED SHARDS BATCH_SIZE ACCUMULATE STEPS
// MODEL is mlp, cnn, or mlp:WIDTH for one hidden layer of that width.
//   initial.safetensors, final.safetensors   weights before and after the steps
//   order.jsonl       the samples of each step, batch and rank, as `troupe data order` prints them
//   losses.json       the loss of each step
//   logits.safetensors   the logits of the first 64 test images, from the final weights
//   export.pt         the final state, for torch.load
#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backends/checkpoint/safetensors.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/reference_executor.hpp"
#include "backends/torch/torch_export.hpp"
#include "troupe/detail/tensor.hpp"

namespace {

using namespace troupe;
using json = nlohmann::json;
using chunks = std::vector<std::shared_ptr<const std::vector<std::byte>>>;

struct wish {
  std::string folder, model, optimizer;
  std::uint64_t seed = 0;
  std::int64_t shards = 1, batch_size = 1, accumulate = 1, steps = 1;
};

struct net_module : torch::nn::Module {
  explicit net_module(const std::string& model) {
    const auto colon = model.find(':');
    model_options options;
    if (colon != std::string::npos) options.hidden = {std::stoll(model.substr(colon + 1))};
    net = register_module("net", find_model(model.substr(0, colon)).make(options));
  }
  torch::nn::Sequential net{nullptr};
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        torch::nn::Module& module) {
  using namespace torch::optim;
  if (name == "sgd")
    return std::make_unique<SGD>(module.parameters(), SGDOptions(0.05).momentum(0.9));
  if (name == "adam") return std::make_unique<Adam>(module.parameters(), AdamOptions(1e-3));
  if (name == "adamw")
    return std::make_unique<AdamW>(module.parameters(), AdamWOptions(1e-3).weight_decay(0.01));
  throw std::invalid_argument("no optimizer " + name);
}

reference_run run_of(const wish& w, const dataset_ptr& data) {
  reference_run run;
  run.make_module = [w] { return std::make_shared<net_module>(w.model); };
  run.loss = [](torch::nn::Module& module, const value& batch, std::int64_t) {
    const auto& items = batch.get_if<value_tuple>()->items;
    return torch::nn::functional::cross_entropy(
        module.as<net_module>()->net->forward(unboxed(items[0])), unboxed(items[1]));
  };
  run.make_optimizer = [w](torch::nn::Module& m) { return make_optimizer(w.optimizer, m); };
  run.data = data;
  run.seed = w.seed;
  run.shards = w.shards;
  run.batch_size = w.batch_size;
  run.accumulate_grad_batches = w.accumulate;
  run.max_epochs = 1000;
  run.max_steps = w.steps;
  return run;
}

void write(const std::string& path, const chunks& pieces) {
  std::ofstream out{path, std::ios::binary};
  for (const auto& piece : pieces)
    out.write(reinterpret_cast<const char*>(piece->data()),
              static_cast<std::streamsize>(piece->size()));
}

void write_order(const wish& w, std::int64_t size) {
  std::ofstream out{w.folder + "/order.jsonl"};
  const data_layout layout{size, w.shards, w.batch_size};
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < w.steps; ++epoch) {
    const auto order = permutation(w.seed, epoch, size);
    for (std::int64_t batch = 0; batch < layout.batches() && step < w.steps; ++batch) {
      for (std::int64_t rank = 0; rank < w.shards; ++rank) {
        const auto piece = layout.of_rank(batch, rank);
        const auto first = order.begin() + piece.first;
        out << json{{"step", step},
                    {"batch", batch},
                    {"rank", rank},
                    {"samples", std::vector<std::int64_t>(first, first + piece.count)}}
            << "\n";
      }
      step += (batch + 1) % w.accumulate == 0 || batch + 1 == layout.batches();
    }
  }
}

void write_logits(const wish& w, data_module& data, const std::vector<tensor_blob>& weights) {
  net_module module{w.model};
  load_state(module, weights);
  module.eval();
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> first(64);
  std::iota(first.begin(), first.end(), std::int64_t{0});
  const auto batch = data.test().at(0)->get(first);
  const auto logits = module.net->forward(unboxed(batch.get_if<value_tuple>()->items[0]));
  write(w.folder + "/logits.safetensors",
        encode_safetensors(std::vector<tensor_blob>{blob_of("logits", logits)}));
}

int run(const wish& w) {
  const auto data = fashion_mnist();
  data->setup(stage::train);
  auto plan = run_of(w, data->train());
  plan.max_steps = 0;
  const auto before = execute(plan);
  plan.max_steps = w.steps;
  const auto after = execute(plan);

  write(w.folder + "/initial.safetensors", encode_safetensors(before.model));
  write(w.folder + "/final.safetensors", encode_safetensors(after.model));
  write_order(w, data->train()->size());
  std::ofstream{w.folder + "/losses.json"} << json(after.losses);
  write_logits(w, *data, after.model);
  snapshot end;
  end.loop.epoch = after.epochs;
  end.loop.steps = after.steps;
  end.model = after.model;
  end.optimizer = after.optimizer;
  end.state = json{{"optimizers", {{{"groups", json::parse(after.optimizer_groups)}}}}}.dump();
  write(w.folder + "/export.pt", encode_torch_checkpoint(end));
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 9) {
    std::cerr << "torch_sample FOLDER MODEL OPTIMIZER SEED SHARDS BATCH_SIZE ACCUMULATE STEPS\n";
    return 2;
  }
  const auto number = [&](int i) { return std::strtoll(words[i], nullptr, 10); };
  return run({words[1], words[2], words[3], static_cast<std::uint64_t>(number(4)), number(5),
              number(6), number(7), number(8)});
}
