// A short text of a control message, for charts.
#pragma once

#include <caf/message.hpp>
#include <string>

namespace troupe::testing {

/// `step_done 13`: the message's name and the step of its fence; CAF's text for other messages.
std::string short_text(const caf::message& what);

}  // namespace troupe::testing
