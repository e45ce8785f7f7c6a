// A line of a file of comma-separated values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The cells of a line as RFC 4180 has it: a comma between quotes is part of a cell, and two quotes
/// there are one. A cell has no line end. Blanks stay.
std::vector<std::string> csv_cells(std::string_view line);

}  // namespace troupe
