// The model as a recipe, for the rest of the program. Only classifier_recipe.cpp includes headers
// of LibTorch.
#pragma once

#include <troupe/learner.hpp>

/// The classifier on made-up data, 32 samples per rank and micro-batch.
troupe::recipe_ptr classifier_recipe();
