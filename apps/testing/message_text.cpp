#include "apps/testing/message_text.hpp"

#include <caf/system_messages.hpp>

#include "messages/interfaces.hpp"

namespace troupe::testing {

namespace {

template <class Message>
bool is(const caf::message& what, const char* name, std::string& out) {
  if (!what.match_elements<Message>()) return false;
  out = name;
  if constexpr (requires(const Message& m) { m.at.step; }) {
    const auto step = what.get_as<Message>(0).at.step.value();
    if (step > 0) out += ' ' + std::to_string(step);
  }
  return true;
}

}  // namespace

std::string short_text(const caf::message& what) {
  std::string out;
  if (is<form_generation>(what, "form_generation", out) || is<prepared>(what, "prepared", out) ||
      is<activate_generation>(what, "activate_generation", out) ||
      is<step_done>(what, "step_done", out) || is<propose_stop>(what, "propose_stop", out) ||
      is<stop_vote>(what, "stop_vote", out) || is<stop_at>(what, "stop_at", out) ||
      is<rank_finished>(what, "rank_finished", out) || is<rank_failed>(what, "rank_failed", out) ||
      is<rank_busy>(what, "rank_busy", out) ||
      is<close_generation>(what, "close_generation", out) ||
      is<closed_generation>(what, "closed_generation", out) ||
      is<tear_down>(what, "tear_down", out) || is<torn_down>(what, "torn_down", out) ||
      is<queue_value>(what, "queue_value", out) ||
      is<write_checkpoint>(what, "write_checkpoint", out) || is<caf::down_msg>(what, "down", out))
    return out;
  return to_string(what);
}

}  // namespace troupe::testing
