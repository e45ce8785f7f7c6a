#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backends/checkpoint/safetensors.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/module_state.hpp"
#include "backends/torch/reference_executor.hpp"
#include "backends/torch/torch_export.hpp"
#include "tests/python/samples.hpp"
#include "tests/support/rank_threads.hpp"
#include "troupe/detail/powersgd.hpp"
#include "troupe/detail/tensor.hpp"
#include "troupe/module.hpp"

namespace {

using namespace troupe;
using json = nlohmann::json;

// --- reference runs -----------------------------------------------------------------------------

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

void run(const wish& w) {
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
}

// --- numbers ------------------------------------------------------------------------------------

at::Tensor drawn(std::uint64_t seed, at::IntArrayRef sizes) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

// --- the scaler ----------------------------------------------------------------------------------

constexpr std::int64_t scaler_steps = 200;

/// One number of the gradient of `layer` is multiplied by this, on rank 1 after the sum.
double spoiled_by(std::int64_t step, std::int64_t layer) {
  if (step % 23 == 11 && layer == 0) return std::numeric_limits<double>::infinity();
  if (step % 31 == 30 && layer == 1) return std::numeric_limits<double>::quiet_NaN();
  return step >= 120 && step < 126 ? std::numeric_limits<double>::infinity() : 1;
}

struct nothing : data_module {
  struct rows : dataset {
    std::int64_t size() const override { return scaler_steps * 16; }
    value get(std::span<const std::int64_t>) const override { return boxed(torch::zeros({1})); }
  };
  dataset_ptr train() override { return std::make_shared<rows>(); }
};

/// Draws the parameters of these layers, with seeds from 1.
void draw_parameters(const std::vector<std::shared_ptr<torch::nn::Module>>& layers) {
  std::uint64_t seed = 1;
  const torch::NoGradGuard no_grad;
  for (const auto& layer : layers)
    for (auto& parameter : layer->parameters())
      parameter.copy_(drawn(seed++, parameter.sizes()) * 0.2);
}

/// Two layers with an optimizer each, in 16-mixed.
struct scaled_net : troupe::module {
  explicit scaled_net(std::shared_ptr<json> into) : scales(std::move(into)) {
    draw_parameters({first.ptr(), second.ptr()});
  }
  step_output training_step(const batch&, std::int64_t) override {
    const auto seed = static_cast<std::uint64_t>(2 * at().step + rank());
    const auto y = second->forward(torch::relu(first->forward(drawn(1000 + seed, {8, 12}))));
    return torch::nn::functional::mse_loss(y.to(torch::kFloat), drawn(9000 + seed, {8, 4}));
  }
  void on_after_backward() override {
    const auto factor = spoiled_by(at().step, at().optimizer);
    if (rank() == 1 && factor != 1)
      (at().optimizer == 0 ? first : second)->bias.mutable_grad()[0].mul_(factor);
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    if (rank() == 0)
      scales->push_back(json::parse(strategy_in_use()->precision_in_use().state()).at("scale"));
  }
  optimizers configure_optimizers() override {
    const auto how = torch::optim::SGDOptions(0.05).momentum(0.9);
    optimizers all{torch::optim::SGD(first->parameters(), how)};
    all.add(torch::optim::SGD(second->parameters(), how));
    return all;
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(12, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 4));
  std::shared_ptr<json> scales;
};

void train_scaled(const std::string& folder) {
  const auto scales = std::make_shared<json>(json::array());
  trainer_options options;
  options.ranks = 2;
  options.batch_size = 8;
  options.max_epochs = 1;
  options.gradient_clip_val = 0.5;
  options.precision = precision_kind::f16_mixed;
  torch_plugins plugins;
  plugins.precisions["16-mixed"] = [] {
    return make_f16_mixed({.init_scale = 1024, .growth_interval = 7});
  };
  const auto recipe = make_recipe([=] { return std::make_shared<scaled_net>(scales); },
                                  std::make_shared<nothing>(), plugins);
  const auto ends = testing::run_good_job({.recipe = recipe, .options = options});
  std::ofstream{folder + "/scaler.json"} << *scales;
  write(folder + "/scaler.safetensors", encode_safetensors(ends[0].snapshot->model));
}

// --- truncated back-propagation through time -----------------------------------------------------

constexpr std::int64_t recurrent_steps = 40;

/// A recurrent layer and a linear one. Each rank draws the 4 sequences of its batch.
template <class Cell>
struct recurrent_net : troupe::module {
  static constexpr bool is_lstm = std::is_same_v<Cell, torch::nn::LSTM>;

  recurrent_net() { draw_parameters({cell.ptr(), head.ptr()}); }
  value on_after_batch_transfer(value, std::int32_t) override {
    const auto seed = static_cast<std::uint64_t>(2 * at().step + rank());
    return value_tuple{
        {boxed(drawn(3000 + seed, {4, 10, 3})), boxed(drawn(5000 + seed, {4, 10, 2}))}};
  }
  step_output training_step(const batch& b, std::int64_t) override {
    value_map made;
    at::Tensor out;
    if constexpr (is_lstm) {
      std::optional<std::tuple<at::Tensor, at::Tensor>> before;
      if (const auto* both = hiddens().get_if<value_tuple>())
        before = std::tuple{unboxed(both->items.at(0)), unboxed(both->items.at(1))};
      const auto [y, after] = cell->forward(b[0], before);
      out = y;
      made.items["hiddens"] = value_tuple{{boxed(std::get<0>(after)), boxed(std::get<1>(after))}};
    } else {
      const auto before = hiddens().empty() ? at::Tensor{} : unboxed(hiddens());
      const auto [y, after] = cell->forward(b[0], before);
      out = y;
      made.items["hiddens"] = boxed(after);
    }
    made.items["loss"] = boxed(torch::nn::functional::mse_loss(head->forward(out), b[1]));
    return made;
  }
  optimizers configure_optimizers() override {
    return torch::optim::Adam(parameters(), torch::optim::AdamOptions(0.02));
  }
  Cell cell = this->register_module("cell", Cell(options()));
  torch::nn::Linear head = this->register_module("head", torch::nn::Linear(6, 2));

private:
  static auto options() {
    if constexpr (is_lstm)
      return torch::nn::LSTMOptions(3, 6).batch_first(true);
    else
      return torch::nn::GRUOptions(3, 6).batch_first(true);
  }
};

template <class Cell>
void train_recurrent(const std::string& folder, const std::string& name) {
  trainer_options options;
  options.ranks = 2;
  options.batch_size = 4;
  options.max_epochs = 1;
  options.max_steps = recurrent_steps;
  options.gradient_clip_val = 0.1;
  options.truncated_bptt_steps = 4;
  const auto recipe = make_recipe([] { return std::make_shared<recurrent_net<Cell>>(); },
                                  std::make_shared<nothing>());
  const auto ends = testing::run_good_job({.recipe = recipe, .options = options});
  write(folder + "/recurrent." + name + ".safetensors",
        encode_safetensors(ends[0].snapshot->model));
}

// --- manual optimization -------------------------------------------------------------------------

constexpr std::int64_t manual_steps = 60;

/// Two layers that train against each other.
struct adversarial : troupe::module {
  adversarial() { draw_parameters({generator.ptr(), critic.ptr()}); }
  bool automatic_optimization() const override { return false; }
  value on_after_batch_transfer(value, std::int32_t) override {
    const auto seed = static_cast<std::uint64_t>(2 * at().step + rank());
    return value_tuple{{boxed(drawn(13000 + seed, {4, 3})), boxed(drawn(15000 + seed, {4, 2}))}};
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto made = generator->forward(b[0]);
    optimizer(0).zero_grad();
    manual_backward(torch::nn::functional::mse_loss(made, b[1]) -
                    0.1 * critic->forward(made).mean());
    optimizer(0).step();
    optimizer(1).zero_grad();
    manual_backward(critic->forward(made.detach()).pow(2).mean());
    manual_backward(critic->forward(b[1]).sub(1).pow(2).mean());
    optimizer(1).step();
    return {};
  }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::Adam(generator->parameters(), torch::optim::AdamOptions(0.01))}
        .add(torch::optim::SGD(critic->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
  }
  torch::nn::Linear generator = register_module("generator", torch::nn::Linear(3, 2));
  torch::nn::Linear critic = register_module("critic", torch::nn::Linear(2, 1));
};

void train_manually(const std::string& folder) {
  trainer_options options;
  options.ranks = 2;
  options.batch_size = 4;
  options.max_epochs = 1;
  options.max_steps = manual_steps;
  const auto recipe =
      make_recipe([] { return std::make_shared<adversarial>(); }, std::make_shared<nothing>());
  const auto ends = testing::run_good_job({.recipe = recipe, .options = options});
  write(folder + "/manual.safetensors", encode_safetensors(ends[0].snapshot->model));
}

// --- PowerSGD ------------------------------------------------------------------------------------

const std::vector<std::vector<std::int64_t>> shapes{{32, 48}, {16}, {8, 4, 3, 3}, {1},
                                                    {40, 10}, {},   {32, 48},     {3, 2}};
constexpr std::int64_t powersgd_steps = 7;

/// The sums of all steps of a rank, by `STEP.PARAMETER`.
std::vector<tensor_blob> sums_of(const powersgd_options& how, std::int32_t rank,
                                 communicator& world, const std::string& name) {
  std::vector<tensor_blob> found;
  powersgd_state state{how};
  std::vector<gradient_bucket::part> parts;
  std::int64_t elements = 0;
  for (const auto& shape : shapes) {
    const auto parameter = torch::zeros(shape);
    parts.push_back({parameter, elements, parameter.strides().vec()});
    elements += parameter.numel();
  }
  gradient_bucket::memory kept;
  for (std::int64_t step = 0; step < powersgd_steps; ++step) {
    auto buffer = torch::zeros({elements});
    const gradient_bucket bucket{world, 0, true, buffer, parts, kept};
    auto gradients = bucket.gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      gradients[i].copy_(drawn(100 * step + 10 * rank + i, shapes[i]) / 2);  // half of the samples
    const auto promised = powersgd_hook(state, bucket);
    promised.pending->wait();
    if (promised.sum) promised.sum();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      found.push_back(blob_of(name + "." + std::to_string(step) + "." + std::to_string(i),
                              gradients[i].clone()));
  }
  return found;
}

void sum_by_powersgd(const std::string& folder) {
  const std::vector<std::pair<std::string, powersgd_options>> cases{
      {"rank1", {.start_step = 2}},
      {"rank2", {.rank = 2, .start_step = 2, .min_rate = 1.5, .seed = 5}},
      {"rank4", {.rank = 4, .start_step = 3, .min_rate = 0.5}},
      {"cold", {.start_step = 2, .warm_start = false}},
      {"no_feedback", {.rank = 2, .start_step = 2, .error_feedback = false}},
      {"epsilon", {.rank = 2, .start_step = 2, .epsilon = 1.0}}};
  std::vector<tensor_blob> all;
  for (const auto& [name, how] : cases) {
    std::vector<std::vector<tensor_blob>> found(2);
    const auto errors = testing::on_ranks(2, [&](auto rank, const auto& world) {
      found[static_cast<std::size_t>(rank)] = sums_of(how, rank, *world, name);
    });
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
    all.insert(all.end(), found[0].begin(), found[0].end());
  }
  write(folder + "/powersgd.safetensors", encode_safetensors(all));
}

}  // namespace

void write_reference_run(const std::vector<std::string>& words) {
  if (words.size() != 8)
    throw std::invalid_argument("reference takes 8 words, not " + std::to_string(words.size()));
  const auto number = [&](std::size_t i) { return std::stoll(words[i]); };
  run({words[0], words[1], words[2], static_cast<std::uint64_t>(number(3)), number(4), number(5),
       number(6), number(7)});
}

void write_numbers(const std::string& folder) {
  train_scaled(folder);
  train_recurrent<torch::nn::LSTM>(folder, "lstm");
  train_recurrent<torch::nn::GRU>(folder, "gru");
  train_manually(folder);
  sum_by_powersgd(folder);
}
