#include "backends/torch/data_catalog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "troupe/failure.hpp"

namespace troupe {

namespace {

data_ptr make_fashion_mnist(const data_options& options) {
  return options.folder.empty() ? fashion_mnist() : fashion_mnist(options.folder);
}
data_ptr make_synthetic(const data_options& options) { return synthetic(options.made_up); }

constexpr std::array data_entries{
    data_entry{"fashion_mnist", "60,000 and 10,000 images of clothes, 28 x 28, in 10 classes",
               &make_fashion_mnist},
    data_entry{"synthetic", "one bell-shaped blob per class; nothing to install", &make_synthetic},
};

}  // namespace

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
