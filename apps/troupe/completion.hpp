// Completion scripts of shells. Pure functions. The scripts do not start the program.
#pragma once

#include "apps/command_line/command_facts.hpp"
#include "apps/troupe/schema.hpp"

#include <cstdint>
#include <string>

namespace troupe::program {

enum class shell : std::uint8_t { bash, zsh, fish };

/// A script for `of`, for the program `top` with the settings `all`. Completes commands, flags, the
/// choices and files of flags, and `--set KEY=VALUE`.
std::string completion_script(shell of, const command_facts& top, const schema& all);

}  // namespace troupe::program
