// A link over a connected Unix stream socket.
#pragma once

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "backends/link.hpp"
#include "backends/processes/message_assembler.hpp"

namespace troupe {

/// The number of messages that may wait for the peer to read them; one more and the link is lost.
/// The size of snapshots and values does not count: the sender owns their memory and holds few.
inline constexpr std::size_t link_queue_limit = 8192;

/// The reason that `lost` gets when the peer has ended the link in order.
inline constexpr const char* link_closed_by_peer = "the other side has closed the link";

/// How the reason begins that `lost` gets when the peer was silent for too long.
inline constexpr const char* link_silent = "the other side was silent";

/// Heartbeats: both ends send an empty frame when they have sent nothing else for a fifth of the
/// patience (heartbeat_machine).
struct link_heartbeats {
  /// A peer that is silent for so long is lost. 0: as the peer's greeting says; no heartbeats if it
  /// says 0 as well.
  std::chrono::nanoseconds patience{0};
  /// False: this end sends heartbeats, and its peer may be silent.
  bool silence_counts = true;
};

/// Sends in the calling thread as long as the socket takes bytes, so that a message is out even if
/// the process is killed immediately afterwards. The thread that runs `loop` sends the rest and
/// receives.
class link_stream : public link {
public:
  /// Owns `socket` from here on. `loop` outlives it.
  link_stream(boost::asio::io_context& loop, int socket, link_identity who,
              link_heartbeats how = {});
  ~link_stream() override;

  void listen(link_sink sink) override;
  bool send(link_message what, keep how = keep::always, std::uint64_t tag = 0) override;
  bool withdraw(std::uint64_t tag) override;
  void close() override;

  /// Sets the encoding of tensors in values; before the first of them is sent. Null (the default):
  /// tensors cannot be sent.
  void carry(const tensor_bytes* tensors);
  /// Receives all that has arrived, because the peer is known to be dead. On the loop's thread.
  void drain();
  /// Bytes that have arrived, heartbeats included. Any thread.
  std::int64_t received() const;
  /// Those of attachments (snapshots, tensors in values) alone. Any thread.
  std::int64_t received_attached() const;

private:
  struct block;
  std::shared_ptr<block> block_;
};

}  // namespace troupe
