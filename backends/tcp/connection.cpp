#include "backends/tcp/connection.hpp"

#include "troupe/failure.hpp"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace troupe::tcp {

namespace {

// Room for the largest header with extension, and for many small frames at once.
constexpr std::size_t staging_bytes = 64u << 10;
static_assert(staging_bytes >= header_bytes + extension_max);
// Bytes between two checks for an abort.
constexpr std::size_t at_once = body_max;
// Bytes in one turn, so that other connections get their turn.
constexpr std::size_t turn_bytes = std::size_t{1} << 20;
constexpr std::size_t vectors_max = 32;

const std::array<std::byte, 4096> zeros{};
constexpr auto whole = static_cast<std::byte>(trailer::whole);
constexpr auto torn = static_cast<std::byte>(trailer::torn);

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

outgoing make_outgoing(frame_header header, std::span<const std::byte> extension) {
  header.extension_bytes = static_cast<std::uint32_t>(extension.size());
  const auto block = encode(header);
  outgoing result;
  result.head.reserve(block.size() + extension.size());
  result.head.assign(block.begin(), block.end());
  result.head.insert(result.head.end(), extension.begin(), extension.end());
  return result;
}

connection::connection(file_descriptor socket)
    : socket_(std::move(socket)), staging_(staging_bytes) {}

connection::state connection::end(std::string why) {
  why_ = std::move(why);
  return state::ended;
}

bool connection::queues(frame_kind kind) const {
  return std::any_of(queue_.begin(), queue_.end(), [&](const outgoing& frame) {
    // What `cut` leaves of a frame has no header.
    return frame.head.size() >= header_bytes &&
           decode_header(std::span{frame.head}.first<header_bytes>()).kind == kind;
  });
}

connection::state connection::flush(const std::atomic<bool>& stop, std::vector<outgoing>& sent) {
  while (!queue_.empty()) {
    if (stop.load(std::memory_order_seq_cst)) return state::open;
    std::array<iovec, vectors_max> vectors;
    std::size_t count = 0;
    std::size_t bytes = 0;
    std::size_t skip = gone_;
    const auto add = [&](const std::byte* from, std::size_t length) {
      const auto jump = std::min(skip, length);
      skip -= jump;
      if (length == jump) return;
      vectors[count++] = {const_cast<std::byte*>(from + jump), length - jump};
      bytes += length - jump;
    };
    for (const auto& frame : queue_) {
      if (count + 3 > vectors_max || bytes >= at_once) break;
      add(frame.head.data(), frame.head.size());
      add(frame.body, frame.body_bytes);
      add(&whole, frame.trailer_bytes());
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const auto took = ::sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (took < 0 && errno == EINTR) continue;
    if (took < 0)
      return would_wait(errno) ? state::open : end(std::system_category().message(errno));
    gone_ += static_cast<std::size_t>(took);
    while (!queue_.empty() && gone_ >= queue_.front().bytes()) {
      gone_ -= queue_.front().bytes();
      queued_ -= queue_.front().bytes();
      sent.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    if (static_cast<std::size_t>(took) < bytes) return state::open;
  }
  return state::open;
}

connection::state connection::receive(frame_receiver& to, const std::atomic<bool>& stop,
                                      bool& moved) {
  if (early_) {
    parse(to);
    if (early_) return state::open;
    moved = true;
  }
  for (std::size_t taken = 0; taken < turn_bytes;) {
    if (stop.load(std::memory_order_seq_cst)) return state::open;
    const auto direct = std::min(body_left_, at_once);
    // parse() has left less than a frame's header and extension at the front.
    std::array<iovec, 2> vectors{iovec{body_, direct},
                                 iovec{staging_.data() + end_, staging_.size() - end_}};
    msghdr message{};
    message.msg_iov = vectors.data() + (direct == 0 ? 1 : 0);
    message.msg_iovlen = direct == 0 ? 1 : direct < body_left_ ? 1 : 2;
    const auto room = direct + (direct < body_left_ ? 0 : staging_.size() - end_);
    const auto came = ::recvmsg(fd(), &message, MSG_DONTWAIT);
    if (came < 0 && errno == EINTR) continue;
    if (came < 0)
      return would_wait(errno) ? state::open : end(std::system_category().message(errno));
    if (came == 0) return end("it closed the connection");
    moved = true;
    const auto bytes = static_cast<std::size_t>(came);
    taken += bytes;
    const auto into_body = std::min(bytes, direct);
    end_ += bytes - into_body;
    if (into_body != 0) take_body(into_body);
    parse(to);
    if (early_ || bytes < room) return state::open;  // the latter: most likely drained
  }
  return state::open;
}

void connection::take_body(std::size_t bytes) {
  body_ += bytes;
  body_left_ -= bytes;
  trailing_ = body_left_ == 0;
}

void connection::take_trailer(std::byte what, frame_receiver& to) {
  trailing_ = false;
  if (decode_trailer(what) == trailer::whole) to.landed(header_);
}

void connection::parse(frame_receiver& to) {
  while (parse_one(to)) {
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ != 0) {
    std::memmove(staging_.data(), staging_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

bool connection::parse_one(frame_receiver& to) {
  const auto here = end_ - begin_;
  const std::span<const std::byte> unread{staging_.data() + begin_, here};
  if (body_left_ != 0) {
    const auto bytes = std::min(body_left_, here);
    if (bytes == 0) return false;
    std::memcpy(body_, unread.data(), bytes);
    begin_ += bytes;
    take_body(bytes);
    return true;
  }
  if (trailing_) {
    if (here == 0) return false;
    ++begin_;
    take_trailer(unread.front(), to);
    return true;
  }
  if (here < header_bytes) return false;
  header_ = decode_header(unread.first<header_bytes>());
  if (here < header_bytes + header_.extension_bytes) return false;
  early_ = to.early(header_);
  if (early_) return false;
  begin_ += header_bytes + header_.extension_bytes;
  body_ = to.frame(header_, unread.subspan(header_bytes, header_.extension_bytes));
  body_left_ = header_.body_bytes;
  if (body_left_ == 0)
    to.landed(header_);
  else if (!body_)
    throw internal_error("connection: a body without a place");
  return true;
}

void connection::cut(outgoing last) {
  std::deque<outgoing> kept;
  if (gone_ != 0) {
    const auto& begun = queue_.front();
    const auto of_head = std::min(gone_, begun.head.size());
    auto rest = begun.body_bytes - std::min(gone_ - of_head, begun.body_bytes);
    const auto end = rest == 0 ? whole : torn;
    const bool has_trailer = begun.trailer_bytes() != 0;
    if (of_head != begun.head.size())
      kept.push_back({.head = extension(begun.head.begin() + static_cast<std::ptrdiff_t>(of_head),
                                        begun.head.end())});
    for (; rest != 0; rest -= kept.back().body_bytes)
      kept.push_back({.body = zeros.data(), .body_bytes = std::min(rest, zeros.size())});
    if (has_trailer) kept.push_back({.head = {end}});
  }
  kept.push_back(std::move(last));
  queued_ = 0;
  for (const auto& frame : kept) queued_ += frame.bytes();
  queue_ = std::move(kept);
  gone_ = 0;
}

void connection::finish_sending() { ::shutdown(fd(), SHUT_WR); }

bool connection::drained() {
  for (;;) {
    const auto came = ::recv(fd(), staging_.data(), staging_.size(), MSG_DONTWAIT);
    if (came > 0 || (came < 0 && errno == EINTR)) continue;
    return came == 0 || !would_wait(errno);
  }
}

}  // namespace troupe::tcp
