#include "backends/torch/module_state.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "troupe/detail/tensor.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

constexpr std::size_t most_named = 6;

using named_tensors = std::vector<std::pair<std::string, at::Tensor>>;

void collect(const torch::nn::Module& module, const std::string& prefix, named_tensors& all) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    if (item.value().defined()) all.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined()) all.emplace_back(prefix + item.key(), item.value());
  for (const auto& child : module.named_children())
    collect(*child.value(), prefix + child.key() + ".", all);
}

/// `missing a, b (and 3 more); `, or nothing.
std::string enumerate(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const auto shown = std::min(names.size(), most_named);
  auto text = fmt::format("{} {}", what, fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" (and {} more)", names.size() - shown);
  return text + "; ";
}

std::string text_of(at::IntArrayRef shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> state_tensors(const torch::nn::Module& module) {
  named_tensors all;
  collect(module, {}, all);
  return all;
}

std::vector<tensor_blob> state_of(const torch::nn::Module& module) {
  std::vector<tensor_blob> blobs;
  for (const auto& [name, tensor] : state_tensors(module)) blobs.push_back(blob_of(name, tensor));
  return blobs;
}

unmatched load_state(torch::nn::Module& module, const std::vector<tensor_blob>& state,
                     matching how) {
  std::map<std::string_view, const tensor_blob*> given;
  for (const auto& blob : state) given.emplace(blob.name, &blob);
  unmatched rest;
  std::vector<std::string> misshapen;
  std::vector<std::pair<at::Tensor, at::Tensor>> writes;
  std::set<std::string_view> used;
  const auto wanted = state_tensors(module);
  for (const auto& [name, tensor] : wanted) {
    const auto found = given.find(name);
    if (found == given.end()) {
      rest.missing.push_back(name);
      continue;
    }
    used.insert(name);
    const auto from = tensor_of(*found->second);
    if (from.sizes() != tensor.sizes())
      misshapen.push_back(
          fmt::format("{} {} for {}", name, text_of(from.sizes()), text_of(tensor.sizes())));
    writes.emplace_back(tensor.detach(), from);
  }
  for (const auto& [name, blob] : given)
    if (!used.contains(name)) rest.unexpected.emplace_back(name);
  const bool strict = how == matching::exact && !(rest.missing.empty() && rest.unexpected.empty());
  if (strict || !misshapen.empty())
    throw user_error(
        errc::checkpoint,
        "the weights do not fit the model: " + (strict ? enumerate("missing", rest.missing) : "") +
            (strict ? enumerate("unexpected", rest.unexpected) : "") +
            enumerate("of another shape", misshapen) +
            "take the model they were saved from, with the same model.* settings");
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : writes) to.copy_(from);
  return rest;
}

}  // namespace troupe
