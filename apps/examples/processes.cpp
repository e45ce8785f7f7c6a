// The classifier with each rank in a process of its own: a crash stays in its process.
#include <iostream>
#include <troupe/processes.hpp>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

int main(int count, char** arguments) {
  const auto recipe = classifier_recipe();
  // Started as a rank's process, this program trains that rank in here and leaves.
  const auto same = [&](const std::string&) { return recipe; };
  if (const auto code = troupe::run_rank_if_child(count, arguments, {same})) return *code;

  troupe::trainer trainer{
      {.ranks = 2, .max_epochs = 2, .placement = troupe::placement_kind::processes}};
  auto fitted = trainer.run(troupe::stage::train, recipe);
  fitted.rethrow();
  auto tested = trainer.run(troupe::stage::test, recipe);
  tested.rethrow();
  std::cout << "steps " << fitted.loop.steps << ", test accuracy "
            << tested.last.at("test/accuracy") << '\n';
}
