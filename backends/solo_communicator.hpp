// The communicator of a rank that sets up while its peers wait.
#pragma once

#include "troupe/communicator.hpp"

#include <memory>

namespace troupe {

/// Every operation completes at once: a reduction and a broadcast leave this rank's data as it is,
/// a gather has it in the place of every member. A rank that joins the ranks of `group` later runs
/// its set-up hooks with it; what they agreed on is then replaced by the state that the rank
/// receives. Thread-safe like any communicator.
std::shared_ptr<communicator> solo_communicator(const group_description& group);

}  // namespace troupe
