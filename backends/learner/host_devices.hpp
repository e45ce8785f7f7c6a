// The devices of ranks that compute on the host's processors.
#pragma once

#include "troupe/options.hpp"

namespace troupe {

/// The processors of a host count as one device, 0, which all ranks share. Throws user_error
/// (device) for more of them.
void check_host_devices(const device_choice& which);

}  // namespace troupe
