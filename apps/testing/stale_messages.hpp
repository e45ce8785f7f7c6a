// Stale control messages: messages of an earlier attempt, of an earlier generation of this one, or
// duplicates. Links deliver each message once and in order, and every process has its own link.
// Receivers must also tolerate transports that do not guarantee this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "apps/testing/simulation.hpp"
#include "messages/link.hpp"

namespace troupe::testing {

/// Keeps the last message of each type for each receiver (each rank, the supervisor, the
/// checkpointer), and delivers one of them again after a message to the same receiver.
class stale_messages {
public:
  explicit stale_messages(simulation& in) : simulation_(in) {}

  struct settings {
    std::uint32_t per_million = 0;  ///< after each message
    nanoseconds late_most{0};
    /// Called for each repeated message, for charts.
    std::function<void(simulation::node_id to, const link_message& what)> brought;
  };
  /// From now on the messages so far belong to an earlier attempt.
  void attempt_begins(settings how);
  /// From now on the messages so far belong to an earlier generation of this attempt.
  void generation_begins();
  /// Nothing is delivered again from now on.
  void rest() { how_.per_million = 0; }
  /// A message is about to reach the actor `to` on `node`.
  void pass(std::int32_t rank, bool to_supervisor, simulation::node_id node,
            const link_message& what, const caf::strong_actor_ptr& to);

private:
  using receiver = std::int32_t;  // a rank, or one of the two numbers below 0
  using messages = std::map<std::size_t, link_message>;  // by type
  using known = std::vector<messages>;                   // by receiver, the lowest first

  static messages& of(known& all, receiver who);
  static void move_all(known& from, known& to);

  void bring_back(receiver who, simulation::node_id node, const caf::strong_actor_ptr& to);

  simulation& simulation_;
  settings how_;
  known earlier_;
  known old_;  // of earlier generations of this attempt
  known now_;
};

}  // namespace troupe::testing
