// The files that `troupe init` writes, as they are in apps/troupe/project/.
#pragma once

#include <string>
#include <vector>

namespace troupe::program {

struct project_file {
  std::string path;  ///< below the project's folder: `src/main.cpp`
  std::string text;  ///< `@NAME@` stands for the project's name
};

std::vector<project_file> project_files();

}  // namespace troupe::program
