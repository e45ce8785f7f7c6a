// The model as a recipe, and as a module, for the rest of the program. Only classifier_recipe.cpp
// includes headers of LibTorch.
#pragma once

#include <troupe/learner.hpp>

#include <cstdint>
#include <memory>

namespace troupe {
struct module;
}

/// What the classifier is made of.
struct classifier_sizes {
  std::int64_t hidden = 64;
  template <class F>
  void fields(F&& f) {
    f("hidden", hidden);
  }
};
std::shared_ptr<troupe::module> make_classifier(const classifier_sizes& how);

/// The classifier on made-up data, 32 samples per rank and micro-batch.
troupe::recipe_ptr classifier_recipe();
