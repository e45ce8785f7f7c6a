// What is said about the end of a job, and the exit code that follows.
#pragma once

#include "apps/troupe/console.hpp"
#include "messages/control.hpp"

#include <string>

namespace troupe::program {

/// Names the failure with what followed, the survivors, and what went wrong behind the end.
void tell_troubles(console& screen, const job_outcome& outcome);

/// The figures of an evaluation: what it brought home, without what a checkpoint remembered.
metrics figures_of(const job_outcome& outcome);

/// `train/loss 0.3127  val/accuracy 0.8724`; names without a slash come last.
std::string metrics_text(const metrics& values);

/// What is heard when a signal comes for the first, the second and the third time.
std::string signal_note(int signal, int count);

/// Whether a fit's end could not be saved: its last checkpoint failed.
bool lost_its_end(const job_outcome& outcome);

/// The exit code of a call whose last job ended like this; `signal` 0: none came.
int ending_code(const job_outcome& outcome, int signal);

}  // namespace troupe::program
