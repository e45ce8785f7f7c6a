// The classifier with each rank in a process of its own: a crash stays in its process.
#include <iostream>
#include <troupe/actors/rank_process.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/backends/torch/synthetic.hpp>

#include "apps/examples/classifier.hpp"

int main(int count, char** arguments) {
  const auto data = troupe::synthetic();
  // Started as a rank's process, this program trains that rank in here and leaves.
  const auto recipe = [&](const std::string&) { return troupe::recipe_for<classifier>(data, 32); };
  if (const auto code = troupe::run_rank_if_child(count, arguments, {recipe})) return *code;

  troupe::trainer trainer{{.ranks = 2, .max_epochs = 2, .placement = "processes"}};
  auto fitted = trainer.fit<classifier>(data, 32);
  fitted.rethrow();
  auto tested = trainer.test<classifier>(data, 32);
  tested.rethrow();
  std::cout << "steps " << fitted.loop.steps << ", test accuracy "
            << tested.last.at("test/accuracy") << '\n';
}
