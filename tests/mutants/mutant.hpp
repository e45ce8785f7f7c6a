// The mutant that is switched on in this process (tests/mutants/mutants.py). Copies of product
// sources include this, and so do the programs that are linked with them.
#pragma once

#include <cstdlib>
#include <string_view>

namespace troupe::testing {

/// A name of a table in this folder; empty: none. Unit tests get it from the environment.
inline std::string_view mutant_on =
    std::getenv("TROUPE_MUTANT") ? std::getenv("TROUPE_MUTANT") : "";

/// What MUTANT in a table stands for.
inline bool is_mutant(std::string_view name) { return mutant_on == name; }

}  // namespace troupe::testing
