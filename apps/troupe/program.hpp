// The whole program, without the parts that depend on the process.
#pragma once

#include "apps/troupe/context.hpp"

#include <string>
#include <vector>

namespace troupe::program {

/// Runs one command line (without the program's name). Errors are printed on the screen; the exit
/// code follows contract.md, section 2.
program_end run_program(std::vector<std::string> arguments, const context& around);

}  // namespace troupe::program
