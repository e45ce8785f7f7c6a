// Injected faults as a user writes them for `--fault`.
#pragma once

#include "troupe/options.hpp"

#include <string>

namespace troupe::program {

/// Reads `KIND@rank=R,hook=NAME[,step=S][,ms=N][,what=TEXT]`. KIND: throw, stall (needs ms), abort,
/// segv, exit, kill, stop. TEXT runs to the end, or to the next `,key=` of these keys.
/// Throws user_error (bad_configuration) that names the wrong part and the most similar correct
/// one. A rank that the job does not have is refused when the job is checked.
fault_drill parse_fault(const std::string& spec);

}  // namespace troupe::program
