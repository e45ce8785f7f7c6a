#include "apps/troupe/torch_catalog.hpp"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <chrono>
#include <fstream>

#include "backends/checkpoint/safetensors.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/data_catalog.hpp"
#include "backends/torch/models.hpp"
#include "backends/torch/torch_export.hpp"
#include "backends/torch/version.hpp"

namespace troupe::program {

namespace {

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
    for (const auto& entry : troupe::data_catalog())
      all.push_back({std::string{entry.name}, std::string{entry.summary},
                     entry.name == "fashion_mnist" ? "/usr/share/datasets/fashion-mnist" : "",
                     true});
    return all;
  }

  recipe_ptr recipe(const learning& what) const override {
    const auto& model = find_model(what.model);
    model_options layers;
    layers.hidden = what.hidden;
    layers.dropout = what.dropout;
    const optimizer_choice choice{what.optimizer, what.learning_rate, what.momentum,
                                  what.weight_decay};
    data_options where;
    where.folder = what.data_folder;
    return make_recipe([make = model.make, layers,
                        choice] { return std::make_shared<classifier>(make(layers), choice); },
                       find_data(what.data).make(where));
  }

  void export_checkpoint(const snapshot& what, export_format format,
                         const std::string& output) const override {
    const auto pieces = format == export_format::torch ? encode_torch_checkpoint(what)
                                                       : encode_safetensors(what.model);
    std::ofstream file(output, std::ios::binary | std::ios::trunc);
    for (const auto& piece : pieces)
      file.write(reinterpret_cast<const char*>(piece->data()),
                 static_cast<std::streamsize>(piece->size()));
    file.close();
    if (!file)
      throw user_error(errc::checkpoint,
                       fmt::format("{} could not be written: choose another --output", output));
  }

  // One line per sample: its number within the loader and the predicted class.
  std::vector<std::string> predictions(const value& result) const override {
    std::vector<std::string> lines;
    std::int64_t sample = 0;
    for (const auto& part : tensors_of(result)) {
      const auto classes = part.flatten().to(at::kLong);
      for (std::int64_t i = 0; i < classes.numel(); ++i)
        lines.push_back(fmt::format(R"({{"sample":{},"prediction":{}}})", sample++,
                                    classes[i].item<std::int64_t>()));
    }
    return lines;
  }

  std::map<std::string, std::string> versions() const override {
    return {{"libtorch", torch_version()}};
  }

  std::vector<device_facts> devices() const override {
    return {{"cpu", true, "LibTorch's CPU kernels, one thread per rank"},
            {"cuda", false, "not built in: this LibTorch is the CPU build"}};
  }

  double matrix_speed() const override {
    constexpr std::int64_t rows = 128, side = 1024;
    const auto a = at::ones({rows, side});
    const auto b = at::ones({side, side});
    at::matmul(a, b);  // the first one finds its kernels
    const auto began = std::chrono::steady_clock::now();
    std::int64_t products = 0;
    std::chrono::duration<double> passed{0};
    while (passed.count() < 0.1) {
      at::matmul(a, b);
      ++products;
      passed = std::chrono::steady_clock::now() - began;
    }
    return 2.0 * rows * side * side * static_cast<double>(products) / passed.count() / 1e9;
  }
};

}  // namespace

std::unique_ptr<const catalog> torch_catalog() { return std::make_unique<catalog_of_torch>(); }

}  // namespace troupe::program
