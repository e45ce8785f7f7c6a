// What the rest of a program sees of its model: a recipe. Only classifier_recipe.cpp reads
// LibTorch's headers.
#pragma once

#include <troupe/learner.hpp>

/// The classifier on made-up data, 32 samples per rank and micro-batch.
troupe::recipe_ptr classifier_recipe();
