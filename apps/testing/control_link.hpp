// A link between two actors on different hosts, as a stream on a path with faults: the supervisor
// and a rank, or two of a test's own. Each side talks to a handle that stands for the other.
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

/// Events refer to it: it goes once its world is cleared.
class control_link : public std::enable_shared_from_this<control_link> {
public:
  struct settings {
    link_limits limits;
    nanoseconds latency = std::chrono::microseconds{50};
    path_faults faults;
    path_counts* counts = nullptr;
    /// Asked before a message is given to whom it is for; true: it is not. Empty: never.
    std::function<bool(bool to_near, const caf::message& what, const caf::strong_actor_ptr& to)>
        message_filter;
  };
  /// `near`, `far`: where the two live. Neither actor has to be there yet.
  control_link(simulation& of, simulation::node_id near, simulation::node_id far, settings how);
  ~control_link();
  control_link(const control_link&) = delete;
  control_link& operator=(const control_link&) = delete;

  /// Stands for the far actor, near; and for the near one, far. Whoever sends to them sends through
  /// the link; they go down when the other is gone or was silent for too long.
  const caf::strong_actor_ptr& far_handle() const { return ends_[0].handle; }
  const caf::strong_actor_ptr& near_handle() const { return ends_[1].handle; }

  /// Stands, far, for somebody else who lives near: what is sent there travels through the same
  /// link, in order with all else.
  caf::strong_actor_ptr stand_in(const caf::strong_actor_ptr& near_actor);
  /// The same for observers: what an event tells them is one frame, and before all that is sent
  /// behind it.
  observer_list stand_in(const observer_list& near_observers);

  /// Both actors are there: the link begins to beat. Ends with them.
  void open(caf::strong_actor_ptr near_actor, caf::strong_actor_ptr far_actor);

  /// A process at one end has died and its host says so: the other end hears of it after the
  /// latency.
  void reset();
  /// Nothing gets through in this direction; near to far, and far to near.
  void cut(bool to_far, bool to_near);
  bool reaches(simulation::node_id p) const { return ends_[0].node == p || ends_[1].node == p; }
  bool near_over() const { return ends_[0].machine.over(); }
  bool over() const { return ends_[0].machine.over() && ends_[1].machine.over(); }

private:
  /// An empty frame on its way. It tells an end only what that end looks at when it does something
  /// itself, so it is heard then, as of the time it came, and is no event.
  struct quiet_frame {
    nanoseconds due;
    std::uint64_t heard;
    std::uint64_t holds;
  };
  /// A message on its way; `to`: 0 for the actor at the other end, else one of `also_`, or
  /// `last_message`: whoever sent it has ended.
  struct envelope {
    caf::message what;
    std::uint8_t to = 0;
    bool numbered = false;  ///< a request, or the answer to one: `what` is a numbered_message
  };
  static constexpr std::uint8_t last_message = 255;
  /// Somebody else near.
  struct other_receiver {
    caf::strong_actor_ptr handle;  ///< far
    std::function<void(envelope&&)> hears;
  };
  struct end {
    simulation::node_id node = 0;
    caf::strong_actor_ptr actor{};   ///< who lives here
    caf::strong_actor_ptr handle{};  ///< stands for the other
    link_machine machine;
    std::vector<envelope> unacknowledged{};  ///< the first one is released + 1
    std::uint64_t released = 0;
    std::map<std::uint64_t, envelope> held{};  ///< came before their turn
    std::vector<quiet_frame> quiet{};  ///< on their way here, in order: a few beats' worth at most
    bool cut = false;                  ///< what is sent from here is lost
    bool closing = false;              ///< the actor here has ended: the last message said so
  };

  struct arrival;

  link_machine machine_at(simulation::node_id p) const;
  static envelope envelope_of(caf::mailbox_element& m, std::uint8_t to);
  std::uint8_t add_receiver(std::function<void(envelope&&)> hears, link_handle::sent_fn sent);
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
  std::vector<observation_ptr> seen_;  ///< far: what the event that happens has told observers
  std::uint8_t observers_ = 0;         ///< of `also_`
};

}  // namespace troupe::testing
