// The built-in data sets by name.
#pragma once

#include <span>
#include <string_view>

#include "troupe/data.hpp"

namespace troupe {

/// Keys `data.*`. A data set ignores options that it does not have.
struct data_options {
  std::string folder;  ///< `--data-dir`; empty: where the Debian package puts it
  std::string target;  ///< csv: the column of the targets; empty: the last one
  synthetic_options made_up;
};

/// What a model must fit: numbers per sample, and classes.
struct data_sizes {
  std::int64_t features = 784;
  std::int64_t classes = 10;
  template <class F>
  void fields(F&& f) {
    f("features", features), f("classes", classes);
  }
};

struct data_entry {
  std::string_view name;
  std::string_view summary;
  data_ptr (*make)(const data_options& options);
  bool sized_by_files = false;  ///< its sizes are what the files hold: sizes_of
  bool is_text = false;         ///< for models that read text, and only for them
};
std::span<const data_entry> data_catalog();
/// These use the data of `purpose`, for which they are set up; of several datasets the first. They
/// throw user_error (bad_configuration) if it has no samples.
/// @{
/// Reads all samples. Throws user_error for data whose batches are not (inputs, labels), with
/// labels from 0 to below 2^20.
data_sizes sizes_of(data_module& data, stage purpose = stage::train);
/// Throws user_error (bad_configuration) if a sample is no image of 28 x 28, which `model` reads.
void check_images(data_module& data, std::string_view model, stage purpose = stage::train);
/// Throws user_error (bad_configuration) if a sample has another number of features.
void check_features(data_module& data, std::int64_t expected, stage purpose);
/// @}
/// Throws user_error that lists the known names.
const data_entry& find_data(std::string_view name);

}  // namespace troupe
