// The model as a recipe, for the rest of the program. Only classifier_recipe.cpp includes headers
// of LibTorch.
#pragma once

#include <memory>
#include <troupe/learner.hpp>
#include <vector>

namespace troupe {
class callback_factory;
class data_module;
}  // namespace troupe

/// The classifier on made-up data.
troupe::recipe_ptr classifier_recipe();
/// The classifier on other data.
troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data);
/// The same with callbacks.
troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data,
                                 std::vector<troupe::callback_factory> callbacks);
