// Moves the bytes of a mesh: in the lane's loop while it waits, and in turns of the backend's
// thread.
#include "backends/tcp/frame_handler.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>

namespace troupe::tcp {

using collectives::touching;

namespace {

// Looks at the sockets before the lane goes to sleep. Each costs a system call per peer, so
// together they take about what it costs to be woken.
constexpr int looks = 20;

bool passed(const std::optional<mesh::clock::time_point>& until) {
  return until && mesh::clock::now() >= *until;
}

}  // namespace

bool mesh::sweep() {
  bool moved = false;
  const touching hold{touched_};
  for (std::int32_t rank = 0; rank < who_.world && !aborted(); ++rank) {
    auto& from = peers_[static_cast<std::size_t>(rank)];
    for (std::uint16_t stream = 0; stream < streams_ && !aborted(); ++stream) {
      if (stream != 0 && !chunks_expected(from)) break;
      auto& link = from.streams[stream].link;
      if (!link) continue;
      try {
        frame_handler to{*this, rank, stream};
        if (link->receive(to, end_.flag(), moved) == connection::state::ended) on_end(rank, stream);
      } catch (const group_over&) {  // the rest of what came is of no use any more
      } catch (const wire_error& error) {
        fail(fmt::format("rank {} {}", rank, error.what()));
      }
    }
  }
  if (!aborted()) flush();
  if (aborted() && !spread_) spread({.text = why()});
  return moved;
}

void mesh::flush() {
  for (bool more = true; more && !aborted();) {
    more = false;
    for (auto& to : peers_)
      for (auto& on : to.streams)
        // A peer that does not receive any more is detected when its last frame has been read.
        if (on.link && on.link->backlog()) on.link->flush(end_.flag(), sent_);
    const auto gone = std::exchange(sent_, {});
    for (const auto& frame : gone) {
      if (!frame.of) continue;
      more = true;
      frame.of->last_bytes = clock::now();
      frame.of->steps.sent(frame.member);
      pump(frame.of);
    }
    for (const auto& frame : gone)
      if (frame.of) settle(frame.of->in_channel);
  }
}

void mesh::drive(operation& what, clock::time_point begin, std::chrono::nanoseconds deadline) {
  const collectives::lane_waits mark{waiting_};
  limit until;
  if (deadline.count() > 0) until = begin + deadline;
  while (!ended(what)) {
    if (passed(until))
      until = expire(what, begin, deadline);
    else if (!lead(what, until))
      follow(what, until);
  }
}

bool mesh::lead(const operation& what, limit until) {
  if (driven_.exchange(true, std::memory_order_seq_cst)) return false;
  for (int look = 0; !ended(what) && !passed(until); ++look) {
    {
      const std::lock_guard hold{mutex_};
      if (!ended(what) && sweep()) look = 0;
    }
    if (ended(what)) break;
    if (look < looks)
      sched_yield();
    else
      sleep_at_sockets(until);
  }
  {
    const std::lock_guard hold{mutex_};
    driven_.store(false, std::memory_order_seq_cst);
  }
  followers_.notify_all();
  poller_.soon();
  return true;
}

void mesh::follow(const operation& what, limit until) {
  std::unique_lock hold{mutex_};
  const auto awake = [&] { return ended(what) || !driven_.load(std::memory_order_seq_cst); };
  if (until)
    followers_.wait_until(hold, clock::next_look(*until), awake);
  else
    followers_.wait(hold, awake);
}

void mesh::sleep_at_sockets(limit until) {
  std::vector<pollfd> sockets{{waker_.fd(), POLLIN, 0}};
  {
    const std::lock_guard hold{mutex_};
    for (const auto& p : peers_) {
      for (const auto& on : p.streams) {
        if (!watched(p, on)) continue;
        sockets.push_back(
            {on.link->fd(), static_cast<short>(on.link->backlog() ? POLLIN | POLLOUT : POLLIN), 0});
      }
    }
  }
  timespec left{};
  if (until) {
    const auto rest = std::clamp(*until - clock::now(), clock::duration::zero(), clock::slice);
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(rest).count();
    left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  ppoll(sockets.data(), sockets.size(), until ? &left : nullptr, nullptr);
  if (sockets.front().revents != 0) waker_.clear();
}

void mesh::adopt(std::int32_t rank, std::uint16_t stream, file_descriptor socket) {
  const std::lock_guard hold{mutex_};
  auto& to = peers_[static_cast<std::size_t>(rank)];
  auto& on = to.streams[stream];
  if (on.link || on.left || given_up()) return;
  on.link.emplace(std::move(socket));
  if (unattended_) {
    say_last(to);
    on.link.reset();
    return;
  }
  poller_.watch(on.link->fd());
  if (over()) {
    if (spread_ || !aborted()) say_last(to);
    poller_.now();
    return;
  }
  if (stream == 0)
    for (auto& frame : std::exchange(to.before, {})) on.link->push(std::move(frame));
  const touching hold_memory{touched_};
  flush();
  arm();
  waker_.ring();
}

void mesh::without(std::int32_t rank) {
  const std::lock_guard hold{mutex_};
  const auto& main = peers_[static_cast<std::size_t>(rank)].main();
  if (over() || main.link || main.left) return;
  try {
    frame_handler{*this, rank, 0}.frame({.kind = frame_kind::bye}, {});
  } catch (const group_over&) {
  }
  waker_.ring();
}

void mesh::dials(int connections) {
  const std::lock_guard hold{mutex_};
  dialing_ = connections;
}

void mesh::dialed() {
  const std::lock_guard hold{mutex_};
  --dialing_;
  poller_.now();
}

bool mesh::has(std::int32_t rank, std::uint16_t stream) const {
  const std::lock_guard hold{mutex_};
  const auto& on = peers_[static_cast<std::size_t>(rank)].streams[stream];
  return on.link || on.left;
}

bool mesh::attend() {
  poller_.take();
  if (driven_.load(std::memory_order_seq_cst) && !over()) return true;
  const std::lock_guard hold{mutex_};
  if (!over() && !driven_.load(std::memory_order_seq_cst)) sweep();
  if (over()) {
    if (aborted() && !spread_) spread({.text = why()});
    linger();
  }
  arm();
  const auto linked = [](const peer& p) {
    return std::any_of(p.streams.begin(), p.streams.end(),
                       [](const stream& on) { return on.link.has_value(); });
  };
  unattended_ = departed() && dialing_ == 0 && std::none_of(peers_.begin(), peers_.end(), linked);
  return !unattended_;
}

// Chunks arrive only while a wide operation is open here. The end of a peer that has left is also
// expected.
bool mesh::chunks_expected(const peer& from) const { return wide_ > 0 || from.main().left; }

// After an early frame only the first connection is watched, because it brings the missing frame.
bool mesh::watched(const peer& from, const stream& on) const {
  return on.link && !on.link->early() && (&on == &from.main() || chunks_expected(from));
}

void mesh::arm() {
  for (const auto& p : peers_)
    for (const auto& on : p.streams)
      if (watched(p, on) || (on.link && over())) poller_.arm(on.link->fd(), on.link->backlog());
}

void mesh::linger() {
  for (auto& to : peers_) {
    for (auto& on : to.streams) {
      if (!on.link) continue;
      const bool ended = on.link->flush(never, sent_) == connection::state::ended;
      sent_.clear();
      if (!on.shut && !on.link->backlog()) {
        on.link->finish_sending();
        on.shut = true;
      }
      if (ended || on.link->drained()) close_link(on);
    }
  }
}

void mesh::close_link(stream& of) {
  poller_.forget(of.link->fd());
  of.link.reset();
}

void mesh::close_all() {
  const std::lock_guard hold{mutex_};
  for (auto& p : peers_) {
    p.before.clear();
    for (auto& on : p.streams)
      if (on.link) close_link(on);
  }
  if (departed()) given_up_.store(true, std::memory_order_seq_cst);
  poller_.now();
}

}  // namespace troupe::tcp
