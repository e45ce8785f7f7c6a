// Makes the jobs of a session from settings.
#pragma once

#include "apps/troupe/context.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "backends/telemetry/hook_trace.hpp"
#include "backends/telemetry/run_trace.hpp"
#include "troupe/trainer.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

/// The options of a job. Throws user_error for impossible faults.
trainer_options options_of(const settings& s);
learning learning_of(const settings& s);

/// Throws user_error for settings that this program does not support: bad_configuration for a
/// placement; device for an accelerator, a communicator or devices.
void check_place(const settings& s);

/// Throws user_error for settings that no machine would run. What depends on devices, data and
/// other files shows when a job starts.
void check_settings(const settings& s, const context& around);

/// The parts that all jobs of a call share: options and recipe. Writes nothing;
/// trace, observers and folders are added by the command. `change` may change what the settings
/// say.
job shared_job(const settings& s, const context& around,
               const std::function<void(learning&, trainer_options&)>& change = {});
/// Reads the weights that the setting init_weights names, for a job that has no checkpoint.
void add_init_weights(const settings& s, job& to);
/// Checks the files of the settings trace_hooks and trace, if they are set. Throws user_error if
/// one of them has another content, or if both are the same.
void check_traces(const settings& s);
/// The traces of a job; null: not wanted.
struct job_traces {
  std::shared_ptr<hook_trace> hooks;
  std::shared_ptr<run_trace> slices;
};
/// Opens these files, after the same checks.
job_traces add_traces(const settings& s, job& to);
/// Completes the files. An error of the disk that has ended one of them is shown on `screen`.
void report_traces(console& screen, const job_traces& all);

/// A note about each of the settings `keys` that a flag or `--set` gives to a command that has no
/// use for it. A file or a variable may be for other commands.
void note_unused(console& screen, const settings& s, std::string_view command,
                 const std::vector<std::string_view>& keys);

/// The settings, after notes on `screen` about variables and keys without effect. With `quiet` the
/// screen drops notes from now on. Throws user_error naming all errors in the settings.
settings settled_on(console& screen, resolution found);

/// The table of the setting profiler, as a note.
void report_profile(console& screen, const job_outcome& outcome);

/// Whether progress is shown on a terminal that can write over lines.
bool shows_live(const settings& s, const context& around);
/// The observer that prints progress as settings and terminal require; empty without progress.
std::vector<observer_factory> progress_of(const settings& s, const context& around);

}  // namespace troupe::program
