// Descriptors of this process: how many it may have, and locks on them.
#pragma once

namespace troupe::program {

/// Lets the process have as many descriptors as its hard limit allows: ranks need several for each
/// other rank, and shells begin programs with 1,024 of them. The processes that it starts inherit
/// that.
void raise_descriptor_limit();

/// Takes the exclusive lock of an open file (flock). A program that only asks whether it is taken
/// holds it for a moment, so this tries again for 0.2 s. False: see errno; EWOULDBLOCK: another
/// program holds it.
bool lock_alone(int file);

}  // namespace troupe::program
