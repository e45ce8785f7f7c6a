#include "apps/testing/old_words.hpp"

#include <caf/system_messages.hpp>
#include <utility>
#include <vector>

#include "messages/control.hpp"
#include "messages/interfaces.hpp"

namespace troupe::testing {

namespace {

constexpr std::int32_t supervisor = -1;
constexpr std::int32_t checkpointer = -2;

// What is said once for all relies on its link for that.
bool may_come_twice(const caf::message& what) {
  return !holds<write_checkpoint>(what) && !holds<queue_value>(what) && !holds<torn_down>(what);
}

}  // namespace

void old_words::attempt_begins(settings how) {
  how_ = std::move(how);
  for (auto& [key, what] : std::exchange(now_, {})) earlier_[key] = std::move(what);
}

void old_words::pass(std::int32_t rank, bool to_supervisor, world::place place,
                     const caf::message& what, const caf::strong_actor_ptr& to) {
  // Nobody can refuse it: it has no fence.
  if (holds<caf::exit_msg>(what)) return;
  auto who = rank;
  if (to_supervisor) who = holds<write_checkpoint>(what) ? checkpointer : supervisor;
  if (to && world_.draws().chance(site::old_word, 0, how_.per_million)) bring_back(who, place, to);
  now_[{who, type_name(what)}] = what;
}

void old_words::bring_back(receiver who, world::place place, const caf::strong_actor_ptr& to) {
  std::vector<const caf::message*> all;
  const auto add = [&](const known& from, bool earlier) {
    for (auto i = from.lower_bound({who, {}}); i != from.end() && i->first.first == who; ++i)
      if (earlier || may_come_twice(i->second)) all.push_back(&i->second);
  };
  add(earlier_, true);
  add(now_, false);
  if (all.empty()) return;
  auto& draws = world_.draws();
  const auto& what = *all[draws.draw(site::old_word, 1, all.size())];
  constexpr std::uint64_t levels = 16;
  const auto level = static_cast<std::int64_t>(draws.draw(site::old_word, 2, levels));
  constexpr auto most = static_cast<std::int64_t>((levels - 1) * (levels - 1));
  if (how_.brought) how_.brought(place, what);
  world_.at(place, how_.late_most * (level * level) / most,
            [to, what] { to->enqueue(nullptr, caf::make_message_id(), what, nullptr); });
}

}  // namespace troupe::testing
