// A link between two actors on different hosts: the supervisor and a rank, or two actors of a test.
// It is a stream on a path with faults. Each side sends to a handle that represents the other side.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/link_machine.hpp"
#include "actors/observer.hpp"
#include "apps/testing/simulation.hpp"

namespace troupe::testing {

/// Faults of the path, in each direction.
struct path_faults {
  std::uint32_t lose_per_million = 0;
  std::uint32_t repeat_per_million = 0;
  std::uint32_t reorder_per_million = 0;  ///< a frame arrives up to `reorder_by` later
  nanoseconds reorder_by = std::chrono::milliseconds{20};
};

/// Number of times each fault happened.
struct path_counts {
  std::uint64_t lost = 0;
  std::uint64_t repeated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t links_lost = 0;  ///< links lost by frame loss while both nodes were alive
};

/// Events refer to the link: it is destroyed after its simulation was cleared.
class control_link : public std::enable_shared_from_this<control_link> {
public:
  struct settings {
    link_limits limits;
    nanoseconds latency = std::chrono::microseconds{50};
    path_faults faults;
    path_counts* counts = nullptr;
    /// Called before a message is delivered; returning true drops it. May be empty.
    std::function<bool(bool to_near, const caf::message& what, const caf::strong_actor_ptr& to)>
        message_filter;
  };
  /// `near` and `far` are the nodes of the two actors, which need not exist yet.
  control_link(simulation& of, simulation::node_id near, simulation::node_id far, settings how);
  ~control_link();
  control_link(const control_link&) = delete;
  control_link& operator=(const control_link&) = delete;

  /// `far_handle` represents the far actor at the near end, `near_handle` the near actor at the far
  /// end. Messages sent to a handle go through the link. A handle terminates when its actor has
  /// ended or was silent for too long.
  const caf::strong_actor_ptr& far_handle() const { return ends_[0].handle; }
  const caf::strong_actor_ptr& near_handle() const { return ends_[1].handle; }

  /// Returns a handle at the far end for another actor at the near end. Its messages share the link
  /// and its order.
  caf::strong_actor_ptr stand_in(const caf::strong_actor_ptr& near_actor);
  /// The same for observers. All observations of one event travel in one frame, before any message
  /// that is sent later.
  observer_list stand_in(const observer_list& near_observers);

  /// Starts heartbeats; both actors exist. They end with the actors.
  void open(caf::strong_actor_ptr near_actor, caf::strong_actor_ptr far_actor);

  /// A process at one end has died and its host reports it: the other end is notified after the
  /// latency.
  void reset();
  /// Cuts the direction near to far, and far to near.
  void cut(bool to_far, bool to_near);
  bool reaches(simulation::node_id p) const { return ends_[0].node == p || ends_[1].node == p; }
  bool near_over() const { return ends_[0].machine.over(); }
  bool over() const { return ends_[0].machine.over() && ends_[1].machine.over(); }

private:
  /// An empty frame in transit. Its content matters only when its receiver acts next, so it is
  /// processed then, with its arrival time, and needs no event.
  struct quiet_frame {
    nanoseconds due;
    std::uint64_t heard;
    std::uint64_t holds;
  };
  /// A message in transit. `to` is 0 for the actor at the other end, or a number in `also_`, or
  /// `last_message` when the sender has ended.
  struct envelope {
    caf::message what;
    std::uint8_t to = 0;
    bool numbered = false;  ///< `what` is a numbered_message: a request or its answer
  };
  static constexpr std::uint8_t last_message = 255;
  /// Another receiver at the near end.
  struct other_receiver {
    caf::strong_actor_ptr handle;  ///< at the far end
    std::function<void(envelope&&)> receive;
  };
  struct end {
    simulation::node_id node = 0;
    caf::strong_actor_ptr actor{};   ///< the actor at this end
    caf::strong_actor_ptr handle{};  ///< represents the other end
    link_machine machine;
    std::vector<envelope> unacknowledged{};  ///< the first has number released + 1
    std::uint64_t released = 0;
    std::map<std::uint64_t, envelope> held{};  ///< arrived before their turn
    /// in transit to this end, in order; bounded by a few heartbeats
    std::vector<quiet_frame> quiet{};
    bool cut = false;      ///< frames sent from here are lost
    bool closing = false;  ///< the actor here has ended and the last message says so
  };

  struct arrival;

  link_machine machine_at(simulation::node_id p) const;
  static envelope envelope_of(caf::mailbox_element& m, std::uint8_t to);
  std::uint8_t add_receiver(std::function<void(envelope&&)> receive, link_handle::sent_fn sent);
  void send(std::size_t from, envelope what);
  void say_seen();
  bool lost_on_path();
  void transmit(std::size_t from, const link_frame& frame, const envelope& what);
  void speak(std::size_t from);
  void release(end& mine, std::uint64_t to);
  void close_if_done(end& mine);
  void hear_quiet(std::size_t at) {
    if (!ends_[at].quiet.empty()) hear_all_quiet(at);
  }
  void hear_all_quiet(std::size_t at);
  void close(std::size_t at);
  void arrive(std::size_t at, const link_frame& frame, envelope&& what);
  void beat(std::size_t at);
  void lost(std::size_t at, const std::string& why);
  void deliver(std::size_t at, envelope&& of);
  void deliver_held(std::size_t at);
  void give(std::size_t at, envelope&& of, const caf::strong_actor_ptr& to);

  simulation& simulation_;
  settings how_;
  std::uint32_t number_;  // for draws
  end ends_[2];
  std::vector<other_receiver> also_;
  std::vector<observation_ptr> seen_;  ///< far end: observations of the current event
  std::uint8_t observers_ = 0;         ///< index in `also_`
};

}  // namespace troupe::testing
