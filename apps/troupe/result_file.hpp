// result.json: how a run ended (contract, section 3).
#pragma once

#include "messages/control.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::program {

/// The generations of a job that may restart, first to last.
struct restart_history {
  std::int32_t restarts = 0;
  std::vector<generation_record> generations;
  /// How the job ended: what result.json says of a generation that no failure ended.
  job_outcome::ending status = job_outcome::ending::failed;
};

/// What result.json says, in its order.
struct run_result {
  job_outcome::ending status = job_outcome::ending::failed;
  loop_state loop;
  std::int32_t ranks = 1;
  std::int32_t shards = 1;
  std::uint64_t generation = 0;
  troupe::metrics metrics;  ///< name to last value
  std::string weights_digest;
  double seconds_to_first_step = 0;  ///< since the process began; 0: there was none
  double seconds_total = 0;
  double samples_per_second = 0;       ///< training only, after warm-up; 0: too short to say
  std::vector<double> waiting_shares;  ///< of these seconds, in collectives; by rank
  std::int64_t non_finite_steps = 0;   ///< steps whose loss was infinite or no number
  std::optional<failure> failed_with;
  std::optional<restart_history> history;  ///< of jobs that may restart only
};

/// The result of a fit; times are the caller's to fill in.
run_result result_of(const job_outcome& outcome, const trainer_options& options);

/// A failure with the contract's fields; undefined ones are null. Text becomes valid UTF-8.
nlohmann::ordered_json as_json(const failure& what);
/// One line, numbers that are not finite as null.
std::string result_text(const run_result& what);

}  // namespace troupe::program
