// The link port: control messages between a supervisor and a rank in another process.
#pragma once

#include "messages/link.hpp"

#include <functional>
#include <string>

namespace troupe {

/// What becomes of a message when the link is slower than its sender.
enum class keep : std::uint8_t {
  always,           ///< queued; past the link's bound the link is lost
  until_withdrawn,  ///< queued; its sender may take it back with `withdraw` while it waits
  if_room,          ///< dropped while the queue is half full
};

/// Called on a thread of the link's, one call at a time: never waits, never throws.
struct link_sink {
  /// In the order sent.
  std::function<void(link_message&&)> received;
  /// Once, behind the last message: the other side is gone, said something that is no message, or
  /// does not take what is sent. Not called once `close` was.
  std::function<void(std::string why)> lost;
};

/// One end. Thread-safe. Messages arrive once, in order, or not at all: then the link is lost.
class link {
public:
  /// Ends at once; what still waits is not sent. No call of the sink is running or follows.
  virtual ~link() = default;

  /// Begins to hear, once. What was sent before waits.
  virtual void listen(link_sink sink) = 0;
  /// Never waits. False when it was `if_room` and there was none. Throws user_error when the
  /// message can not travel (a user's type in a value); after a loss it does nothing.
  /// `tag` is the sender's name for a message that it may withdraw.
  virtual bool send(link_message what, keep how = keep::always, std::uint64_t tag = 0) = 0;
  /// Takes back the message that was sent as `until_withdrawn` with this tag. False when no such
  /// message waits: it is on its way, in part or whole, or the link is lost.
  virtual bool withdraw(std::uint64_t tag) = 0;
  /// What waits is still sent; then the other side hears an end. Idempotent.
  virtual void close() = 0;
};

}  // namespace troupe
