// A link over a connected Unix stream socket.
#pragma once

#include <boost/asio/io_context.hpp>

#include <memory>
#include <optional>

#include "backends/link.hpp"
#include "backends/processes/message_assembler.hpp"

namespace troupe {

/// Messages that may wait to be taken by the other side; past it the link is lost. Snapshots and
/// values are not counted by size: they are the sender's memory, and no sender holds many.
inline constexpr std::size_t link_queue_limit = 8192;

/// What `lost` says when the other side has ended the link in order.
inline constexpr const char* link_closed_by_peer = "the other side has closed the link";

/// Sends in the calling thread while the socket takes it, so that a process which is killed a
/// moment later has said what it said; the rest is sent by the thread that runs `loop`, which also
/// hears.
class link_stream : public link {
public:
  /// Owns `socket` from here on. `loop` outlives it.
  link_stream(boost::asio::io_context& loop, int socket, link_identity who);
  ~link_stream() override;

  void listen(link_sink sink) override;
  bool send(link_message what, keep how = keep::always, std::uint64_t tag = 0) override;
  bool withdraw(std::uint64_t tag) override;
  void close() override;

  /// How tensors in values travel; null (at first): they do not. Before the first of them.
  void carry(const tensor_bytes* tensors);
  /// Hears all that has arrived, now: the other side is known to be dead. On the loop's thread.
  void drain();

private:
  struct block;
  std::shared_ptr<block> block_;
};

}  // namespace troupe
