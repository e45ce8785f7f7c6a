// What is said about the end of a job, and the exit code that follows.
#pragma once

#include "apps/troupe/console.hpp"
#include "messages/control.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace troupe::program {

/// Names the failures that the job outlived, the failure that ended it with what followed, the
/// survivors, and what went wrong after the end. Leaves out late failures for which `reported` is
/// true: they were shown before.
void report_troubles(console& screen, const job_outcome& outcome,
                     const std::function<bool(const failure&)>& reported = {});

/// The metrics that an evaluation returned, without the metrics that a checkpoint restored.
metrics figures_of(const job_outcome& outcome);

/// `train/loss 0.3127  val/accuracy 0.8724`; names without a slash come last.
std::string metrics_text(const metrics& values);

/// What a stop leaves of a job.
enum class left_by_stop : std::uint8_t { checkpoint, nothing };
/// The note that is printed at the first, the second and the third signal.
std::string signal_note(int signal, int count, left_by_stop what);

/// What of a fit is saved, and how to continue it, after a second signal or a failed last
/// checkpoint: `saved` is the step of the newest good checkpoint in `folder`, or nothing; `program`
/// as the user calls it.
std::string saved_note(std::int64_t steps, std::optional<std::int64_t> saved,
                       const std::string& folder, const std::string& program = "troupe");

/// The exit code of a call whose last job ended like this; `signal` 0: none came.
int exit_status_of(const job_outcome& outcome, int signal);

}  // namespace troupe::program
