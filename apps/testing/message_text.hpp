// A short text of a control message, for charts.
#pragma once

#include <string>

#include "messages/link.hpp"

namespace troupe::testing {

/// `step_done 13`: the message's name and the step of its fence.
std::string short_text(const link_message& what);

}  // namespace troupe::testing
