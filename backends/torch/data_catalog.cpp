#include "backends/torch/data_catalog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

dataset_ptr samples_of(data_module& data, stage purpose) {
  const auto sets = purpose == stage::train      ? std::vector{data.train()}
                    : purpose == stage::validate ? data.validation()
                    : purpose == stage::test     ? data.test()
                                                 : data.predict();
  if (sets.empty() || !sets.front() || sets.front()->size() == 0)
    throw user_error(errc::bad_configuration, fmt::format("data {}: there are no samples for {}",
                                                          data.name(), to_string(purpose)));
  return sets.front();
}

}  // namespace

void check_features(data_module& data, std::int64_t expected, stage purpose) {
  const batch one{samples_of(data, purpose)->get(std::vector<std::int64_t>{0}), 1};
  if (one[0].numel() == expected) return;
  throw user_error(
      errc::bad_configuration,
      fmt::format("data {}: a sample has {} features, and the model was trained with {}: give the "
                  "columns of the training data",
                  data.name(), one[0].numel(), expected));
}

void check_images(data_module& data, std::string_view model, stage purpose) {
  const batch one{samples_of(data, purpose)->get(std::vector<std::int64_t>{0}), 1};
  const std::vector<std::int64_t> wanted{1, 1, 28, 28};
  if (one[0].sizes() == wanted) return;
  throw user_error(errc::bad_configuration,
                   fmt::format("data {}: a sample has the shape ({}), and the model {} reads "
                               "images of (1, 28, 28): use --model mlp",
                               data.name(), fmt::join(one[0].sizes().slice(1), ", "), model));
}

namespace {

// A model has weights for each class: a column of other whole numbers would need all memory.
constexpr std::int64_t most_classes = std::int64_t{1} << 20;

// One more than the largest label of a batch.
std::int64_t classes_in(const at::Tensor& targets, const data_module& data) {
  const auto refuse = [&](const std::string& why) {
    throw user_error(errc::bad_configuration, "data " + data.name() + ": " + why);
  };
  if (targets.is_floating_point() || targets.dim() != 1)
    refuse("its targets are no labels (whole numbers from 0), which the built-in models learn");
  const auto labels = targets.to(at::kLong);
  const auto least = labels.min().item<std::int64_t>();
  const auto largest = labels.max().item<std::int64_t>();
  if (least < 0)
    refuse(fmt::format("a target is {}; the built-in models learn classes: number them from 0",
                       least));
  if (largest >= most_classes)
    refuse(
        fmt::format("a target is {}; the built-in models learn at most {} classes, numbered "
                    "from 0: name the column of the classes with data.target, or number them",
                    largest, most_classes));
  return largest + 1;
}

}  // namespace

data_sizes sizes_of(data_module& data, stage purpose) {
  const auto all = samples_of(data, purpose);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(all->size()));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  data_sizes found{.classes = 0};
  for (std::size_t first = 0; first < indices.size(); first += 1024) {
    const auto count = std::min<std::size_t>(1024, indices.size() - first);
    const batch some{all->get(std::span{indices}.subspan(first, count)), 1};
    found.features = some[0].numel() / some[0].size(0);
    found.classes = std::max(found.classes, classes_in(some[1], data));
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
