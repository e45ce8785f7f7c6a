// A control message in a word or two, for charts.
#pragma once

#include <caf/message.hpp>
#include <string>

namespace troupe::testing {

/// `step_done 13`: the message's name and the step its fence speaks of; CAF's text for others.
std::string short_text(const caf::message& what);

}  // namespace troupe::testing
