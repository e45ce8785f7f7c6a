#include "apps/troupe/torch_catalog.hpp"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/troupe/build_facts.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/data_catalog.hpp"
#include "backends/torch/lane_thread.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/torch_export.hpp"
#include "backends/torch/version.hpp"
#include "troupe/testing/tensors.hpp"

namespace troupe::program {

namespace {

class catalog_of_torch : public catalog {
public:
  std::vector<model_facts> models() const override {
    std::vector<model_facts> all;
    for (const auto& entry : model_catalog())
      all.push_back({std::string{entry.name}, std::string{entry.summary}});
    return all;
  }

  std::int64_t parameters(const std::string& model) const override {
    return parameter_count(*find_model(model).make({}));
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
    classifier_options options;
    options.model = what.model;
    options.layers.hidden = what.hidden;
    options.layers.dropout = what.dropout;
    options.optimizer = what.optimizer;
    options.learning_rate = what.learning_rate;
    options.momentum = what.momentum;
    options.weight_decay = what.weight_decay;
    return recipe_for<classifier>(data, options);
  }

  std::shared_ptr<testing::payload> tensors() const override { return testing::tensors_payload(); }

  file_pieces torch_checkpoint(const snapshot& what) const override {
    return encode_torch_checkpoint(what);
  }

  std::vector<std::string> predictions(const value& result) const override {
    std::vector<std::string> lines;
    for (const auto& scores : tensors_of(result)) {
      const auto [chance, chosen] = scores.softmax(1).max(1);
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
    return {{"libtorch", torch_version()}, {"troupe", std::string{build_facts::version}}};
  }

  std::vector<device_facts> devices() const override {
    return {{"cpu", true, fmt::format("kernels for {}", at::get_cpu_capability())},
            {"cuda", false,
             at::hasCUDA() ? "this program trains on the cpu only" : "a LibTorch without CUDA"}};
  }

  double matrix_speed() const override {
    const lane_thread alone;
    constexpr std::int64_t width = 512, rounds = 8;
    const auto a = at::rand({width, width}), b = at::rand({width, width});
    auto c = at::mm(a, b);
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < rounds; ++i) at::mm_out(c, a, b);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return 2e-9 * static_cast<double>(width * width * width * rounds) / took.count();
  }
};

}  // namespace

std::unique_ptr<const catalog> torch_catalog() { return std::make_unique<catalog_of_torch>(); }

}  // namespace troupe::program
