// Observers for the jobs of a program of your own (job_context::observers): files of metrics and
// events, and a display of the progress. `troupe fit` writes the same files.
//
//   troupe::job_context around;
//   around.observers = {troupe::log_csv("runs/a/metrics.csv"),
//                       troupe::show_progress(options, std::cerr, STDERR_FILENO)};
#pragma once

#include "troupe/observer.hpp"
#include "troupe/options.hpp"
#include "troupe/value.hpp"

#include <iosfwd>
#include <string>

namespace troupe {

// What holds for all of them:
// - Folders of the path are made. A file that cannot be written costs this logger; the job goes on,
//   and job_outcome::late says why.
// - A value stands there once, also when a restarted job does its step again.
// - A fit that resumes at step n goes on in the file: its values replace those of later steps. A
//   fit from the start begins anew. Validate, test and predict add to what is there.
// - A factory may serve several jobs, one after the other.

/// A file with the columns `step`, `epoch`, and one per metric, in the order in which they first
/// appeared; one row per report, with empty fields for missing values (docs/files.md). At most
/// 2,046 metrics. Other programs read whole rows at any time, except a last one without its line
/// end.
observer_factory log_csv(std::string path);

/// A file for TensorBoard in `folder`, which TensorBoard shows as one run: each metric as a scalar
/// by step; `settings` as hyper-parameters. Of `settings` truth values and numbers are themselves,
/// and others texts; hyper_parameters_of makes them from a struct.
observer_factory log_tensorboard(std::string folder, value_map settings = {});

/// A line of JSON per event in the life of the job (docs/files.md). Every job adds its own to what
/// is there.
observer_factory log_events(std::string path);

/// Epoch, batch, the metrics logged with prog_bar, samples per second, and the time left, of a job
/// with these options. If the descriptor `terminal` is a terminal, which `to` has to write to, it
/// is a line that is overwritten ten times a second at most; otherwise one more line every ten
/// seconds. `to` has to live until the job has ended, and is used by one thread at a time.
observer_factory show_progress(const trainer_options& options, std::ostream& to, int terminal = -1);

}  // namespace troupe
