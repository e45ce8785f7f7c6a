// What can be wrong with a job before its ranks start. A session looks at all of it but what takes
// reading the model and the data; a program that wants to know before it writes anything asks
// check_job.
#pragma once

#include <memory>
#include <string>

#include "actors/fit_plan.hpp"
#include "troupe/job.hpp"
#include "troupe/ports.hpp"

namespace troupe {

/// The format of the job's checkpoints, for reading and for writing: the recipe's own, else the
/// ports'. Null where neither has one.
std::shared_ptr<const checkpoint_io> checkpoint_format(const job& what, const ports& world);

/// The job with the checkpoint that its `resume` means (see job::resume) and nothing else changed.
/// Throws user_error: `resume` is empty, or `latest` without a run folder (bad_usage); there is no
/// good checkpoint (checkpoint); a fit without `resume` would write into a folder that holds a good
/// checkpoint of another run (bad_configuration). Waits for the disk: finding the checkpoint of a
/// run reads it.
job with_checkpoint_found(job what, const ports& world);

/// Whether the job would be refused before its first step: its options, its communicator, `resume`,
/// and for a fit its data and whether it may resume that checkpoint (learner_recipe::check_fit).
/// Throws the user_error that would be the outcome's failure. Changes nothing; reads checkpoint,
/// model and data, so it takes as long as a rank's start.
void check_job(const job& what, const ports& world);

/// The plan of a job whose options are possible; else throws user_error naming the option.
fit_plan checked_plan(const job& what);
/// The communicator called `wanted`, or for `auto` the first one that can be used here. Throws
/// user_error (device) that says why it cannot be used, or which ones exist.
std::shared_ptr<communicator_backend> choose_communicator(const ports& world,
                                                          const std::string& wanted);
/// The same for ranks in processes of their own.
std::shared_ptr<rendezvous_kind> choose_rendezvous(const ports& world, const std::string& wanted);

}  // namespace troupe
