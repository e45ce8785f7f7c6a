#include "backends/processes/link_stream.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "backends/wire/heartbeat_machine.hpp"
#include "troupe/detail/coverage.hpp"

namespace troupe {

namespace asio = boost::asio;

namespace {

// One message to send: its prefix, head and attachments; `sent` bytes have been sent.
struct outgoing {
  std::vector<std::byte> prefix;
  packed_message what;
  keep how = keep::always;
  std::size_t sent = 0;
  std::uint64_t tag = 0;
};

// At most so many pieces are handed to the kernel at once.
constexpr std::size_t pieces_max = 64;
using pieces = std::array<iovec, pieces_max>;

// Adds the unsent part of `bytes` when `skip` bytes of the message have been sent.
void add_piece(pieces& into, std::size_t& count, const std::vector<std::byte>& bytes,
               std::size_t& skip) {
  const auto gone = std::min(skip, bytes.size());
  skip -= gone;
  if (gone == bytes.size() || count == pieces_max) return;
  into[count++] = {const_cast<std::byte*>(bytes.data()) + gone, bytes.size() - gone};
}

std::size_t pieces_of(const outgoing& one, pieces& into) {
  std::size_t count = 0;
  auto skip = one.sent;
  add_piece(into, count, one.prefix, skip);
  add_piece(into, count, one.what.head, skip);
  for (const auto& bytes : one.what.attachments) add_piece(into, count, *bytes, skip);
  return count;
}

}  // namespace

// Exists until the loop has released it.
struct link_stream::block : std::enable_shared_from_this<block> {
  block(asio::io_context& loop, int fd, link_identity who, link_heartbeats how)
      : socket(loop, asio::local::stream_protocol{}, fd),
        incoming(who),
        patience(how.patience),
        silence_counts(how.silence_counts),
        next_beat(loop) {
    socket.non_blocking(true);
    queue.push_back({link_greeting(who, patience), {}, keep::always, 0, 0});
  }

  asio::local::stream_protocol::socket socket;
  std::atomic<const tensor_bytes*> tensors{nullptr};

  std::mutex sending;  // guards the next five
  std::deque<outgoing> queue;
  bool armed = false;    // the loop waits until the socket takes more
  bool deaf = false;     // the peer does not read any more
  bool closing = false;  // an end is to follow the last message
  bool shut = false;

  std::atomic<bool> sent{false};  // bytes, since the last beat

  // The loop's thread only, up to `over`.
  message_assembler incoming;
  std::chrono::nanoseconds patience;
  const bool silence_counts;
  heartbeat_machine beats;
  std::atomic<std::int64_t> arrived{0};
  std::atomic<std::int64_t> attached{0};  // of them
  asio::steady_timer next_beat;
  bool over = false;  // `lost` was called or must not be

  std::mutex sink_guard;  // guards the sink: held while it is called
  link_sink sink;

  // --- sending ---------------------------------------------------------------------------------

  bool send(packed_message what, keep how, std::uint64_t tag) {
    const std::lock_guard lock(sending);
    if (deaf || closing) return true;
    if (how == keep::if_room && queue.size() >= link_queue_limit / 2) return false;
    if (sometimes(queue.size() >= link_queue_limit, coverage_point::link_full)) {
      deaf = true;
      queue.clear();
      asio::post(socket.get_executor(), [self = shared_from_this()] {
        self->lose(fmt::format("the other side does not take what is sent: {} messages wait",
                               link_queue_limit));
      });
      return true;
    }
    auto prefix = message_prefix(what);
    queue.push_back({std::move(prefix), std::move(what), how, 0, tag});
    if (!armed) write_some();
    return true;
  }

  bool withdraw(std::uint64_t tag) {
    const std::lock_guard lock(sending);
    return std::erase_if(queue, [tag](const outgoing& x) {
             return x.how == keep::until_withdrawn && x.tag == tag && x.sent == 0;
           }) > 0;
  }

  void close() {
    const std::lock_guard lock(sending);
    closing = true;
    if (!armed) write_some();
  }

  // Called with `sending` held. The loop sends the bytes that the socket does not take now.
  void write_some() {
    while (!queue.empty()) {
      pieces parts{};
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = pieces_of(queue.front(), parts);
      if (message.msg_iovlen == 0) {
        queue.pop_front();
        continue;
      }
      const auto size = ::sendmsg(socket.native_handle(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size >= 0) {
        queue.front().sent += static_cast<std::size_t>(size);
        sent = true;
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return arm();
      } else if (errno != EINTR) {
        // The peer is gone. Its last messages may still be unread; the reader reports the loss.
        deaf = true;
        queue.clear();
      }
    }
    if (closing && !std::exchange(shut, true)) ::shutdown(socket.native_handle(), SHUT_WR);
  }

  void arm() {
    armed = true;
    asio::post(socket.get_executor(), [self = shared_from_this()] {
      self->socket.async_wait(asio::socket_base::wait_write,
                              [self](const boost::system::error_code& error) {
                                const std::lock_guard lock(self->sending);
                                self->armed = false;
                                if (!error) self->write_some();
                              });
    });
  }

  // --- receiving, on the loop's thread -----------------------------------------------------------

  void wait_for_bytes() {
    socket.async_wait(asio::socket_base::wait_read,
                      [self = shared_from_this()](const boost::system::error_code& error) {
                        if (error || self->over) return;
                        if (self->read(reads_at_once)) self->wait_for_bytes();
                      });
  }

  // Gives other handlers of this loop their turn.
  static constexpr int reads_at_once = 16;

  // False after the last message.
  bool read(int times) {
    for (int i = 0; i < times && !over; ++i) {
      const auto room = incoming.room();
      const auto size = ::recv(socket.native_handle(), room.data(), room.size(), MSG_DONTWAIT);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (size <= 0) {
        // A peer that dies before it has read all resets the connection.
        lose(size == 0 || errno == ECONNRESET ? link_closed_by_peer : std::strerror(errno));
        return false;
      }
      arrived += size;
      if (incoming.in_attachment()) attached += size;
      if (silence_counts) beats.received();
      try {
        incoming.filled(static_cast<std::size_t>(size));
        if (patience == patience.zero()) begin_to_beat(incoming.patience());
        while (auto one = incoming.next())
          deliver(unpack(one->head, one->attachments, tensors.load()));
      } catch (const std::exception& error) {
        lose(error.what());
        return false;
      }
    }
    return !over;
  }

  // --- heartbeats, on the loop's thread ----------------------------------------------------------

  void begin_to_beat(std::chrono::nanoseconds wanted) {
    if (wanted == wanted.zero()) return;
    patience = wanted;
    wait_for_beat();
  }

  void wait_for_beat() {
    next_beat.expires_after(heartbeat_interval(patience));
    next_beat.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (error || self->over) return;
      // What has arrived counts, also when this thread did not run for a while.
      if (!self->read(reads_at_once)) return;
      self->beat();
      if (!self->over) self->wait_for_beat();
    });
  }

  void beat() {
    if (sent.exchange(false)) beats.sent();
    switch (beats.beat()) {
      case heartbeat_machine::action::none: return;
      case heartbeat_machine::action::send_beat: return send_beat();
      case heartbeat_machine::action::lost:
        return lose(fmt::format("{} for {:.1f} s", link_silent,
                                std::chrono::duration<double>(patience).count()));
    }
  }

  // None is added to messages that wait for the peer to read.
  void send_beat() {
    const std::lock_guard lock(sending);
    if (deaf || closing || !queue.empty()) return;
    queue.push_back({heartbeat(), {}, keep::always, 0, 0});
    write_some();
    sent = false;
  }

  void deliver(link_message what) {
    const std::lock_guard lock(sink_guard);
    if (sink.received) sink.received(std::move(what));
  }

  void lose(const std::string& why) {
    if (std::exchange(over, true)) return;
    next_beat.cancel();
    {
      const std::lock_guard lock(sending);
      // A peer that has ended its own side may still read.
      if (why != link_closed_by_peer) {
        deaf = true;
        queue.clear();
      }
      if (closing) return;
    }
    const std::lock_guard lock(sink_guard);
    if (sink.lost) sink.lost(why);
  }
};

link_stream::link_stream(asio::io_context& loop, int socket, link_identity who, link_heartbeats how)
    : block_(std::make_shared<block>(loop, socket, who, how)) {}

link_stream::~link_stream() {
  {
    const std::lock_guard lock(block_->sink_guard);
    block_->sink = {};
  }
  {
    const std::lock_guard lock(block_->sending);
    block_->deaf = true;
    block_->queue.clear();
  }
  // Ends all operations that the loop still waits for.
  ::shutdown(block_->socket.native_handle(), SHUT_RDWR);
  asio::post(block_->socket.get_executor(), [b = block_] { b->next_beat.cancel(); });
}

void link_stream::listen(link_sink sink) {
  {
    const std::lock_guard lock(block_->sink_guard);
    block_->sink = std::move(sink);
  }
  {
    const std::lock_guard lock(block_->sending);
    if (!block_->armed) block_->write_some();  // the greeting
  }
  asio::post(block_->socket.get_executor(), [b = block_] {
    b->wait_for_bytes();
    b->begin_to_beat(b->patience);
  });
}

bool link_stream::send(link_message what, keep how, std::uint64_t tag) {
  return block_->send(pack(what, block_->tensors.load()), how, tag);
}

bool link_stream::withdraw(std::uint64_t tag) { return block_->withdraw(tag); }

void link_stream::close() { block_->close(); }

void link_stream::carry(const tensor_bytes* tensors) { block_->tensors = tensors; }

std::int64_t link_stream::received() const { return block_->arrived; }

std::int64_t link_stream::received_attached() const { return block_->attached; }

void link_stream::drain() {
  while (!block_->over && block_->read(1)) {
    // EAGAIN ends the reading without a loss: nothing can follow.
    char probe = 0;
    if (::recv(block_->socket.native_handle(), &probe, 1, MSG_DONTWAIT | MSG_PEEK) < 0) break;
  }
}

}  // namespace troupe
