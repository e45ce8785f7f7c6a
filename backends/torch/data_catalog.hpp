// The built-in data sets by name.
#pragma once

#include <span>
#include <string_view>

#include "troupe/data.hpp"
#include "troupe/synthetic.hpp"

namespace troupe {

/// Keys `data.*`. A data set ignores options that it does not have.
struct data_options {
  std::string folder;  ///< `--data-dir`; empty: where the Debian package puts it
  synthetic_options made_up;
};

struct data_entry {
  std::string_view name;
  std::string_view summary;
  data_ptr (*make)(const data_options& options);
};
std::span<const data_entry> data_catalog();
/// Throws user_error that lists the known names.
const data_entry& find_data(std::string_view name);

}  // namespace troupe
