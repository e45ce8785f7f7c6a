// From settings to what a session runs.
#pragma once

#include "apps/troupe/context.hpp"
#include "apps/troupe/settings.hpp"
#include "troupe/job.hpp"

#include <string>

namespace troupe::program {

/// The options of a job. Throws user_error for faults that cannot be.
trainer_options options_of(const settings& s);
learning learning_of(const settings& s);

/// Throws user_error for what this program does not have: bad_configuration for a placement or a
/// precision; device for an accelerator, a communicator or devices.
void check_place(const settings& s);

/// The parts that all jobs of a call share: options, recipe, weights to start with. Writes nothing;
/// trace, observers and folders are added by the command.
job shared_job(const settings& s, const context& around);
/// Opens the file of trace_hooks, if there is to be one.
void add_trace(const settings& s, job& to);

/// A progress line, as the settings and the terminal want it; nothing when there is to be none.
std::vector<observer_factory> progress_of(const settings& s, const context& around);

}  // namespace troupe::program
