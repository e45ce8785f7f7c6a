// Control messages that come when nobody expects them any more: of an earlier attempt, or of this
// one a second time. Links give each message once and in order, and every attempt has links of its
// own; what receivers do when that is not so (another transport, an address used again) is theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "apps/testing/simulation.hpp"
#include "troupe/detail/ids.hpp"

namespace troupe::testing {

/// Remembers the last message of each type for each receiver (each rank, the supervisor, the
/// checkpointer), and brings one of them back behind a message to the same receiver.
class stale_messages {
public:
  explicit stale_messages(simulation& in) : simulation_(in) {}

  struct settings {
    std::uint32_t per_million = 0;  ///< behind each message
    nanoseconds late_most{0};
    /// Told when one is brought back: what a chart says, where.
    std::function<void(simulation::node_id to, const caf::message& what)> brought;
  };
  /// The words so far are of an earlier attempt from now on.
  void attempt_begins(settings how);
  /// Nothing is brought back any more.
  void rest() { how_.per_million = 0; }
  /// A message is about to reach `to`, who lives at `place`.
  void pass(std::int32_t rank, bool to_supervisor, simulation::node_id node,
            const caf::message& what, const caf::strong_actor_ptr& to);

private:
  using receiver = std::int32_t;  // a rank, or one of the two below it
  struct typed_message {
    std::string_view type;
    caf::message what;
  };
  using messages = std::vector<typed_message>;  // one of each type, in their order
  using known = std::vector<messages>;          // by receiver, the lowest first

  static messages& of(known& all, receiver who);
  static void keep(messages& in, const caf::message& what);

  void bring_back(receiver who, simulation::node_id node, const caf::strong_actor_ptr& to);

  simulation& simulation_;
  settings how_;
  known earlier_;
  known now_;
};

}  // namespace troupe::testing
