// The classifier with each rank in a process of its own: a crash stays in its process.
#include <iostream>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

int main(int count, char** arguments) {
  // When the trainer has started this program as a rank's process, it trains that rank here and
  // ends.
  if (const auto code = troupe::run_rank_if_child(count, arguments, classifier_recipe))
    return *code;

  troupe::trainer trainer{
      {.ranks = 2, .max_epochs = 2, .placement = troupe::placement_kind::processes}};
  auto fitted = trainer.run(troupe::stage::train, classifier_recipe());
  fitted.rethrow();
  auto tested = trainer.run(troupe::stage::test, classifier_recipe());
  tested.rethrow();
  std::cout << "steps " << fitted.loop.steps << ", test accuracy "
            << tested.last.at("test/accuracy") << '\n';
}
