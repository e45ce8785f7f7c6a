// `troupe bench recovery`: how long a job needs after kill -9 of one of its rank processes, and
// what the loss costs.
#pragma once

#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

#include <cstdint>
#include <vector>

namespace troupe::program {

/// The parameter of the bench's module that counts samples: one number per sample of the training
/// set, which grows by `recovery_rate` / (samples of a step) in each step that uses the sample.
inline constexpr const char* recovery_ledger = "consumed";
inline constexpr double recovery_rate = 1.0 / 16;  // exact in float32, like all multiples in use

struct recovery_question {
  int rounds = 20;           ///< kills, one after the other, at least 1
  std::int64_t samples = 0;  ///< of the training set: a multiple of those of a step
  double pause = 0;          ///< seconds between a recovery and the next kill, at least
};

/// Milliseconds since the kill, one for each kill.
struct recovery_figures {
  std::vector<double> known;      ///< the supervisor has received the first report of the loss
  std::vector<double> released;   ///< every rank that is left has left its hooks
  std::vector<double> next_step;  ///< the next step is committed
  std::int64_t steps_redone = 0;
  std::int64_t samples_lost = 0;     ///< the data order has them, the final weights do not
  std::int64_t samples_doubled = 0;  ///< the final weights have them more often than the data order
};
/// Runs the job, kills one rank process after the other, each when the job trains again, and then
/// stops the job. `what` trains the module with `recovery_ledger` in processes and restarts often
/// enough. Throws what the job failed with, and user_error when other ranks were lost too.
recovery_figures bench_recovery(const recovery_question& question, job what, ports world);

}  // namespace troupe::program
