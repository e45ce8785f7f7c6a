#include "apps/testing/stale_messages.hpp"

#include <utility>

#include "apps/testing/simulated_process.hpp"

namespace troupe::testing {

namespace {

constexpr std::int32_t supervisor = -1;
constexpr std::int32_t checkpointer = -2;

// Some messages rely on a link that delivers them once.
bool may_come_twice(const link_message& what) {
  return !std::holds_alternative<write_checkpoint>(what) &&
         !std::holds_alternative<queue_value>(what) && !std::holds_alternative<torn_down>(what);
}

}  // namespace

stale_messages::messages& stale_messages::of(known& all, receiver who) {
  const auto at = static_cast<std::size_t>(who - checkpointer);
  if (all.size() <= at) all.resize(at + 1);
  return all[at];
}

void stale_messages::attempt_begins(settings how) {
  how_ = std::move(how);
  move_all(old_, earlier_);
  move_all(now_, earlier_);
}

void stale_messages::generation_begins() { move_all(now_, old_); }

void stale_messages::move_all(known& from, known& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    for (auto& [type, what] : from[i])
      of(to, checkpointer + static_cast<receiver>(i)).insert_or_assign(type, std::move(what));
  from.clear();
}

void stale_messages::pass(std::int32_t rank, bool to_supervisor, simulation::node_id node,
                          const link_message& what, const caf::strong_actor_ptr& to) {
  auto who = rank;
  if (to_supervisor)
    who = std::holds_alternative<write_checkpoint>(what) ? checkpointer : supervisor;
  if (to && simulation_.draws().chance(site::stale_message, 0, how_.per_million))
    bring_back(who, node, to);
  of(now_, who).insert_or_assign(what.index(), what);
}

void stale_messages::bring_back(receiver who, simulation::node_id node,
                                const caf::strong_actor_ptr& to) {
  std::vector<const link_message*> all;
  for (const auto& [type, what] : of(earlier_, who)) all.push_back(&what);
  for (auto* const known : {&old_, &now_})
    for (const auto& [type, what] : of(*known, who))
      if (may_come_twice(what)) all.push_back(&what);
  if (all.empty()) return;
  auto& draws = simulation_.draws();
  const auto& what = *all[draws.draw(site::stale_message, 1, all.size())];
  constexpr std::uint64_t levels = 16;
  const auto level = static_cast<std::int64_t>(draws.draw(site::stale_message, 2, levels));
  constexpr auto most = static_cast<std::int64_t>((levels - 1) * (levels - 1));
  if (how_.brought) how_.brought(node, what);
  simulation_.at(node, how_.late_most * (level * level) / most,
                 [to, what = std::make_shared<link_message>(what)] { deliver(*what, to); });
}

}  // namespace troupe::testing
