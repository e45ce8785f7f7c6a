// What a control link carries besides the messages themselves.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/message.hpp>
#include <cstdint>
#include <vector>

#include "messages/control.hpp"

namespace troupe::testing {

/// The observations of one event of a rank.
struct observations {
  std::vector<observation_ptr> all;
};

/// A request or the answer to one.
struct numbered_message {
  std::uint64_t number = 0;
  caf::message what;
};

}  // namespace troupe::testing

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::testing::observations)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::testing::numbered_message)
