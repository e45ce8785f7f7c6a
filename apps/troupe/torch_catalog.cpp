#include "apps/troupe/torch_catalog.hpp"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "backends/torch/data_catalog.hpp"
#include "backends/torch/lane_thread.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/module.hpp"
#include "backends/torch/torch_export.hpp"
#include "backends/torch/version.hpp"

namespace troupe::program {

namespace {

// A built-in model trained to tell classes apart.
struct classifier : module {
  explicit classifier(learning what)
      : net(register_module(
            "net", find_model(what.model).make({.hidden = what.hidden, .dropout = what.dropout}))),
        what_(std::move(what)) {}

  step_output training_step(const batch& b, std::int64_t) override {
    const auto loss = torch::nn::functional::cross_entropy(net->forward(b[0]), b[1]);
    log("train/loss", loss);
    return loss;
  }
  step_output validation_step(const batch& b, std::int64_t) override { return judge("val", b); }
  step_output test_step(const batch& b, std::int64_t) override { return judge("test", b); }
  value predict_step(const batch& b, std::int64_t) override {
    return boxed(net->forward(b[0]).softmax(1));
  }

  optimizers configure_optimizers() override {
    using namespace torch::optim;
    const auto rate = what_.learning_rate, decay = what_.weight_decay;
    if (what_.optimizer == "adam") return Adam(parameters(), AdamOptions(rate).weight_decay(decay));
    if (what_.optimizer == "adamw")
      return AdamW(parameters(), AdamWOptions(rate).weight_decay(decay));
    return SGD(parameters(), SGDOptions(rate).momentum(what_.momentum).weight_decay(decay));
  }

  torch::nn::Sequential net;

private:
  step_output judge(const std::string& of, const batch& b) {
    const auto scores = net->forward(b[0]);
    const auto loss = torch::nn::functional::cross_entropy(scores, b[1]);
    const auto right = scores.argmax(1).eq(b[1]).sum().item<double>();
    log(of + "/loss", loss);
    log_ratio(of + "/accuracy", right, static_cast<double>(b.samples()));
    return loss;
  }

  learning what_;
};

class catalog_of_torch : public catalog {
public:
  std::vector<model_facts> models() const override {
    std::vector<model_facts> all;
    for (const auto& entry : model_catalog())
      all.push_back(
          {std::string{entry.name}, std::string{entry.summary}, parameter_count(*entry.make({}))});
    return all;
  }

  std::vector<data_facts> data_sets() const override {
    std::vector<data_facts> all;
    for (const auto& entry : data_catalog())
      all.push_back({std::string{entry.name}, std::string{entry.summary},
                     entry.name == "fashion_mnist" ? "/usr/share/datasets/fashion-mnist" : "",
                     true});
    return all;
  }

  recipe_ptr recipe(const learning& what) const override {
    const auto data = find_data(what.data).make(
        {.folder = what.data_folder,
         .made_up = {.samples = what.samples, .evaluation = what.evaluation_samples}});
    return recipe_for<classifier>(data, what);
  }

  file_pieces torch_checkpoint(const snapshot& what) const override {
    return encode_torch_checkpoint(what);
  }

  std::vector<std::string> predictions(const value& result) const override {
    std::vector<std::string> lines;
    for (const auto& scores : tensors_of(result)) {
      const auto [chance, chosen] = scores.max(1);
      for (std::int64_t row = 0; row < scores.size(0); ++row)
        lines.push_back(nlohmann::ordered_json{{"schema", "troupe.prediction/1"},
                                               {"sample", lines.size()},
                                               {"class", chosen[row].item<std::int64_t>()},
                                               {"probability", chance[row].item<double>()}}
                            .dump());
    }
    return lines;
  }

  std::map<std::string, std::string> versions() const override {
    return {{"libtorch", torch_version()}};
  }

  std::vector<device_facts> devices() const override {
    return {{"cpu", true, fmt::format("kernels for {}", at::get_cpu_capability())},
            {"cuda", false,
             at::hasCUDA() ? "this program trains on the cpu only" : "a LibTorch without CUDA"}};
  }

  double matrix_speed() const override {
    const lane_thread alone;
    constexpr std::int64_t width = 512, rounds = 8;
    const auto a = torch::rand({width, width}), b = torch::rand({width, width});
    auto c = torch::mm(a, b);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < rounds; ++i) torch::mm_out(c, a, b);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return 2e-9 * static_cast<double>(width * width * width * rounds) / took.count();
  }
};

}  // namespace

std::unique_ptr<const catalog> torch_catalog() { return std::make_unique<catalog_of_torch>(); }

}  // namespace troupe::program
