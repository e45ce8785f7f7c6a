// The built-in models: layers without training logic. Keys are numbered as torch.nn.Sequential does
// it. Weights are initialised as in PyTorch, with the generator of the random_scope in which the
// model is made (backends/torch/rank_random.hpp).
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Keys `model.hidden` and `model.dropout`, and the sizes that depend on the data.
struct model_options {
  std::vector<std::int64_t> hidden{256, 128};  ///< mlp: widths of the hidden layers; may be empty
  double dropout = 0;                          ///< after each ReLU of a linear layer; [0, 1)
  std::int64_t features = 784;                 ///< mlp: numbers per sample
  std::int64_t classes = 10;
};

/// Flatten, then Linear, ReLU for each hidden width, Linear to the classes. Input (N, ...) with
/// `features` numbers per sample, output (N, classes). At most 2^31 parameters. Throws user_error
/// naming the key.
torch::nn::Sequential make_mlp(const model_options& options = {});
/// Two convolutions of 32 and 64 channels with pooling, two linear layers. Input (N, 1, 28, 28),
/// output (N, classes).
torch::nn::Sequential make_cnn(const model_options& options = {});

/// A transformer of three blocks. Input: numbers of characters (N, T), int64, T up to
/// characters::context. Output (N, characters::count, T): of each position, the scores of the
/// character that follows. Of the options only `dropout` has an effect: it applies to the weights
/// of attention and to what each block adds.
torch::nn::Sequential make_gpt(const model_options& options = {});
/// Throws user_error that names the key.
void check(const model_options& options);

/// A built-in model by name.
struct model_entry {
  std::string_view name;
  std::string_view summary;
  torch::nn::Sequential (*make)(const model_options& options);
  bool reads_text = false;
  bool reads_images = false;  ///< of 28 x 28, and only those
};
std::span<const model_entry> model_catalog();
/// Throws user_error that lists the known names.
const model_entry& find_model(std::string_view name);
/// The number of trainable values.
std::int64_t parameter_count(const torch::nn::Module& module);

}  // namespace troupe
