#include "apps/testing/simulated_stream.hpp"

#include <algorithm>
#include <utility>

#include "troupe/detail/coverage.hpp"

namespace troupe::testing {

namespace {

std::size_t attached_to(const stream_message& what) {
  std::size_t size = 0;
  for (const auto& one : what.bytes.attachments) size += one->size();
  return size;
}

std::size_t size_of(const stream_message& what) {
  return what.bytes.head.size() + attached_to(what);
}

}  // namespace

const char* to_string(stream_end how) {
  switch (how) {
    case stream_end::closed: return "the other side has closed the link";
    case stream_end::reset: return "the connection was broken";
    case stream_end::silent: return "the other side was silent for too long";
    case stream_end::full: return "the other side does not take what is sent";
  }
  return "?";
}

simulated_stream::simulated_stream(simulation& of, simulation::node_id near,
                                   simulation::node_id far, settings how)
    : simulation_(of), how_(how), ends_{end{.node = near}, end{.node = far}} {
  for (auto& w : ways_) w.reading = {{}, how.buffer, how.queue_limit};
}

void simulated_stream::open(side at, sink to) {
  auto& mine = ends_[at];
  mine.to = std::move(to);
  mine.open = true;
  if (!ways_[other(at)].flights.empty()) schedule_arrival(at, nanoseconds{0});
  schedule_beat(at);
}

void simulated_stream::schedule_arrival(side at, nanoseconds after) {
  simulation_.at(ends_[at].node, after, [self = shared_from_this(), at] { self->arrive(at); });
}

void simulated_stream::schedule_beat(side at) {
  simulation_.after(ends_[at].node, heartbeat_interval(how_.detect),
                    [self = shared_from_this(), at] { self->beat(at); });
}

// While the path takes all bytes, none waits.
std::size_t simulated_stream::waiting(const way& w) const {
  return w.bytes <= w.reading.buffer ? 0 : w.flights.size();
}

bool simulated_stream::send(side from, stream_message what) {
  auto& mine = ends_[from];
  if (mine.over || mine.closing || !simulation_.alive(mine.node)) return true;
  const auto waits = waiting(ways_[from]);
  const auto limit = ways_[from].reading.queue_limit;
  if (what.how == keep::if_room && waits >= limit / 2) return false;
  if (sometimes(waits >= limit, coverage_point::link_full)) {
    mine.closing = true;
    simulation_.at(mine.node, nanoseconds{0}, [self = shared_from_this(), from] {
      if (self->ends_[from].over) return;
      self->leave(from, stream_end::reset);
      self->finish(from, stream_end::full);
    });
    return true;
  }
  mine.heartbeat.sent();
  push(from, {.what = std::move(what)});
  return true;
}

// What is sent in one event arrives in one event.
void simulated_stream::push(side from, flight what) {
  auto& w = ways_[from];
  const auto at = other(from);
  const auto event = simulation_.events();
  if (w.flights.empty() || w.event != event) {
    // The kernel sends the end of a stream at once.
    const auto late = what.last
                          ? nanoseconds{0}
                          : simulation_.lateness(ends_[at].node, simulation_.options().elastic);
    const auto after = how_.latency + late;
    w.newest = std::max(w.newest, simulation_.time() + after);
    w.event = event;
    schedule_arrival(at, w.newest - simulation_.time());
  }
  what.due = w.newest;
  w.bytes += size_of(what.what);
  w.flights.push_back(std::move(what));
}

// Only a message of which the path has taken no byte can be withdrawn.
bool simulated_stream::withdraw(side from, std::uint64_t tag) {
  auto& w = ways_[from];
  std::size_t before = 0;
  for (auto at = w.flights.begin(); at != w.flights.end(); ++at) {
    const auto size = size_of(at->what);
    if (before >= w.reading.buffer && at->what.how == keep::until_withdrawn &&
        at->what.tag == tag) {
      w.bytes -= size;
      w.flights.erase(at);
      return true;
    }
    before += size;
  }
  return false;
}

void simulated_stream::close(side from) {
  auto& mine = ends_[from];
  if (mine.over || std::exchange(mine.closing, true)) return;
  push(from, {.last = true, .how = stream_end::closed});
}

// What the path has not taken was in the memory of the process.
void simulated_stream::forget_waiting(side from) {
  auto& w = ways_[from];
  while (w.bytes > w.reading.buffer) {
    w.bytes -= size_of(w.flights.back().what);
    w.flights.pop_back();
  }
}

void simulated_stream::vanish(side from) {
  ends_[from].over = true;
  forget_waiting(from);
}

void simulated_stream::leave(side from, stream_end how) {
  auto& mine = ends_[from];
  if (!mine.over) forget_waiting(from);
  mine.over = true;
  mine.heartbeat.close();
  if (std::exchange(mine.left, true) || ends_[other(from)].over) return;
  push(from, {.last = true, .how = how});
}

void simulated_stream::disconnect() {
  for (const side at : {0, 1}) {
    auto& w = ways_[at];
    w.flights.clear();
    w.bytes = 0;
    push(at, {.last = true, .how = stream_end::reset});
  }
}

void simulated_stream::cut(cut_of directions) {
  const bool to_far = directions == cut_of::near_to_far || directions == cut_of::both;
  const bool to_near = directions == cut_of::far_to_near || directions == cut_of::both;
  for (const side at : {0, 1}) receive_beats(at);  // those that have arrived before
  for (const auto& [from, off] : {std::pair<side, bool>{0, to_far}, {1, to_near}}) {
    const bool healed = std::exchange(ways_[from].cut, off) && !off;
    if (healed && !ways_[from].flights.empty()) schedule_arrival(other(from), how_.latency);
  }
}

void simulated_stream::read_slowly(side at, slow_reading how) {
  auto& w = ways_[other(at)];
  w.reading = how;
  w.reads = how.each.count() > 0 ? simulation_.time() + how.each : nanoseconds{0};
  if (!w.flights.empty()) schedule_arrival(at, nanoseconds{0});
}

void simulated_stream::arrive(side at) {
  auto& w = ways_[other(at)];
  auto& mine = ends_[at];
  while (!w.flights.empty() && mine.open && !mine.over && !w.cut &&
         w.flights.front().due <= simulation_.time()) {
    if (w.reads > simulation_.time()) {
      if (std::exchange(w.wakes, w.reads) != w.reads)
        schedule_arrival(at, w.reads - simulation_.time());
      return;
    }
    w.reads = simulation_.time() + w.reading.each;
    auto next = std::move(w.flights.front());
    w.flights.pop_front();
    w.bytes -= size_of(next.what);
    w.attached += attached_to(next.what);
    mine.heartbeat.received();
    if (next.last) return finish(at, next.how);
    mine.to.received(std::move(next.what));
  }
}

std::int64_t simulated_stream::attached(side at) const {
  const auto& w = ways_[other(at)];
  const auto all = static_cast<std::int64_t>(w.attached);
  if (w.flights.empty() || w.cut || w.reading.each.count() == 0) return all;
  const auto& next = w.flights.front();
  const auto begins = std::max(next.due, w.reads - w.reading.each);
  const auto now = simulation_.time();
  if (begins >= now || now >= w.reads) return all;
  const auto part =
      static_cast<double>((now - begins).count()) / static_cast<double>((w.reads - begins).count());
  return all + static_cast<std::int64_t>(part * static_cast<double>(attached_to(next.what)));
}

void simulated_stream::receive_beats(side at) {
  auto& w = ways_[other(at)];
  if (w.cut) return;
  const auto arrived =
      std::erase_if(w.beats, [now = simulation_.time()](nanoseconds due) { return due <= now; });
  const bool reads_slowly = w.reading.each.count() > 0 && !w.flights.empty() &&
                            w.flights.front().due <= simulation_.time();
  if (arrived > 0 || reads_slowly) ends_[at].heartbeat.received();
}

void simulated_stream::beat(side at) {
  arrive(at);
  receive_beats(at);
  auto& mine = ends_[at];
  if (mine.over) return;
  switch (mine.heartbeat.beat()) {
    case heartbeat_machine::action::lost:
      leave(at, stream_end::reset);
      return finish(at, stream_end::silent);
    case heartbeat_machine::action::send_beat:
      if (!ends_[other(at)].over) ways_[at].beats.push_back(simulation_.time() + how_.latency);
      break;
    case heartbeat_machine::action::none: break;
  }
  schedule_beat(at);
}

void simulated_stream::finish(side at, stream_end how) {
  auto& mine = ends_[at];
  mine.over = true;
  mine.heartbeat.close();
  simulation_.note(-1, static_cast<std::int32_t>(mine.node),
                   [&] { return std::string{"link ended: "} + to_string(how); });
  mine.to.ended(how);
}

}  // namespace troupe::testing
