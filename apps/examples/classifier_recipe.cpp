#include "apps/examples/classifier_recipe.hpp"

#include <troupe/datasets.hpp>

#include "apps/examples/classifier.hpp"

troupe::recipe_ptr classifier_recipe() {
  return troupe::recipe_for<classifier>(troupe::synthetic(), 32);
}

std::shared_ptr<troupe::module> make_classifier(const classifier_sizes& how) {
  return std::make_shared<classifier>(how.hidden);
}
