// Facts about a terminal.
#pragma once

#include <cstddef>

namespace troupe {

struct terminal_size {
  std::size_t columns = 80;
  std::size_t rows = 24;
};
/// The defaults where it is not known.
terminal_size size_of_terminal(int file);

}  // namespace troupe
