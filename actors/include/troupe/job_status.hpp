// How a job stands: one structure for handles, the control socket, `troupe status`, metrics and
// services. Plain values.
#pragma once

#include "troupe/outcome.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// What a job does now. The list is complete; to_string gives the names.
enum class job_state : std::uint8_t {
  starting,  ///< no generation has begun to form
  forming,   ///< the ranks of a generation start
  active,    ///< ranks train or evaluate
  stopping,  ///< as active; a stop was asked for
  closing,   ///< the ranks leave a generation: after a failure, or for a change
  ending,    ///< the ranks are taken down
  ended,     ///< the job has completed
};
/// The enumerator's name.
std::string_view to_string(job_state state);

/// How a job stands at one moment. What is not known yet is `undefined` or empty.
struct job_status {
  std::uint64_t id = 0;  ///< job_handle::id
  /// What the job is for, as job::purpose.
  stage purpose = stage::train;
  /// What it does now.
  job_state state = job_state::starting;
  std::optional<job_outcome::ending> ended;  ///< how; set when the state is `ended`
  std::uint64_t generation = 0;              ///< the newest; 0: none yet
  std::int32_t ranks = 0;                    ///< processes with shards; threads of the process
  /// Of the job; 0: not known yet.
  std::int32_t shards = 0;
  /// Optimizer steps of a fit that are done. Of a fit that resumes: at first where it begins.
  std::int64_t step = 0;
  std::int64_t epoch = undefined;  ///< from 0
  std::int64_t epochs = 0;         ///< the limit of a fit
  /// Of the loader that is read now, from 0, and how many it has.
  /// @{
  std::int64_t batch = undefined, batches = undefined;
  /// @}
  std::int64_t samples = undefined;  ///< of training, consumed by all ranks
  /// Of all ranks, over the last two to four seconds of this generation.
  std::optional<double> samples_per_second;
  /// Until a fit reaches its limits, at the average speed of this generation, validation included.
  /// Known after two seconds of a generation. A stop or a decider may end the fit earlier.
  std::optional<double> seconds_left;
  std::int32_t restarts = 0;                 ///< generations that replaced a failed one
  std::int32_t restarts_left = 0;            ///< when the newest generation began
  std::uint64_t failures = 0;                ///< reported so far, those that followed included
  std::vector<failure> newest_failures;      ///< at most 16, the oldest first
  std::uint64_t checkpoints = 0;             ///< written by this job
  std::int64_t checkpoint_step = undefined;  ///< of the newest one
  metrics last;                              ///< last value of each metric, at most 512 names
};

/// One JSON object. docs/running.md has its fields: those above, `purpose` as `stage`, `last` as
/// `metrics`, null for what is not known. Text becomes valid UTF-8.
std::string to_json(const job_status& status);

}  // namespace troupe
