// Options of the connection between a placed rank's process and the launcher.
#pragma once

namespace troupe {

/// Sends without delay, and detects a host that has vanished.
void set_up_placed_socket(int socket);

}  // namespace troupe
