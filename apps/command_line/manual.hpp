// Manual pages of the program, for man. Pure functions.
#pragma once

#include "apps/command_line/command_facts.hpp"

#include <string>
#include <vector>

namespace troupe::program {

struct manual_page {
  std::string file;  ///< `troupe-bench-fit.1`
  std::string text;  ///< in the macros of man(7)
};

/// A page for the program and one for each command. `version` is `troupe 0.1.0`. `notes`, the end
/// of the program's help, goes to the first page.
std::vector<manual_page> manual_pages(const command_facts& top, const std::string& version,
                                      const std::string& notes);

}  // namespace troupe::program
