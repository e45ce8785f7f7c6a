// A small transformer that predicts the next character, as in "Attention is all you need" (Vaswani
// et al., 2017), with the norm before each part (Radford et al., 2019).
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>

#include "backends/torch/characters.hpp"
#include "backends/torch/models.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

namespace nn = torch::nn;

constexpr std::int64_t text_width = 96, text_heads = 4, text_blocks = 3;

// Numbers of characters (N, T) to (N, T, text_width): what stands there, and where.
class place_layer : public nn::Cloneable<place_layer> {
public:
  place_layer() { place_layer::reset(); }
  void reset() override {
    what_ = register_module("what", nn::Embedding{characters::count, text_width});
    where_ = register_module("where", nn::Embedding{characters::context, text_width});
  }
  at::Tensor forward(const at::Tensor& x) {
    if (x.is_floating_point() || x.dim() != 2 || x.size(1) > characters::context)
      throw user_error(errc::bad_configuration,
                       "the model gpt reads texts, and the data have none: use --data text");
    return what_(x) + where_(at::arange(x.size(1), x.options()));
  }

private:
  nn::Embedding what_{nullptr}, where_{nullptr};
};
TORCH_MODULE_IMPL(place, place_layer);

// Each position looks at itself and at those before it; then a layer per position.
class block_layer : public nn::Cloneable<block_layer> {
public:
  explicit block_layer(double dropout) : dropout_(dropout) { block_layer::reset(); }
  void reset() override {
    norm_1_ = register_module("norm_1", nn::LayerNorm{nn::LayerNormOptions({text_width})});
    look_ = register_module("look", nn::Linear{text_width, 3 * text_width});
    mix_ = register_module("mix", nn::Linear{text_width, text_width});
    norm_2_ = register_module("norm_2", nn::LayerNorm{nn::LayerNormOptions({text_width})});
    wide_ = register_module("wide", nn::Linear{text_width, 4 * text_width});
    narrow_ = register_module("narrow", nn::Linear{4 * text_width, text_width});
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = x + dropped(mix_(attended(look_(norm_1_(x)))));
    return y + dropped(narrow_(nn::functional::gelu(wide_(norm_2_(y)))));
  }

private:
  at::Tensor dropped(const at::Tensor& x) {
    if (dropout_ == 0) return x;
    return nn::functional::dropout(
        x, nn::functional::DropoutFuncOptions{}.p(dropout_).training(is_training()));
  }

  // Queries, keys and values (N, T, 3 * text_width) to (N, T, text_width).
  at::Tensor attended(const at::Tensor& all) {
    const auto n = all.size(0), t = all.size(1);
    const auto parts =
        all.view({n, t, 3, text_heads, text_width / text_heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto later = at::ones({t, t}, all.options().dtype(at::kBool)).triu(1);
    const auto scores = at::matmul(parts[0], parts[1].transpose(2, 3)) /
                        std::sqrt(static_cast<double>(text_width / text_heads));
    const auto weights =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
    return at::matmul(dropped(weights), parts[2]).transpose(1, 2).reshape({n, t, text_width});
  }

  double dropout_;
  nn::LayerNorm norm_1_{nullptr}, norm_2_{nullptr};
  nn::Linear look_{nullptr}, mix_{nullptr}, wide_{nullptr}, narrow_{nullptr};
};
TORCH_MODULE_IMPL(block, block_layer);

// To (N, classes, T), which is how cross_entropy takes several targets per sample.
class guess_layer : public nn::Cloneable<guess_layer> {
public:
  guess_layer() { guess_layer::reset(); }
  void reset() override {
    norm_ = register_module("norm", nn::LayerNorm{nn::LayerNormOptions({text_width})});
    out_ = register_module("out", nn::Linear{text_width, characters::count});
  }
  at::Tensor forward(const at::Tensor& x) { return out_(norm_(x)).transpose(1, 2); }

private:
  nn::LayerNorm norm_{nullptr};
  nn::Linear out_{nullptr};
};
TORCH_MODULE_IMPL(guess, guess_layer);

}  // namespace

nn::Sequential make_gpt(const model_options& options) {
  check(options);
  nn::Sequential net{place{}};
  for (std::int64_t i = 0; i < text_blocks; ++i) net->push_back(block{options.dropout});
  net->push_back(guess{});
  return net;
}

}  // namespace troupe
