#include "apps/examples/classifier_recipe.hpp"

#include <troupe/data.hpp>

#include "apps/examples/classifier.hpp"

troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data,
                                 std::vector<troupe::callback_factory> callbacks) {
  return troupe::recipe_for<classifier>(troupe::torch_plugins{.callbacks = std::move(callbacks)},
                                        std::move(data), 32);
}

std::shared_ptr<troupe::module> make_classifier(const classifier_sizes& how) {
  return std::make_shared<classifier>(how.hidden);
}

troupe::recipe_ptr classifier_on(std::shared_ptr<troupe::data_module> data) {
  return classifier_on(std::move(data), {});
}

troupe::recipe_ptr classifier_recipe() { return classifier_on(troupe::synthetic()); }
