#include "apps/examples/classifier_recipe.hpp"

#include <troupe/synthetic.hpp>

#include "apps/examples/classifier.hpp"

troupe::recipe_ptr classifier_recipe() {
  return troupe::recipe_for<classifier>(troupe::synthetic(), 32);
}
