// A link between two actors of a test on different hosts, over a simulated stream.
#pragma once

#include <memory>

#include "apps/testing/simulated_stream.hpp"
#include "apps/testing/virtual_system.hpp"

namespace troupe::testing {

class actor_link {
public:
  /// Both actors belong to nodes.
  actor_link(simulation& of, caf::strong_actor_ptr near, caf::strong_actor_ptr far,
             simulated_stream::settings how);
  ~actor_link();
  actor_link(const actor_link&) = delete;
  actor_link& operator=(const actor_link&) = delete;

  /// Represents the actor of the other end at this one. Messages to it cross the stream, and so do
  /// answers to requests. It ends when the stream does, or the actor.
  const caf::strong_actor_ptr& handle(simulated_stream::side at) const { return ends_[at].handle; }
  const caf::strong_actor_ptr& actor(simulated_stream::side at) const { return ends_[at].actor; }
  const std::shared_ptr<simulated_stream>& stream() const { return stream_; }

private:
  struct end {
    caf::strong_actor_ptr actor;
    caf::strong_actor_ptr handle;
  };
  void open(simulated_stream::side at);
  void receive(simulated_stream::side at, stream_message&& what);

  simulation& simulation_;
  std::shared_ptr<simulated_stream> stream_;
  end ends_[2];
};

}  // namespace troupe::testing
