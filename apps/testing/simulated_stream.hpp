// A connection between two processes in a simulation: an ordered stream of bytes with heartbeats,
// as backends/processes has it over a socket, on a path with faults.
//
// Bytes arrive once and in order, or the connection ends. A cut holds bytes back: they arrive after
// it, if neither end has given the connection up by then. A dead process closes its end: the peer
// reads what was sent before, and then the end. A dead host sends nothing.
#pragma once

#include <caf/message.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "apps/testing/simulation.hpp"
#include "backends/link.hpp"
#include "backends/wire/heartbeat_machine.hpp"
#include "backends/wire/link_codec.hpp"

namespace troupe::testing {

/// One message on a stream.
struct stream_message {
  packed_message bytes;
  keep how = keep::always;
  std::uint64_t tag = 0;
  /// Between two actors of a test, whose messages no codec knows: the message itself, and the
  /// number of a request or of the answer to one (0: neither).
  caf::message plain;
  std::uint64_t request = 0;
};

/// Why a connection has ended, at one of its ends.
enum class stream_end : std::uint8_t {
  closed,  ///< the other end was closed in order, or its process has died and its host says so
  reset,   ///< the other end has given the connection up, or the path has broken it
  silent,  ///< the other end was silent for the detection time
  full,    ///< the other end does not read
};
const char* to_string(stream_end how);

class simulated_stream : public std::enable_shared_from_this<simulated_stream> {
public:
  struct settings {
    nanoseconds latency = std::chrono::microseconds{50};
    nanoseconds detect = std::chrono::milliseconds{500};
    std::size_t buffer = 65536;      ///< bytes that the path takes although they do not arrive
    std::size_t queue_limit = 8192;  ///< messages that may wait beyond them, as link_queue_limit
  };
  struct sink {
    std::function<void(stream_message&&)> received;
    /// Once, after the last message. Not called after `leave`.
    std::function<void(stream_end how)> ended;
  };
  using side = std::size_t;  // 0: near, 1: far
  /// Directions in which the path holds bytes back.
  enum class cut_of : std::uint8_t { none, near_to_far, far_to_near, both };

  simulated_stream(simulation& of, simulation::node_id near, simulation::node_id far, settings how);

  /// Begins to receive at that end, and to send heartbeats. What has arrived before waits until
  /// then.
  void open(side at, sink to);
  /// See link::send. The connection ends if the queue is full.
  bool send(side from, stream_message what);
  /// See link::withdraw.
  bool withdraw(side from, std::uint64_t tag);
  /// Sends what waits and then ends this direction in order.
  void close(side from);
  /// The process at that end has given the connection up, or has died while its host lives. What
  /// waits beyond the path's bytes is lost with it. The other end is notified after the rest.
  void leave(side from, stream_end how);
  /// The end is gone, and sends nothing any more.
  void vanish(side from);
  /// The path breaks the connection: both ends are notified.
  void disconnect();
  /// One end reads slowly from now on: nothing for `each`, then one message. Its bytes arrive
  /// nevertheless, so it is not silent to itself. `buffer` and `queue_limit` are those of the end
  /// that sends. Without arguments it reads as before.
  struct slow_reading {
    nanoseconds each{0};
    std::size_t buffer = 65536;
    std::size_t queue_limit = 8192;
  };
  void read_slowly(side at, slow_reading how);
  void read_as_before(side at) { read_slowly(at, {{}, how_.buffer, how_.queue_limit}); }
  /// Cuts these directions, and heals the others.
  void cut(cut_of directions);

  /// The bytes of attachments that have arrived at that end. A message arrives evenly over the time
  /// for which a slow reader waits for it.
  std::int64_t attached(side at) const;

  bool reaches(simulation::node_id p) const { return ends_[0].node == p || ends_[1].node == p; }
  bool over(side at) const { return ends_[at].over; }
  bool over() const { return ends_[0].over && ends_[1].over; }

private:
  static constexpr side other(side at) { return 1 - at; }
  // A message on its way, or (`last`) the end of the stream.
  struct flight {
    nanoseconds due;
    stream_message what;
    bool last = false;
    stream_end how = stream_end::closed;
  };
  // One direction, by the end that sends.
  struct way {
    std::deque<flight> flights{};
    std::size_t bytes = 0;     // in `flights`
    std::size_t attached = 0;  // of messages that have arrived
    nanoseconds newest{0};     // when the last of them is due
    std::uint64_t event = 0;   // of the simulation, in which that was sent
    // Heartbeats that are on their way. They matter only when the receiver beats itself, so they
    // need no events. Bounded by a cut of the detection time.
    std::vector<nanoseconds> beats{};
    bool cut = false;
    slow_reading reading{};  // of the other end
    nanoseconds reads{0};    // when it reads next
    nanoseconds wakes{0};    // the same, if an event is scheduled for that
  };
  struct end {
    simulation::node_id node = 0;
    sink to{};
    heartbeat_machine heartbeat{};
    bool open = false;
    bool closing = false;
    bool over = false;
    bool left = false;  // and has sent that to the peer
  };

  std::size_t waiting(const way& w) const;
  void forget_waiting(side from);
  void push(side from, flight what);
  void arrive(side at);
  void receive_beats(side at);
  void beat(side at);
  void finish(side at, stream_end how);
  void schedule_arrival(side at, nanoseconds after);
  void schedule_beat(side at);

  simulation& simulation_;
  settings how_;
  end ends_[2];
  way ways_[2];
};

}  // namespace troupe::testing
