// The link between the supervisor and a rank on another host, as a stream on a path with faults.
// Each side talks to a handle that stands for the other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/link_machine.hpp"
#include "apps/testing/world.hpp"

namespace troupe::testing {

/// What the path does to frames, in each direction.
struct path_faults {
  std::uint32_t lose_per_million = 0;
  std::uint32_t repeat_per_million = 0;
  std::uint32_t reorder_per_million = 0;  ///< a frame takes up to `reorder_by` longer
  nanoseconds reorder_by = std::chrono::milliseconds{20};
};

/// How many of each happened.
struct path_counts {
  std::uint64_t lost = 0;
  std::uint64_t repeated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t links_lost = 0;  ///< on a path that loses frames, between two that live
};

class control_link : public std::enable_shared_from_this<control_link> {
public:
  struct settings {
    link_limits limits;
    nanoseconds latency = std::chrono::microseconds{50};
    path_faults faults;
    path_counts* counts = nullptr;
    /// Asked before a message is given to whom it is for; true: it is not. Empty: never.
    std::function<bool(bool to_near, const caf::message& what, const caf::strong_actor_ptr& to)>
        door;
  };
  /// `near`: where the supervisor lives. The far actor is not there yet.
  control_link(world& of, world::place near, world::place far, settings how);
  ~control_link();
  control_link(const control_link&) = delete;
  control_link& operator=(const control_link&) = delete;

  /// Stands for the far actor, near; and for the near one, far. Whoever sends to them sends through
  /// the link; they go down when the other is gone or was silent for too long.
  const caf::strong_actor_ptr& far_handle() const { return ends_[0].handle; }
  const caf::strong_actor_ptr& near_handle() const { return ends_[1].handle; }

  /// Stands for the checkpointer, far: what is sent there travels through the same link.
  caf::strong_actor_ptr checkpointer_handle(caf::strong_actor_ptr checkpointer);

  /// Both actors are there: the link begins to beat. Ends with them.
  void open(caf::strong_actor_ptr near_actor, caf::strong_actor_ptr far_actor);

  /// The far process has died and its host says so: the near side hears of it after the latency.
  void reset();
  /// Nothing gets through in this direction; near to far, and far to near.
  void cut(bool to_far, bool to_near);
  bool over() const { return ends_[0].machine.over() && ends_[1].machine.over(); }

private:
  /// An empty frame on its way. It tells an end only what that end looks at when it does something
  /// itself, so it is heard then, as of the time it came, and is no event.
  struct quiet_frame {
    nanoseconds due;
    std::uint64_t heard;
  };
  struct end {
    world::place place = 0;
    caf::strong_actor_ptr actor;   ///< who lives here
    caf::strong_actor_ptr handle;  ///< stands for the other
    link_machine machine;
    std::vector<caf::message> unacknowledged;  ///< the first one is released + 1
    std::uint64_t released = 0;
    std::vector<quiet_frame> quiet;  ///< on their way here, in order: a few beats' worth at most
    bool cut = false;                ///< what is sent from here is lost
    bool closing = false;            ///< the actor here has ended: the last message said so
  };

  struct arrival;

  void send(std::size_t from, caf::message what);
  void transmit(std::size_t from, link_frame frame, const caf::message& what);
  void release(end& mine, std::uint64_t to);
  void close_if_done(end& mine);
  void transmit_quiet(std::size_t to, nanoseconds after, std::uint64_t heard);
  void hear_quiet(std::size_t at);
  void close(std::size_t at);
  void arrive(std::size_t at, const link_frame& frame, const caf::message& what);
  void again(std::size_t from);
  void beat(std::size_t at);
  void lost(std::size_t at, const std::string& why);
  void deliver(std::size_t at, const caf::message& what);

  world& world_;
  settings how_;
  std::uint32_t number_;  // for draws
  end ends_[2];
  caf::strong_actor_ptr checkpointer_;         ///< near
  caf::strong_actor_ptr checkpointer_handle_;  ///< far
};

}  // namespace troupe::testing
