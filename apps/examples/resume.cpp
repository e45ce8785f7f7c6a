// A run that is interrupted in the middle of an epoch and goes on later: it ends with the weights
// of a run in one piece.
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <optional>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

int main() {
  const auto runs = std::filesystem::temp_directory_path() /
                    ("troupe_example_resume_" + std::to_string(getpid()));
  const auto train = [&](const char* run, std::int64_t steps,
                         std::optional<std::string> resume = {}) {
    troupe::trainer trainer{{.ranks = 2, .max_epochs = 2, .max_steps = steps},
                            {.run_folder = (runs / run).string(), .resume = resume}};
    const auto outcome = trainer.run(troupe::stage::train, classifier_recipe());
    outcome.rethrow();
    std::cout << run << ": " << outcome.loop.steps << " steps, " << outcome.loop.samples
              << " samples\n";
    return outcome.weights->weights_digest;
  };

  const auto whole = train("whole", 32);
  train("parts", 13);                                       // an epoch has 16 steps
  const bool same = train("parts", 32, "latest") == whole;  // or the path of a checkpoint
  std::cout << "the weights are " << (same ? "equal" : "not equal") << '\n';
  std::filesystem::remove_all(runs);
  return same ? 0 : 1;
}
