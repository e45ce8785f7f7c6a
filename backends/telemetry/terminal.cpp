#include "backends/telemetry/terminal.hpp"

#include <sys/ioctl.h>

namespace troupe {

terminal_size size_of_terminal(int file) {
  terminal_size known;
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) != 0) return known;
  if (size.ws_col != 0) known.columns = size.ws_col;
  if (size.ws_row != 0) known.rows = size.ws_row;
  return known;
}

}  // namespace troupe
