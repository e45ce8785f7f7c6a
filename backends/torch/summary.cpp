#include "troupe/module.hpp"

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace troupe {

namespace {

using seen_tensors = std::set<const void*>;

std::string type_of(const torch::nn::Module& one) {
  auto name = c10::demangle(typeid(one).name());
  name = name.substr(0, name.find('<'));
  if (const auto colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::int64_t parameters_of(const torch::nn::Module& one) {
  seen_tensors seen;
  std::int64_t sum = 0;
  for (const auto& tensor : one.parameters())
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) sum += tensor.numel();
  return sum;
}

void add_layers(const torch::nn::Module& of, const std::string& prefix, int depth,
                std::vector<layer_summary>& into) {
  if (depth == 0) return;
  for (const auto& child : of.named_children()) {
    const auto name = prefix + child.key();
    into.push_back({name, type_of(*child.value()), parameters_of(*child.value()),
                    child.value()->is_training()});
    add_layers(*child.value(), name + ".", depth - 1, into);
  }
}

// `1.2 K`, `235 K`, `7 `.
std::string short_count(std::int64_t count) {
  constexpr std::array<const char*, 5> units{" ", "K", "M", "B", "T"};
  auto number = static_cast<double>(count);
  std::size_t unit = 0;
  for (; number >= 1000 && unit + 1 < units.size(); ++unit) number /= 1000;
  if (unit == 0 || number >= 100) return fmt::format("{} {}", std::floor(number), units.at(unit));
  return fmt::format("{:.1f} {}", number, units.at(unit));
}

}  // namespace

module_summary summarize(const torch::nn::Module& of, int depth) {
  module_summary all;
  add_layers(of, "", depth, all.layers);
  seen_tensors seen;
  for (const auto& tensor : of.parameters()) {
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    (tensor.requires_grad() ? all.trainable : all.fixed) += tensor.numel();
    all.bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  return all;
}

std::string to_string(const module_summary& all) {
  const auto index_width = std::to_string(all.layers.size()).size();
  std::size_t name_width = 4;
  std::size_t type_width = 4;
  for (const auto& one : all.layers) {
    name_width = std::max(name_width, one.name.size());
    type_width = std::max(type_width, one.type.size());
  }
  auto text = fmt::format("{:{}} | {:{}} | {:{}} | Params | Mode\n", "", index_width, "Name",
                          name_width, "Type", type_width);
  const std::string line(text.size() + 1, '-');
  text += line + "\n";
  for (std::size_t i = 0; i < all.layers.size(); ++i) {
    const auto& one = all.layers[i];
    text += fmt::format("{:<{}} | {:{}} | {:{}} | {:6} | {}\n", i, index_width, one.name,
                        name_width, one.type, type_width, short_count(one.parameters),
                        one.training ? "train" : "eval");
  }
  text += line + "\n";
  const auto sum = [&](const std::string& what, const char* of) {
    text += fmt::format("{:<9} {}\n", what, of);
  };
  sum(short_count(all.trainable), "Trainable params");
  sum(short_count(all.fixed), "Non-trainable params");
  sum(short_count(all.trainable + all.fixed), "Total params");
  sum(fmt::format("{:.3f}", static_cast<double>(all.bytes) / 1e6),
      "Total estimated model params size (MB)");
  return text;
}

}  // namespace troupe
