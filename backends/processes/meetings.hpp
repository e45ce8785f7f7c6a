// Where ranks that are processes of one host meet: shared memory, TCP on loopback.
#pragma once

#include "backends/meeting.hpp"

#include <memory>
#include <vector>

namespace troupe {

/// `shm`, then `tcp`: in order of speed. What they need is inherited, nothing of it has a name.
std::vector<std::shared_ptr<meeting_kind>> process_meetings();

}  // namespace troupe
