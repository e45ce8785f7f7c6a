#include "apps/testing/stale_messages.hpp"

#include <algorithm>
#include <caf/system_messages.hpp>
#include <utility>
#include <vector>

#include "messages/control.hpp"
#include "messages/interfaces.hpp"

namespace troupe::testing {

namespace {

constexpr std::int32_t supervisor = -1;
constexpr std::int32_t checkpointer = -2;

// Some messages rely on a link that delivers them once.
bool may_come_twice(const caf::message& what) {
  return !holds<write_checkpoint>(what) && !holds<queue_value>(what) && !holds<torn_down>(what);
}

}  // namespace

stale_messages::messages& stale_messages::of(known& all, receiver who) {
  const auto at = static_cast<std::size_t>(who - checkpointer);
  if (all.size() <= at) all.resize(at + 1);
  return all[at];
}

// A type's name is nearly always the same pointer.
void stale_messages::keep(messages& in, const caf::message& what) {
  const auto type = type_name(what);
  for (auto& w : in)
    if (w.type.data() == type.data()) return void(w.what = what);
  const auto at = std::ranges::lower_bound(in, type, {}, &typed_message::type);
  if (at != in.end() && at->type == type)
    at->what = what;
  else
    in.insert(at, {type, what});
}

void stale_messages::attempt_begins(settings how) {
  how_ = std::move(how);
  move_all(old_, earlier_);
  move_all(now_, earlier_);
}

void stale_messages::generation_begins() { move_all(now_, old_); }

void stale_messages::move_all(known& from, known& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    for (const auto& w : from[i]) keep(of(to, checkpointer + static_cast<receiver>(i)), w.what);
  from.clear();
}

void stale_messages::pass(std::int32_t rank, bool to_supervisor, simulation::node_id node,
                          const caf::message& what, const caf::strong_actor_ptr& to) {
  // An exit message has no fence, so its receiver cannot refuse it.
  if (holds<caf::exit_msg>(what)) return;
  auto who = rank;
  if (to_supervisor) who = holds<write_checkpoint>(what) ? checkpointer : supervisor;
  if (to && simulation_.draws().chance(site::stale_message, 0, how_.per_million))
    bring_back(who, node, to);
  keep(of(now_, who), what);
}

void stale_messages::bring_back(receiver who, simulation::node_id node,
                                const caf::strong_actor_ptr& to) {
  std::vector<const caf::message*> all;
  for (const auto& w : of(earlier_, who)) all.push_back(&w.what);
  for (auto* const known : {&old_, &now_})
    for (const auto& w : of(*known, who))
      if (may_come_twice(w.what)) all.push_back(&w.what);
  if (all.empty()) return;
  auto& draws = simulation_.draws();
  const auto& what = *all[draws.draw(site::stale_message, 1, all.size())];
  constexpr std::uint64_t levels = 16;
  const auto level = static_cast<std::int64_t>(draws.draw(site::stale_message, 2, levels));
  constexpr auto most = static_cast<std::int64_t>((levels - 1) * (levels - 1));
  if (how_.brought) how_.brought(node, what);
  simulation_.at(node, how_.late_most * (level * level) / most,
                 [to, what] { to->enqueue(nullptr, caf::make_message_id(), what, nullptr); });
}

}  // namespace troupe::testing
