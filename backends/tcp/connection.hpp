// One connected socket between two ranks: frames that wait to be sent, frames that come in. Bodies
// go from and to the memory of operations without a copy in between.
#pragma once

#include "backends/local/file_descriptor.hpp"
#include "backends/tcp/frame.hpp"

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::tcp {

struct operation;

/// Receives the frames of a connection. Throws wire_error to end the connection.
class frame_receiver {
public:
  virtual ~frame_receiver() = default;
  /// True while the frame depends on one that another connection has not delivered yet. `receive`
  /// asks again before it reads anything after this header.
  virtual bool early(const frame_header& header) = 0;
  /// A frame's header and extension. Returns where its body belongs, if it has one.
  virtual std::byte* frame(const frame_header& header, std::span<const std::byte> extension) = 0;
  /// The body of the last frame is complete in memory. Called right after `frame` if there is no
  /// body; never for a body that the sender did not finish.
  virtual void landed(const frame_header& header) = 0;
};

/// A frame that waits to be sent. `of` keeps the body's memory in use until it is.
struct outgoing {
  extension head;  ///< header and extension; empty: the rest of a body without its trailer
  const std::byte* body = nullptr;
  std::size_t body_bytes = 0;
  std::shared_ptr<operation> of;
  std::size_t member = 0;  ///< of the receiver in the operation's channel

  std::size_t trailer_bytes() const { return !head.empty() && body_bytes != 0 ? 1 : 0; }
  std::size_t bytes() const { return head.size() + body_bytes + trailer_bytes(); }
};
outgoing make_outgoing(frame_header header, std::span<const std::byte> extension = {});

/// Not thread-safe.
class connection {
public:
  enum class state : std::uint8_t { open, ended };

  explicit connection(file_descriptor socket);
  int fd() const { return socket_.get(); }

  void push(outgoing frame) {
    queued_ += frame.bytes();
    queue_.push_back(std::move(frame));
  }
  /// Passes to the kernel as many bytes as it accepts without waiting, and appends completely sent
  /// frames to `sent`. `ended`: the peer does not receive any more.
  state flush(const std::atomic<bool>& stop, std::vector<outgoing>& sent);
  bool backlog() const { return !queue_.empty(); }
  /// Bytes of frames that are not completely sent.
  std::size_t queued() const { return queued_; }
  /// A frame of that kind waits to be sent.
  bool queues(frame_kind kind) const;

  /// The next frame to be handled is early.
  bool early() const { return early_; }
  /// Reads what is there without waiting, a few chunks at most. `moved` is set if anything came.
  state receive(frame_receiver& to, const std::atomic<bool>& stop, bool& moved);
  /// The reason of an `ended`: what the kernel said, or that the peer closed the connection.
  const std::string& why() const { return why_; }

  /// Drops all frames that have not begun. The rest of a frame that has begun is sent as zeros, so
  /// that its memory is free from now on. Then sends `last`, and nothing after it.
  void cut(outgoing last);
  /// Shuts the sending side down; reads on and discards incoming bytes.
  void finish_sending();
  /// True when the peer has closed too.
  bool drained();

private:
  void parse(frame_receiver& to);
  bool parse_one(frame_receiver& to);
  void take_body(std::size_t bytes);
  void take_trailer(std::byte what, frame_receiver& to);
  state end(std::string why);

  file_descriptor socket_;
  std::deque<outgoing> queue_;
  std::size_t gone_ = 0;  // bytes of the first frame that are sent
  std::size_t queued_ = 0;
  std::vector<std::byte> staging_;
  std::size_t begin_ = 0;  // unread bytes in staging_: [begin_, end_)
  std::size_t end_ = 0;
  frame_header header_;        // of the frame whose body is on its way
  std::byte* body_ = nullptr;  // where the rest of it belongs
  std::size_t body_left_ = 0;
  bool trailing_ = false;  // its trailer is next
  bool early_ = false;     // the first frame in staging_
  std::string why_;
};

}  // namespace troupe::tcp
