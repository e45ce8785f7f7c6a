#include "apps/testing/message_text.hpp"

#include <array>
#include <string_view>

namespace troupe::testing {

namespace {

constexpr std::array<std::string_view, std::variant_size_v<link_message>> message_names{
    "rank_spec",
    "form_generation",
    "activate_generation",
    "propose_stop",
    "stop_at",
    "close_generation",
    "tear_down",
    "prepared",
    "step_done",
    "stop_vote",
    "rank_finished",
    "rank_failed",
    "queue_value",
    "closed_generation",
    "rank_busy",
    "torn_down",
    "write_checkpoint",
    "observed",
    "dropped_observations",
    "hook_entered",
    "rank_ended",
    "process_ready",
    "process_leaves",
    "warm_up",
    "hooks_traced",
};
static_assert(!message_names.back().empty());

}  // namespace

std::string short_text(const link_message& what) {
  std::string out{message_names[what.index()]};
  const auto step = std::visit(
      []<class M>(const M& m) -> std::int64_t {
        if constexpr (requires { m.at.step; })
          return m.at.step.value();
        else
          return 0;
      },
      what);
  if (step > 0) out += ' ' + std::to_string(step);
  return out;
}

}  // namespace troupe::testing
