#include "apps/testing/control_link.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_message.hpp>
#include <caf/sec.hpp>
#include <caf/system_messages.hpp>

#include "apps/testing/link_envelopes.hpp"
#include "apps/testing/message_text.hpp"

namespace troupe::testing {

namespace {

constexpr std::size_t other(std::size_t side) { return 1 - side; }

std::string text_of(const caf::message& what) {
  if (what.match_elements<observations>())
    return std::to_string(what.get_as<observations>(0).all.size()) + " observations";
  if (what.match_elements<numbered_message>())
    return short_text(what.get_as<numbered_message>(0).what);
  return short_text(what);
}

}  // namespace

control_link::envelope control_link::envelope_of(caf::mailbox_element& m, std::uint8_t to) {
  const auto number = m.mid;
  auto what = m.move_content_to_message();
  if (!number.is_request() && !number.is_response()) return {std::move(what), to, false};
  return {caf::make_message(numbered_message{number.integer_value(), std::move(what)}), to, true};
}

// A frame in transit. It must fit into the storage of an event.
struct control_link::arrival {
  arrival(control_link& on, const envelope& what, link_frame frame, std::size_t to)
      : link(&on),
        values(what.what.vals()),
        holds(frame.holds),
        number(static_cast<std::uint32_t>(frame.number)),
        heard(static_cast<std::uint32_t>(frame.heard)),
        numbered(what.numbered),
        side(static_cast<std::uint8_t>(to)),
        receiver(what.to) {
    static_assert(sizeof(arrival) <= later_call::room);
  }
  void operator()() {
    link->arrive(side, {number, heard, holds},
                 {caf::message{std::move(values)}, receiver, numbered});
  }

  control_link* link;
  caf::message::data_ptr values;
  std::uint64_t holds;
  std::uint32_t number;  // wraps only after 2^32 messages of a link
  std::uint32_t heard;
  bool numbered;
  std::uint8_t side;
  std::uint8_t receiver;
};

control_link::control_link(simulation& of, simulation::node_id near, simulation::node_id far,
                           settings how)
    : simulation_(of),
      how_(std::move(how)),
      number_(far),
      ends_{end{.node = near, .machine = machine_at(near)},
            end{.node = far, .machine = machine_at(far)}} {
  // Handles may outlive the link; messages sent to them are then dropped.
  for (std::size_t side : {0, 1})
    ends_[side].handle = link_handle::make(
        of.system(), [this, side](caf::mailbox_element_ptr m) { send(side, envelope_of(*m, 0)); });
}

link_machine control_link::machine_at(simulation::node_id p) const {
  return link_machine{how_.limits, simulation_.clock_at(p, simulation_.time())};
}

control_link::~control_link() {
  for (auto& e : ends_) link_handle::of(e.handle).forget();
  for (auto& r : also_) link_handle::of(r.handle).forget();
}

std::uint8_t control_link::add_receiver(std::function<void(envelope&&)> receive,
                                        link_handle::sent_fn sent) {
  also_.push_back({link_handle::make(simulation_.system(), std::move(sent)), std::move(receive)});
  return static_cast<std::uint8_t>(also_.size());
}

caf::strong_actor_ptr control_link::stand_in(const caf::strong_actor_ptr& near_actor) {
  const auto number = static_cast<std::uint8_t>(also_.size() + 1);
  add_receiver([this, near_actor](envelope&& m) { give(0, std::move(m), near_actor); },
               [this, number](caf::mailbox_element_ptr m) { send(1, envelope_of(*m, number)); });
  return also_.back().handle;
}

// The queue is emptied in the event that filled it, so it neither delays nor drops anything.
observer_list control_link::stand_in(const observer_list& near_observers) {
  observer_list there;
  if (near_observers.members().empty()) return there;
  const auto queue = std::make_shared<observation_queue>(near_observers.wants_hooks());
  observers_ = add_receiver(
      [near_observers](const envelope& m) {
        for (const auto& o : m.what.get_as<observations>(0).all) near_observers.notify(*o);
      },
      [this, queue](const caf::mailbox_element_ptr&) {
        auto fresh = queue->take();
        if (seen_.empty()) simulation_.at(ends_[1].node, nanoseconds{0}, [this] { say_seen(); });
        seen_.insert(seen_.end(), fresh.begin(), fresh.end());
      });
  there.add({queue, caf::actor_cast<observer_actor>(also_.back().handle)});
  return there;
}

void control_link::say_seen() {
  if (seen_.empty()) return;
  auto all = caf::make_message(observations{std::exchange(seen_, {})});
  send(1, {std::move(all), observers_});
}

void control_link::open(caf::strong_actor_ptr near_actor, caf::strong_actor_ptr far_actor) {
  ends_[0].actor = std::move(near_actor);
  ends_[1].actor = std::move(far_actor);
  for (std::size_t side : {0, 1}) {
    ends_[side].actor->get()->attach_functor(
        [weak = weak_from_this(), side](const caf::error& why) {
          const auto self = weak.lock();
          if (!self || !self->simulation_.alive(self->ends_[side].node)) return;
          auto& mine = self->ends_[side];
          const auto addr = mine.actor ? mine.actor->address() : caf::actor_addr{};
          mine.actor = nullptr;
          self->send(side, {caf::make_message(caf::down_msg{addr, why}), last_message});
          self->close(side);
        });
    simulation_.after(ends_[side].node, how_.limits.beat, [this, side] { beat(side); });
  }
}

// From now on an empty frame may be what the end waits for, so frames in transit become events.
void control_link::close(std::size_t at) {
  auto& mine = ends_[at];
  mine.closing = true;
  for (const auto& q : std::exchange(mine.quiet, {}))
    simulation_.at(mine.node, q.due - simulation_.time(),
                   arrival{*this, {}, {0, q.heard, q.holds}, at});
}

void control_link::send(std::size_t from, envelope what) {
  if (from == 1) say_seen();
  hear_quiet(from);
  auto& mine = ends_[from];
  if (mine.machine.over() || mine.closing || !simulation_.alive(mine.node)) return;
  const auto number = mine.machine.submit();
  if (number == 0) return lost(from, "too many frames are not acknowledged");
  simulation_.note(static_cast<std::int32_t>(mine.node),
                   static_cast<std::int32_t>(ends_[other(from)].node),
                   [&] { return "send " + text_of(what.what); });
  transmit(from, mine.machine.frame(number), what);
  mine.unacknowledged.push_back(std::move(what));
}

bool control_link::lost_on_path() {
  const bool lost = simulation_.draws().chance(site::link, number_, how_.faults.lose_per_million);
  if (lost && how_.counts) ++how_.counts->lost;
  return lost;
}

void control_link::transmit(std::size_t from, const link_frame& frame, const envelope& what) {
  if (ends_[from].cut) return;
  const auto to = other(from);
  const auto& f = how_.faults;
  auto& d = simulation_.draws();
  auto after = how_.latency + simulation_.lateness(ends_[to].node, simulation_.options().elastic);
  if (lost_on_path()) return;
  if (d.chance(site::link, number_, f.reorder_per_million)) {
    if (how_.counts) ++how_.counts->reordered;
    after += f.reorder_by * static_cast<std::int64_t>(1 + d.draw(site::detail, number_, 16)) / 16;
  }
  arrival arrives{*this, what, frame, to};
  if (d.chance(site::link, number_, f.repeat_per_million)) {
    if (how_.counts) ++how_.counts->repeated;
    simulation_.at(ends_[to].node, after + how_.latency, arrives);
  }
  simulation_.at(ends_[to].node, after, std::move(arrives));
}

// Sends a frame without a message. The path may lose it, but never delays or repeats it: a late or
// repeated one carries no information.
void control_link::speak(std::size_t from) {
  if (ends_[from].cut || lost_on_path()) return;
  auto& theirs = ends_[other(from)];
  if (theirs.machine.over() || !simulation_.alive(theirs.node)) return;
  const auto frame = ends_[from].machine.frame();
  const auto due = simulation_.time() + how_.latency;
  if (theirs.closing)
    simulation_.at(theirs.node, how_.latency, arrival{*this, {}, frame, other(from)});
  else
    theirs.quiet.push_back({due, frame.heard, frame.holds});
}

// Processes empty frames that have arrived since the end was last active, unless a cut lost them.
void control_link::hear_all_quiet(std::size_t at) {
  auto& mine = ends_[at];
  std::size_t count = 0;
  for (const auto& q : mine.quiet) {
    const auto came = simulation_.would_happen(mine.node, q.due);
    if (came > simulation_.time()) break;
    ++count;
    if (ends_[other(at)].cut) continue;
    const auto by_clock = simulation_.clock_at(mine.node, came);
    release(mine, mine.machine.arrived({0, q.heard, q.holds}, by_clock).release_to);
  }
  mine.quiet.erase(mine.quiet.begin(), mine.quiet.begin() + static_cast<std::ptrdiff_t>(count));
}

void control_link::arrive(std::size_t at, const link_frame& frame, envelope&& what) {
  hear_quiet(at);
  auto& mine = ends_[at];
  if (ends_[other(at)].cut) return;  // it was in transit when the path was cut
  const auto answer =
      mine.machine.arrived(frame, simulation_.clock_at(mine.node, simulation_.time()));
  if (mine.machine.over()) return;
  release(mine, answer.release_to);
  if (answer.hold) mine.held.emplace(frame.number, std::move(what));
  if (answer.deliver) {
    deliver(at, std::move(what));
    deliver_held(at);
  }
  close_if_done(mine);
}

void control_link::deliver_held(std::size_t at) {
  auto& held = ends_[at].held;
  while (!held.empty() && held.begin()->first <= ends_[at].machine.heard()) {
    auto next = held.extract(held.begin());
    deliver(at, std::move(next.mapped()));
  }
}

void control_link::deliver(std::size_t at, envelope&& of) {
  auto& mine = ends_[at];
  const auto& what = of.what;
  simulation_.delivered(number_ << 1 | at, type_digest(what));
  simulation_.note(static_cast<std::int32_t>(ends_[other(at)].node),
                   static_cast<std::int32_t>(mine.node), [&] { return "get " + text_of(what); });
  if (of.to == last_message) {
    const auto why = what.get_as<caf::down_msg>(0).reason;
    speak(at);  // acknowledges the last message
    mine.machine.close();
    mine.unacknowledged.clear();
    link_handle::of(mine.handle).go_down(why);
    return;
  }
  if (of.to > 0) return also_[of.to - 1U].receive(std::move(of));
  give(at, std::move(of), mine.actor);
}

// The answer to a request returns through the same link.
void control_link::give(std::size_t at, envelope&& of, const caf::strong_actor_ptr& to) {
  auto& what = of.what;
  if (how_.message_filter && how_.message_filter(at == 0, what, to)) return;
  if (!to) return;
  if (!of.numbered)
    return to->enqueue(
        caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(what)), nullptr);
  const auto& numbered = what.get_as<numbered_message>(0);
  to->enqueue(ends_[at].handle, caf::make_message_id(numbered.number), numbered.what, nullptr);
}

void control_link::release(end& mine, std::uint64_t to) {
  if (to <= mine.released) return;
  const auto count = std::min<std::size_t>(to - mine.released, mine.unacknowledged.size());
  mine.unacknowledged.erase(mine.unacknowledged.begin(),
                            mine.unacknowledged.begin() + static_cast<std::ptrdiff_t>(count));
  mine.released += count;
}

void control_link::beat(std::size_t at) {
  hear_quiet(at);
  auto& mine = ends_[at];
  if (mine.machine.over()) return;
  const auto result = mine.machine.beat(simulation_.clock_at(mine.node, simulation_.time()));
  if (result.lost)
    return lost(at, "silent for " + std::to_string(how_.limits.limit.count() / 1'000'000) + " ms");
  for (const auto n : result.again)
    transmit(at, mine.machine.frame(n), mine.unacknowledged[n - mine.released - 1]);
  if (result.speak) speak(at);
  simulation_.after(mine.node, how_.limits.beat, [this, at] { beat(at); });
}

// Closes the end when its actor has ended and the peer has received all its messages.
void control_link::close_if_done(end& mine) {
  if (!mine.closing || !mine.unacknowledged.empty()) return;
  mine.machine.close();
  link_handle::of(mine.handle).go_down(caf::exit_reason::remote_link_unreachable);
}

void control_link::lost(std::size_t at, const std::string& why) {
  auto& mine = ends_[at];
  const bool loses = how_.faults.lose_per_million > 0 || how_.faults.reorder_per_million > 0;
  if (how_.counts && loses && simulation_.alive(ends_[other(at)].node)) ++how_.counts->links_lost;
  simulation_.note(-1, static_cast<std::int32_t>(mine.node), [&] { return "link lost: " + why; });
  mine.machine.close();
  mine.unacknowledged.clear();
  link_handle::of(mine.handle)
      .go_down(caf::make_error(caf::sec::remote_linking_failed, "the link was lost: " + why));
}

void control_link::reset() {
  const std::size_t at = simulation_.alive(ends_[1].node) ? 1 : 0;
  simulation_.at(ends_[at].node, how_.latency, [this, at] {
    if (!ends_[other(at)].cut && !ends_[at].machine.over())
      lost(at, "closed because the process ended");
  });
}

void control_link::cut(bool to_far, bool to_near) {
  for (std::size_t side : {0, 1}) hear_quiet(side);
  ends_[0].cut = to_far;
  ends_[1].cut = to_near;
}

}  // namespace troupe::testing
