// Checks of a job before its ranks start. A session makes all of them but those that read the model
// and the data. A program that wants to know before it writes any file calls check_job.
#pragma once

#include <memory>
#include <string>

#include "actors/fit_plan.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

namespace troupe {

/// Throws user_error (bad_usage) if a port is null that each job needs; it says which one.
void check_ports(const ports& world);

/// The format of the job's checkpoints, for reading and for writing: the recipe's own, else the
/// ports'. Null where neither has one.
std::shared_ptr<const checkpoint_io> checkpoint_format(const job& what, const ports& world);

/// The same job, with `resume` replaced by the path of the checkpoint that it means (job::resume).
/// Throws user_error: `resume` is empty, or `latest` without a run folder (bad_usage); there is no
/// good checkpoint (checkpoint); a fit without `resume` would write into a folder that holds a good
/// checkpoint of another run (bad_configuration). Blocks: to find a run's checkpoint it reads the
/// disk.
job with_checkpoint_found(job what, const ports& world);

/// Whether the job, which is configured, writes checkpoints into its run folder.
bool writes_checkpoints(const job& what);

/// Where the checkpoint is from which a fit resumes (its path is found); the beginning: nowhere, or
/// the checkpoint cannot be read.
loop_state loop_resumed_at(const job& what, const ports& world);

/// Throws the user_error with which the job would fail before its first step: because of its
/// options, its communicator, `resume`, or for a fit its data or that checkpoint
/// (learner_recipe::check_fit). Changes nothing. Reads checkpoint, model and data, so it takes as
/// long as the start of a rank.
void check_job(const job& what, const ports& world);
/// The part of this that reads no device, no data and no checkpoint.
void check_options(job what, const ports& world);
/// Calls learner_recipe::configure.
void configure(job& what);
/// Finds the devices of the ranks of this host (learner_recipe::settle_devices), and makes
/// `what.options.ranks` the number of shards. Throws what shards_of throws, and for a fit what
/// learner_recipe::check_options throws.
void settle_options(job& what, const ports& world);

/// The plan of the job. Throws user_error that names an option with an impossible value.
fit_plan checked_plan(const job& what);
/// The communicator called `wanted`, or for `auto` the first one that can be used here. Throws
/// user_error (device) that says why it cannot be used, or which ones exist.
std::shared_ptr<communicator_backend> choose_communicator(const ports& world,
                                                          const std::string& wanted);
/// Whether something else (mpirun, torchrun, srun) has started the processes of the job's ranks, so
/// that none can be started.
bool by_launcher(const job& what, const ports& world);
/// The shards of the job: those of its options. Where these name none it has one per rank, or, if
/// it is a fit that resumes, those of the checkpoint (its path is found) if they are more. Throws
/// user_error (bad_configuration): elastic options that cannot be met.
std::int32_t shards_of(const job& what, const ports& world);

/// As choose_communicator, for so many ranks in processes of their own.
std::shared_ptr<rendezvous_kind> choose_rendezvous(const ports& world, const std::string& wanted,
                                                   std::int32_t ranks);

}  // namespace troupe
