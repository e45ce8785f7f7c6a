// Injected faults as a user writes them for `--fault`.
#pragma once

#include "troupe/options.hpp"

#include <string>

namespace troupe::program {

/// Reads `KIND@rank=R,hook=NAME[,step=S][,ms=N][,what=TEXT]`. KIND: throw, stall (needs ms), abort,
/// segv, exit, kill, stop. TEXT runs to the end, or to the next `,key=` of these keys. `ranks` is
/// the size of the world. Throws user_error (bad_configuration) that names the wrong part and the
/// most similar correct one.
fault_drill parse_fault(const std::string& spec, std::int32_t ranks);

}  // namespace troupe::program
