// What crosses a control link besides the messages themselves.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/message.hpp>
#include <cstdint>
#include <vector>

#include "messages/control.hpp"

namespace troupe::testing {

/// What one event of a rank has told observers.
struct observations {
  std::vector<observation_ptr> all;
};

/// A request, or the answer to one.
struct numbered_message {
  std::uint64_t number = 0;
  caf::message what;
};

}  // namespace troupe::testing

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::testing::observations)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::testing::numbered_message)
