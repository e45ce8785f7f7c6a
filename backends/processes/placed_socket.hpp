// The connection between a placed rank's process and whoever starts ranks there.
#pragma once

namespace troupe {

/// Nothing waits to be sent, and a host that has vanished is noticed.
void set_up_placed_socket(int socket);

}  // namespace troupe
