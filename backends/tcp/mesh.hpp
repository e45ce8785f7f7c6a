// One rank's connections to the other ranks of its generation, and the operations on them.
#pragma once

#include "backends/collective/scopes.hpp"
#include "backends/collective/submission.hpp"
#include "backends/running_clock.hpp"
#include "backends/tcp/connection.hpp"
#include "backends/tcp/exchange.hpp"
#include "backends/tcp/poller.hpp"
#include "backends/tcp/stall_report.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::tcp {

struct channel;

/// One collective on its way. Guarded by the mesh but for `how`.
struct operation {
  operation(channel& of, std::uint64_t n, chunk_pool& pool);

  channel& in_channel;
  const std::uint64_t number;
  exchange steps;
  bool submitted = false;
  const void* in = nullptr;
  void* out = nullptr;
  /// When bytes came or went last, or the operation became the first of its channel.
  running_clock::time_point last_bytes;

  collectives::outcome how;
};

/// No channel: the key of an abort that no operation caused.
inline constexpr std::uint32_t no_channel = 0xffffffff;

/// The most subgroups of one rank.
inline constexpr std::size_t channels_max = 4096;

/// Stop flag that is never set; used while the abort frame itself is sent.
inline const std::atomic<bool> never{false};

/// The operations of one (sub)group in order. Guarded by the mesh.
struct channel {
  std::uint32_t id = 0;  ///< what this rank calls it: its place among the mesh's channels
  std::vector<std::int32_t> members;
  std::size_t me = 0;
  std::size_t member(std::int32_t rank) const;
  /// When the first open operation moved last: the others wait for it. One must be open.
  running_clock::time_point moved() const;

  std::deque<std::shared_ptr<operation>> open;  ///< called by some, not done here; in order
  std::uint64_t first = 0;                      ///< number of open.front()
  std::uint64_t submitted = 0;                  ///< by this rank
  std::vector<std::uint64_t> called;            ///< by each member
  std::int32_t departed = -1;                   ///< a member that is gone, or -1
  bool announced = false;                       ///< the peers know `id`
};

using collectives::submission;

/// Thread-safe; `depart` is the last call of the rank's own threads. Operations of a channel run in
/// the order of their submission.
///
/// `sweep` moves bytes, under the mutex. A thread that waits calls it, so that no other thread has
/// to wake up; if none waits, the backend's thread calls it. Of several threads that wait, one
/// leads: it calls `sweep` and sleeps at the sockets. The others follow: they sleep until their
/// operation has ended or the leading thread has stopped.
class mesh : public std::enable_shared_from_this<mesh> {
public:
  using clock = running_clock;

  /// `streams`: connections to each of the others.
  mesh(const group_description& who, std::uint16_t streams);

  const group_description& group() const { return who_; }
  std::uint16_t streams() const { return streams_; }
  channel& among(const std::vector<std::int32_t>& members);

  std::shared_ptr<operation> submit(channel& in, submission with);
  /// `deadline` 0: none; counts from `begin`, and after all have arrived anew whenever something
  /// moves.
  work_result poll(operation& what, clock::time_point begin, std::chrono::nanoseconds deadline);
  void wait(operation& what, clock::time_point begin, std::chrono::nanoseconds deadline);
  bool waiting() const noexcept { return waiting_.load(std::memory_order_relaxed) > 0; }

  void abort(std::string_view why) noexcept;
  bool aborted() const noexcept { return end_.aborted(); }
  bool quiescent() const noexcept;
  std::string why() const { return end_.why(); }
  /// See tcp_communicator::when_aborted.
  void when_aborted(std::function<void(const std::string&)> what);
  /// The handle is destroyed: sends `bye` to the peers, or ends the group if operations are in
  /// flight.
  void depart() noexcept;

  /// The backend's thread: a connection, one of `streams`, that has passed the handshake. A group
  /// that is over says so and closes it. Ignored if there is one already.
  void adopt(std::int32_t rank, std::uint16_t stream, file_descriptor socket);
  /// The peer left before it was connected: as if it had sent `bye`. Ignored if it is connected.
  void without(std::int32_t rank);
  /// `connections` are to be dialed, one is done with.
  void dials(int connections);
  void dialed();
  bool has(std::int32_t rank, std::uint16_t stream) const;
  bool departed() const noexcept { return departed_.load(std::memory_order_seq_cst); }
  bool over() const noexcept { return aborted() || departed(); }
  /// The end of the group need not be sent any more to peers that are not connected yet.
  bool given_up() const noexcept { return given_up_.load(std::memory_order_seq_cst); }
  /// Readable when `attend` is due.
  int poller_fd() const { return poller_.fd(); }
  /// False: departed, and nothing is left to attend to.
  bool attend();
  /// Closes what peers have not let go of in time. A departed rank gives up.
  void close_all();

private:
  class frame_handler;
  /// One connection. The first of a peer's carries all frames in order; others carry chunks of
  /// wide operations, in any order between them, and are looked at while some are expected.
  struct stream {
    std::optional<connection> link;
    std::shared_ptr<operation> current;  // whose bytes come in
    bool left = false;                   // its last frame was received
    bool closing = false;                // its last frame is queued ...
    bool shut = false;                   // ... and has gone
  };
  struct peer {
    std::vector<stream> streams;     // by stream
    std::deque<outgoing> before;     // frames that wait for the first connection
    std::vector<channel*> channels;  // by the peer's id; null: this rank is not in it
    std::size_t turn = 0;            // where the search for a connection for a chunk begins
    stream& main() { return streams.front(); }
    const stream& main() const { return streams.front(); }
    channel* named(std::uint32_t id) const { return id < channels.size() ? channels[id] : nullptr; }
  };
  /// What was asked about an operation past its deadline.
  struct inquiry {
    const channel* about;
    std::uint64_t number;
    clock::time_point begun;
    std::chrono::nanoseconds deadline;
    std::size_t open;  // answers on their way
    waits_of answers;
  };

  // Operations (mesh.cpp). Guarded by mutex_, as what follows, but for drive, expire, let_go.
  channel& channel_of(const std::vector<std::int32_t>& members);
  std::shared_ptr<operation> at(channel& in, std::uint64_t number);
  void announce(channel& in);
  void call_out(const std::shared_ptr<operation>& what, const collective_call& call, bool yes);
  void start(const std::shared_ptr<operation>& what);
  void pump(const std::shared_ptr<operation>& what);
  void settle(channel& in);
  void push(std::int32_t rank, outgoing frame);
  /// A chunk of a wide operation goes to the connection with the fewest bytes left to send.
  void push_chunk(std::int32_t rank, outgoing frame);
  outgoing data_frame(const std::shared_ptr<operation>& what, std::size_t member,
                      const parcel& of) const;

  // Bytes (mesh_links.cpp). `sweep` says if any came.
  void drive(operation& what, clock::time_point begin, std::chrono::nanoseconds deadline);
  using limit = std::optional<clock::time_point>;
  /// False if another thread leads. Else sweeps until `what` has ended or the limit has passed.
  bool lead(const operation& what, limit until);
  /// Sleeps until `what` has ended, the limit has passed, or no thread leads.
  void follow(const operation& what, limit until);
  bool ended(const operation& what) const noexcept { return aborted() || !what.how.pending(); }
  bool sweep();
  void flush();
  void sleep_at_sockets(limit until);
  void arm();
  void linger();
  void close_link(stream& of);
  bool chunks_expected(const peer& from) const;
  /// Whether the poller watches the connection's socket.
  bool watched(const peer& from, const stream& on) const;

  // Whom a deadline names (mesh_blame.cpp).
  /// The moment at which to look again.
  clock::time_point expire(operation& what, clock::time_point begin,
                           std::chrono::nanoseconds deadline);
  void inquire(const operation& about, std::chrono::nanoseconds deadline);
  void conclude(operation& what, std::chrono::nanoseconds deadline);
  std::vector<std::int32_t> awaited(const channel& in, std::uint64_t number) const;
  void answer_ask(std::int32_t rank, const channel& in, const frame_header& ask);
  void on_answer(std::int32_t rank, const frame_header& header, std::vector<std::int32_t> ranks);

  // How it ends (mesh_end.cpp).
  void disagree(const operation& what);
  void fail(const collectives::end_reason& why);
  void fail(std::string why) { fail(collectives::end_reason{.text = std::move(why)}); }
  void set_aborted(collectives::end_reason why) noexcept;
  void spread(const collectives::end_reason& why);
  /// Once aborted: ends an operation that this rank called before.
  void end_aborted(operation& what) const;
  void say_last(peer& to);
  void say_last(stream& on, bool main);
  void on_end(std::int32_t rank, std::uint16_t stream);
  void let_go() const noexcept;

  const group_description who_;
  const std::uint16_t streams_;
  mutable std::mutex mutex_;
  chunk_pool pool_;
  poller poller_;
  waker waker_;
  std::vector<peer> peers_;  // by rank
  std::deque<channel> channels_;
  std::vector<outgoing> sent_;
  std::optional<inquiry> inquiry_;
  std::size_t in_flight_ = 0;  // operations submitted here and not ended
  std::size_t wide_ = 0;       // operations started and not ended that use all connections
  bool spread_ = false;        // the end of the group was sent to the peers ...
  extension last_words_;       // ... with this extension
  frame_header last_header_;   // ... and this header, which names the operation
  int dialing_ = 0;            // connections that this rank has to dial yet
  bool unattended_ = false;    // `attend` is not called any more
  // A thread leads. Becomes false under mutex_ only.
  std::atomic<bool> driven_{false};
  // An operation has ended, or no thread leads.
  std::condition_variable followers_;
  collectives::lane_waits::count waiting_{0};
  std::atomic<bool> departed_{false};
  std::atomic<bool> given_up_{false};
  collectives::group_end end_;
  collectives::touching::count touched_{0};  // threads that may touch operations' memory
  std::mutex when_aborted_mutex_;
  std::function<void(const std::string&)> when_aborted_;
};

}  // namespace troupe::tcp
