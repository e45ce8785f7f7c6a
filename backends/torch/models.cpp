#include "backends/torch/models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <array>
#include <set>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

namespace nn = torch::nn;

constexpr std::int64_t widest = 1 << 20;
constexpr double most_parameters = 2147483648;  // 8 GiB of float32

/// ReLU and dropout as one layer, so that a model's keys do not depend on dropout. Works in place,
/// because no other layer reads the output of the linear layer or convolution before it.
class relu_layer : public nn::Cloneable<relu_layer> {
public:
  explicit relu_layer(double dropout = 0) : dropout_(dropout) {}
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    const auto y = x.relu_();
    if (dropout_ == 0) return y;
    return nn::functional::dropout(
        y, nn::functional::DropoutFuncOptions{}.p(dropout_).training(is_training()));
  }
  void pretty_print(std::ostream& out) const override {
    out << "ReLU";
    if (dropout_ != 0) out << ", dropout " << dropout_;
  }

private:
  double dropout_;
};
TORCH_MODULE_IMPL(relu, relu_layer);

nn::Conv2d convolution(std::int64_t in, std::int64_t out) {
  return nn::Conv2d{nn::Conv2dOptions(in, out, 3).padding(1)};
}

constexpr std::array model_entries{
    model_entry{"mlp", "layers of model.hidden units, for images of 28 x 28", &make_mlp},
    model_entry{"cnn", "two convolutions and two linear layers, for images of 28 x 28", &make_cnn,
                false, true},
    model_entry{"gpt", "three blocks of a transformer, for the characters of texts", &make_gpt,
                true},
};

}  // namespace

void check(const model_options& options) {
  const auto refuse = [](std::string what) {
    throw user_error(errc::bad_configuration, std::move(what));
  };
  if (!(options.dropout >= 0 && options.dropout < 1))
    refuse(fmt::format("model.dropout is {}; it must be 0 or more and below 1", options.dropout));
  for (const auto width : options.hidden)
    if (width < 1 || width > widest)
      refuse(fmt::format("model.hidden holds {}; widths lie between 1 and {}", width, widest));
  if (options.features < 1 || options.classes < 1)
    refuse("a model needs at least one feature and one class");
}

namespace {

// Also of sizes whose product is above 2^64.
void check_parameters(const model_options& options) {
  auto width = static_cast<double>(options.features);
  double all = 0;
  const auto add = [&](std::int64_t next) {
    all += (width + 1) * static_cast<double>(next);
    width = static_cast<double>(next);
  };
  for (const auto next : options.hidden) add(next);
  add(options.classes);
  if (all <= most_parameters) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("a model with model.hidden = [{}] for {} features and {} classes "
                               "has {:.3g} parameters, at most {:.0f}: give narrower layers",
                               fmt::join(options.hidden, ", "), options.features, options.classes,
                               all, most_parameters));
}

}  // namespace

nn::Sequential make_mlp(const model_options& options) {
  check(options);
  check_parameters(options);
  nn::Sequential net{nn::Flatten{}};
  auto width = options.features;
  for (const auto next : options.hidden) {
    net->push_back(nn::Linear{width, next});
    net->push_back(relu{options.dropout});
    width = next;
  }
  net->push_back(nn::Linear{width, options.classes});
  return net;
}

nn::Sequential make_cnn(const model_options& options) {
  check(options);
  const nn::MaxPool2dOptions halves{2};
  return nn::Sequential{convolution(1, 32),
                        relu{},
                        nn::MaxPool2d{halves},
                        convolution(32, 64),
                        relu{},
                        nn::MaxPool2d{halves},
                        nn::Flatten{},
                        nn::Linear{64 * 7 * 7, 128},
                        relu{options.dropout},
                        nn::Linear{128, options.classes}};
}

std::span<const model_entry> model_catalog() { return model_entries; }

const model_entry& find_model(std::string_view name) {
  const auto found = std::find_if(model_entries.begin(), model_entries.end(),
                                  [&](const model_entry& entry) { return entry.name == name; });
  if (found != model_entries.end()) return *found;
  std::string names;
  for (const auto& entry : model_entries)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  throw user_error(errc::bad_configuration,
                   fmt::format("there is no model {}; there are {}", name, names));
}

std::int64_t parameter_count(const nn::Module& module) {
  std::int64_t count = 0;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& parameter : module.parameters())
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) count += parameter.numel();
  return count;
}

}  // namespace troupe
