#include "backends/torch/data_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "troupe/data.hpp"
#include "troupe/failure.hpp"

namespace troupe {

namespace {

data_ptr make_fashion_mnist(const data_options& options) {
  return options.folder.empty() ? fashion_mnist() : fashion_mnist(options.folder);
}
data_ptr make_synthetic(const data_options& options) { return synthetic(options.made_up); }
data_ptr make_csv(const data_options& options) { return csv_data(options.folder, options.target); }
data_ptr make_tensors(const data_options& options) { return tensor_file_data(options.folder); }
data_ptr make_text(const data_options& options) {
  return text_data(options.folder.empty() ? "/usr/share/games/fortunes" : options.folder);
}

constexpr std::array data_entries{
    data_entry{"fashion_mnist", "60,000 and 10,000 images of clothes, 28 x 28, in 10 classes",
               &make_fashion_mnist},
    data_entry{"synthetic", "one bell-shaped blob per class; nothing to install", &make_synthetic},
    data_entry{"csv", "numbers in FILE.csv, or FOLDER/train.csv and so on: --data-dir", &make_csv,
               true},
    data_entry{"tensors", "inputs and targets in a .safetensors file, or a folder of them",
               &make_tensors, true},
    data_entry{"text", "characters of a text, or of those in a folder; by default, fortunes",
               &make_text, false, true},
};

}  // namespace

namespace {

// The training data, or without any others.
dataset_ptr samples_of(data_module& data) {
  auto all = data.train();
  for (const auto& some : {data.test(), data.validation()})
    if (!all && !some.empty()) all = some.front();
  if (!all || all->size() == 0)
    throw user_error(errc::bad_configuration, "data " + data.name() + ": there are no samples");
  return all;
}

}  // namespace

void check_features(data_module& data, std::int64_t expected) {
  const batch one{samples_of(data)->get(std::vector<std::int64_t>{0}), 1};
  if (one[0].numel() == expected) return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("data {}: a sample has {} features, and the model was trained with {}: give the "
                  "columns of the training data",
                  data.name(), one[0].numel(), expected));
}

data_sizes sizes_of(data_module& data) {
  const auto all = samples_of(data);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(all->size()));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  data_sizes found{.classes = 0};
  for (std::size_t first = 0; first < indices.size(); first += 1024) {
    const auto count = std::min<std::size_t>(1024, indices.size() - first);
    const batch some{all->get(std::span{indices}.subspan(first, count)), 1};
    found.features = some[0].numel() / some[0].size(0);
    if (some[1].is_floating_point() || some[1].dim() != 1)
      throw user_error(errc::bad_configuration,
                       "data " + data.name() +
                           ": its targets are no labels (whole numbers from 0), "
                           "which the built-in models learn");
    found.classes = std::max(found.classes, some[1].max().item<std::int64_t>() + 1);
  }
  return found;
}

std::span<const data_entry> data_catalog() { return data_entries; }

const data_entry& find_data(std::string_view name) {
  const auto found = std::find_if(data_entries.begin(), data_entries.end(),
                                  [&](const data_entry& entry) { return entry.name == name; });
  if (found != data_entries.end()) return *found;
  std::string names;
  for (const auto& entry : data_entries)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  throw user_error(errc::bad_configuration,
                   fmt::format("there is no data {}; there are {}", name, names));
}

}  // namespace troupe
