// The model as a recipe, and as a module, for the rest of the program. Only classifier_recipe.cpp
// includes headers of LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <troupe/learner.hpp>
#include <vector>

namespace troupe {
class callback_factory;
class data_module;
struct module;
}  // namespace troupe

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
/// The classifier on other data.
troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data);
/// The same with callbacks.
troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data,
                                 std::vector<troupe::callback_factory> callbacks);
