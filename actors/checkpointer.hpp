// The checkpointer actor: carries out what checkpoint_machine decides, through the checkpoint-IO
// and the storage ports.
#pragma once

#include "actors/supervisor.hpp"
#include "troupe/checkpoint.hpp"

#include <memory>

namespace troupe {

/// Makes the checkpointers of a session's jobs: each writes its job's snapshots below
/// `<run_folder>/checkpoints`, keeps what the job's policy says, reports to the supervisor how each
/// write ended, and ends when it is flushed. When the folder cannot be made, it reports that to the
/// supervisor at once, which ends the job. Snapshots are encoded (every byte hashed once: about 0.1
/// s per GB) on a thread of the control plane, and let go when written. At most these are held: the
/// one that is written; one that waits for the disk and two that wait for their steps to be
/// committed; in front of either at most min(keep_best, 4) that keep_best would keep, and four that
/// must be written. A checkpointer whose supervisor has ended finishes what it is writing. Both
/// ports outlive it. The first checkpointer that is made holds `claim` until it ends.
spawn_checkpointer_fn checkpointers(std::shared_ptr<const checkpoint_io> io,
                                    std::shared_ptr<const void> claim = nullptr);

}  // namespace troupe
