// A built-in model with the sizes of its data.
#pragma once

#include "backends/torch/classifier.hpp"
#include "backends/torch/data_catalog.hpp"
#include "troupe/strategy.hpp"

namespace troupe {

struct fitted_options {
  data_ptr data;
  bool of_files = false;  ///< the built-in data: their getters need no `setup`
  classifier_options options;
  data_sizes made_with{.classes = 0};  ///< of the checkpoint; 0 classes: none
};

/// Makes classifiers that read `data` in `setup`, once for all that are made, and have layers from
/// configure_model on. One that a checkpoint was made of keeps its sizes: other data may have
/// samples of some classes only.
module_factory fitted_classifiers(fitted_options of);

}  // namespace troupe
