// Injects the faults of `--fault` into this process.
#pragma once

#include "troupe/options.hpp"

namespace troupe {

/// Stalls the calling thread, or ends, kills or stops the whole process, as `what` says. `raise` is
/// the caller's.
void carry_out_drill(const fault_drill& what);

}  // namespace troupe
