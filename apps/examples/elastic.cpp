// The classifier in processes, one of which is killed in mid-training: the job goes on, and its
// weights are those of a run without the failure.
#include <iostream>
#include <troupe/trainer.hpp>

#include "apps/examples/classifier_recipe.hpp"

troupe::job_outcome train(std::vector<troupe::fault_drill> faults) {
  troupe::trainer trainer{{.ranks = 3,
                           .max_epochs = 2,
                           .placement = troupe::placement_kind::processes,
                           .elastic = {.max_restarts = 10},  // the first failure is not the end
                           .faults = std::move(faults)}};
  auto outcome = trainer.run(troupe::stage::train, classifier_recipe());
  outcome.rethrow();
  for (const auto& one : outcome.generations)
    std::cout << "  generation " << one.generation << " began with step " << one.base_step << "; "
              << (one.ended_by ? render(*one.ended_by) : "finished") << '\n';
  return outcome;
}

int main(int count, char** arguments) {
  // Started as a rank's process, this program trains that rank in here and leaves.
  if (const auto code = troupe::run_rank_if_child(count, arguments, classifier_recipe))
    return *code;

  std::cout << "undisturbed:\n";
  const auto expected = train({}).weights->weights_digest;
  std::cout << "the process of rank 1 is killed with SIGKILL:\n";
  const auto survived = train(
      {{.what = troupe::fault_drill::kind::kill, .rank = 1, .hook = "training_step", .step = 13}});
  const auto& digest = survived.weights->weights_digest;
  std::cout << survived.generations.size() << " generations, weights " << digest
            << (digest == expected ? ", as undisturbed" : ", not as undisturbed") << '\n';
  return digest == expected ? 0 : 1;
}
