// The link port: control messages between a supervisor and a rank in another process.
#pragma once

#include "messages/link.hpp"

#include <functional>
#include <string>

namespace troupe {

/// What happens to a message when the link is slower than its sender.
enum class keep : std::uint8_t {
  always,           ///< queued; a queue over the link's bound loses the link
  until_withdrawn,  ///< queued; its sender may take it back with `withdraw` while it waits
  if_room,          ///< dropped while the queue is half full
};

/// Called on a thread of the link, one call at a time. Must not block and not throw.
struct link_sink {
  /// In the order sent.
  std::function<void(link_message&&)> received;
  /// Once, after the last message: the other side has ended, sent bytes that are no message, or
  /// does not read. Not called after `close`.
  std::function<void(std::string why)> lost;
};

/// One end of a link. Thread-safe. Messages arrive once and in order, until the link is lost.
class link {
public:
  /// Ends at once; queued messages are not sent. No call of the sink is running or follows.
  virtual ~link() = default;

  /// Begins to receive; call it once. Messages that arrived before wait until then.
  virtual void listen(link_sink sink) = 0;
  /// Does not block. False when an `if_room` message was dropped. Throws user_error when the
  /// message cannot be encoded (a user's type in a value). After a loss it does nothing. `tag` is
  /// the sender's name for a message that it may withdraw.
  virtual bool send(link_message what, keep how = keep::always, std::uint64_t tag = 0) = 0;
  /// Removes the queued message that was sent as `until_withdrawn` with this tag. False when no
  /// such message waits: it was sent, at least in part, or the link is lost.
  virtual bool withdraw(std::uint64_t tag) = 0;
  /// Sends what is queued and then ends the link in order. Idempotent.
  virtual void close() = 0;
};

}  // namespace troupe
