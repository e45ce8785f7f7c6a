#include "backends/tcp/acceptor.hpp"

#include "backends/tcp/poller.hpp"
#include "backends/tcp/time_limit.hpp"
#include "troupe/failure.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <system_error>

namespace troupe::tcp {

namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;

namespace {

constexpr auto tupled = asio::as_tuple(asio::use_awaitable);
// The time for a connection to be made, and for a peer to send a hello. Even a machine that swaps
// needs less, and a process does not count the time in which it was stopped itself.
constexpr std::chrono::seconds handshake_limit{5};
// The time for peers to receive a rank's last frame.
constexpr std::chrono::seconds linger_limit{2};
constexpr milliseconds retry_first{1};
constexpr milliseconds retry_last{50};
// Connections in a row that had no descriptor: 5 s, in which other parts may give some back.
constexpr int lacking_max = 100;
// Connections without a hello, besides as many as the peers of open groups dial.
constexpr std::size_t strangers_max = 64;

// Keepalive detects a host that has failed. TCP_USER_TIMEOUT would detect it sooner while data is
// in flight, but it also ends connections to ranks that are only stopped.
void tune(tcp::socket& socket) {
  using asio::detail::socket_option::integer;
  boost::system::error_code ignored;  // a slower connection is one
  socket.set_option(tcp::no_delay{true}, ignored);
  socket.set_option(asio::socket_base::keep_alive{true}, ignored);
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPIDLE>{15}, ignored);  // seconds
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPINTVL>{5}, ignored);
  socket.set_option(integer<IPPROTO_TCP, TCP_KEEPCNT>{9}, ignored);
}

file_descriptor released(tcp::socket socket) {
  boost::system::error_code failed;
  file_descriptor result{socket.release(failed)};
  if (failed) throw internal_error("tcp: a socket cannot be released: " + failed.message());
  return result;
}

// Waits for a descriptor that another object owns: it is not closed, also when the coroutine is
// destroyed while it waits.
class lent_descriptor {
public:
  lent_descriptor(asio::io_context& context, int fd) : one_(context, fd) {}
  ~lent_descriptor() { one_.release(); }
  lent_descriptor(const lent_descriptor&) = delete;
  lent_descriptor& operator=(const lent_descriptor&) = delete;
  auto readable() { return one_.async_wait(asio::posix::stream_descriptor::wait_read, tupled); }

private:
  asio::posix::stream_descriptor one_;
};

// Ends the pending operations of a socket, and makes later ones fail.
void close_quietly(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.close(ignored);
}

// Ends the pending operations of a socket.
void cancel_quietly(tcp::socket& socket) {
  boost::system::error_code ignored;
  socket.cancel(ignored);
}

// Higher ranks dial.
std::size_t dialed_by_peers(const group_description& who, std::size_t streams) {
  return static_cast<std::size_t>(who.world - 1 - who.rank) * streams;
}

// A connection of this number is still to be made.
bool is_wanted(const mesh& who, std::uint16_t stream) {
  return !who.given_up() && (stream == 0 || !who.over());
}

std::string named(const hello& who) {
  return fmt::format("generation {} of job {}", who.generation.value(), who.job.value());
}

}  // namespace

acceptor::acceptor(tcp_options options)
    : options_(std::move(options)),
      rendezvous_(options_.rendezvous ? options_.rendezvous
                                      : std::make_shared<tcp_address_book>()) {}

acceptor::~acceptor() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock hold{mutex_};
    less_.wait_for(hold, linger_limit + handshake_limit, [&] { return tended_ == 0; });
  }
  context_.stop();
  thread_.join();
}

tcp_address acceptor::listen() {
  const std::lock_guard hold{mutex_};
  if (!acceptor_.is_open()) {
    const auto& at = options_.listen;
    try {
      const tcp::endpoint endpoint =
          *tcp::resolver{context_}.resolve(at.host, std::to_string(at.port)).begin();
      tcp::acceptor fresh{context_, endpoint.protocol()};
      fresh.set_option(tcp::acceptor::reuse_address{true});
      fresh.bind(endpoint);
      fresh.listen();
      acceptor_ = std::move(fresh);
    } catch (const boost::system::system_error& error) {
      if (lacks_descriptors(error.code().value()))
        throw user_error(errc::device, no_descriptor("a listener"));
      throw user_error(errc::device,
                       fmt::format("tcp cannot listen at {}: {}; choose another address or port",
                                   to_string(at), error.code().message()));
    }
    start();
  }
  return {options_.advertise.empty() ? options_.listen.host : options_.advertise,
          acceptor_.local_endpoint().port()};
}

// Without the thread it does not listen, so that a later generation begins again.
void acceptor::start() {
  try {
    thread_ = std::thread{[this] {
      asio::co_spawn(context_, accept(), asio::detached);
      context_.run();
    }};
  } catch (const std::system_error& error) {
    boost::system::error_code ignored;
    acceptor_.close(ignored);
    throw user_error(errc::device,
                     fmt::format("tcp: no thread for a listener: {}; raise the limit (ulimit -u)",
                                 error.what()));
  }
}

std::shared_ptr<mesh> acceptor::enter(const group_description& who) {
  const auto address = listen();
  auto fresh = std::make_shared<mesh>(who, options_.streams);
  // The higher one of two ranks dials.
  fresh->dials(who.rank * options_.streams);
  {
    const std::lock_guard hold{mutex_};
    const auto [known, first] = histories_.try_emplace({who.job, who.rank});
    auto& newest = known->second.newest;
    if (!first && who.generation <= newest)
      throw internal_error(
          fmt::format("generation {} of job {}: rank {} opened generation {} before",
                      who.generation.value(), who.job.value(), who.rank, newest.value()));
    newest = who.generation;
    open_[{who.job, who.generation, who.rank}] = fresh;
    tended_ += 1 + static_cast<std::size_t>(who.rank) * options_.streams;
    dialed_here_ += dialed_by_peers(who, options_.streams);
  }
  rendezvous_->publish(who, address);
  asio::co_spawn(context_, look_after(fresh), asio::detached);
  for (std::int32_t rank = 0; rank < who.rank; ++rank)
    for (std::uint16_t stream = 0; stream < options_.streams; ++stream)
      asio::co_spawn(context_, dial(fresh, rank, stream), asio::detached);
  return fresh;
}

void acceptor::leave(const group_description& who) noexcept {
  const std::lock_guard hold{mutex_};
  const auto found = open_.find({who.job, who.generation, who.rank});
  if (found == open_.end()) return;
  auto& past = histories_[{who.job, who.rank}];
  try {
    if (found->second->aborted() && past.aborted < who.generation) {
      past.why = found->second->why();
      past.aborted = who.generation;
    }
  } catch (const std::bad_alloc&) {  // peers that dial late learn only that the rank has left
  }
  dialed_here_ -= dialed_by_peers(who, options_.streams);
  open_.erase(found);
}

std::size_t acceptor::meshes() const {
  const std::lock_guard hold{mutex_};
  return tended_;
}

std::size_t acceptor::dialed_here() const {
  const std::lock_guard hold{mutex_};
  return dialed_here_;
}

void acceptor::tend() {
  const std::lock_guard hold{mutex_};
  ++tended_;
}

// Posted, so that the calling coroutine's frame is destroyed before `tended_` falls.
void acceptor::untend() {
  asio::post(context_, [this] {
    const std::lock_guard hold{mutex_};
    --tended_;
    less_.notify_all();
  });
}

asio::awaitable<void> acceptor::look_after(std::shared_ptr<mesh> who) {
  asio::steady_timer limit{context_};
  bool over = false;
  bool departed = false;
  {
    lent_descriptor due{context_, who->poller_fd()};
    for (;;) {
      const auto [failed] = co_await due.readable();
      if (failed || !who->attend()) break;
      const bool ended = who->over() && !std::exchange(over, true);
      const bool left = who->departed() && !std::exchange(departed, true);
      if (ended || left) {
        limit.expires_after(linger_limit);
        limit.async_wait([who](const boost::system::error_code& stopped) {
          if (!stopped) who->close_all();
        });
      }
    }
  }
  limit.cancel();
  who.reset();
  untend();
}

asio::awaitable<void> acceptor::accept() {
  asio::steady_timer pause{context_};
  for (;;) {
    tcp::socket from{context_};
    const auto [failed] = co_await acceptor_.async_accept(from, tupled);
    if (!failed) {
      asio::co_spawn(context_, receive(std::move(from)), asio::detached);
    } else if (failed == asio::error::operation_aborted) {
      co_return;
    } else {  // most likely no descriptor is left: others may be given back
      pause.expires_after(retry_last);
      co_await pause.async_wait(tupled);
    }
  }
}

asio::awaitable<void> acceptor::receive(socket from) {
  // A rank sends its hello soon, so the connection that has been silent for longest is closed.
  if (strangers_.size() >= strangers_max + dialed_here()) {
    close_quietly(*strangers_.begin()->second);
    strangers_.erase(strangers_.begin());
  }
  const auto number = next_stranger_++;
  strangers_[number] = &from;
  time_limit limit{context_, handshake_limit, [&from] { close_quietly(from); }};
  hello_block block;
  const auto [cut, bytes] = co_await asio::async_read(from, asio::buffer(block), tupled);
  strangers_.erase(number);
  // From the answer on the peer counts the connection. Its few bytes are in the socket at once.
  limit.stop();
  if (cut) co_return;
  hello said;
  try {
    said = decode_hello(block);
  } catch (const wire_error&) {
    co_return;  // another protocol: no answer is possible
  }
  tend();
  const auto [verdict, to] = judge(said);
  const auto reply = encode(verdict);
  const auto [broken, written] = co_await asio::async_write(from, asio::buffer(reply), tupled);
  if (!broken && to) {
    tune(from);
    to->adopt(said.from, said.stream, released(std::move(from)));
  }
  untend();
}

std::pair<answer, std::shared_ptr<mesh>> acceptor::judge(const hello& from) const {
  const auto no = [](answer_code code, std::string text) {
    return std::pair{answer{.code = code, .text = std::move(text)}, std::shared_ptr<mesh>{}};
  };
  if (from.version != wire_version)
    return no(answer_code::other_version,
              fmt::format("it speaks version {}, not {}", wire_version, from.version));
  if (!same_secret(from.secret, options_.secret))
    return no(answer_code::wrong_secret, "the secret is another");
  const std::lock_guard hold{mutex_};
  const auto found = open_.find({from.job, from.generation, from.to});
  if (found == open_.end()) {
    const auto past = histories_.find({from.job, from.to});
    if (past == histories_.end() || past->second.newest < from.generation)
      return no(answer_code::not_open, named(from) + " is not open there yet");
    if (past->second.aborted == from.generation) return no(answer_code::aborted, past->second.why);
    return no(answer_code::left, named(from) + " is over there");
  }
  auto& to = *found->second;
  if (to.group().world != from.world)
    return no(answer_code::other_world, fmt::format("rank {} says its world is {}, others said {}",
                                                    from.from, from.world, to.group().world));
  if (from.from <= from.to || from.from >= from.world)
    return no(answer_code::wrong_rank,
              fmt::format("rank {} does not dial rank {}", from.from, from.to));
  if (from.streams != to.streams())
    return no(answer_code::other_streams,
              fmt::format("rank {} has {} connections to each rank, rank {} has {}", from.from,
                          from.streams, from.to, to.streams()));
  if (from.stream >= to.streams())
    return no(answer_code::wrong_stream,
              fmt::format("there is no connection {} of {}", from.stream, to.streams()));
  if (to.has(from.from, from.stream))
    return no(answer_code::duplicate, fmt::format("rank {} is connected already", from.from));
  return {answer{.secret = options_.secret}, found->second};
}

asio::awaitable<void> acceptor::dial(std::shared_ptr<mesh> who, std::int32_t rank,
                                     std::uint16_t stream) {
  asio::steady_timer pause{context_};
  int lacking = 0;
  for (auto delay = retry_first; is_wanted(*who, stream); delay = std::min(2 * delay, retry_last)) {
    std::optional<tcp_address> at;
    try {
      at = rendezvous_->find(who->group(), rank);
    } catch (const std::exception& error) {
      who->abort(fmt::format("no address of rank {}: {}", rank, error.what()));
      break;
    }
    if (at && co_await call(*who, rank, stream, *at, lacking)) break;
    if (lacking == lacking_max) {
      who->abort(no_descriptor(fmt::format("a connection to rank {}", rank)));
      break;
    }
    pause.expires_after(delay);
    co_await pause.async_wait(tupled);
  }
  who->dialed();
  who.reset();
  untend();
}

asio::awaitable<bool> acceptor::call(mesh& who, std::int32_t rank, std::uint16_t stream,
                                     tcp_address at, int& lacking) {
  tcp::socket link{context_};
  boost::system::error_code no_literal;
  const auto literal = asio::ip::make_address(at.host, no_literal);
  tcp::resolver resolver{context_};
  tcp::resolver::results_type places;
  if (no_literal) {
    auto [unknown, found] =
        co_await resolver.async_resolve(at.host, std::to_string(at.port), tupled);
    if (unknown) co_return false;
    places = found;
  } else {
    places = tcp::resolver::results_type::create(tcp::endpoint{literal, at.port}, at.host, "");
  }
  time_limit limit{context_, handshake_limit, [&link] { close_quietly(link); }};
  const auto [refused, place] = co_await asio::async_connect(link, places, tupled);
  // Asio reports a socket that it cannot open as one that was closed meanwhile.
  boost::system::error_code full;
  if (refused) tcp::socket{context_}.open(tcp::v4(), full);
  lacking = full == asio::error::no_descriptors ? lacking + 1 : 0;
  limit.stop();
  if (refused) co_return false;
  tune(link);
  const auto& group = who.group();
  const auto block = encode(hello{.secret = options_.secret,
                                  .job = group.job,
                                  .generation = group.generation,
                                  .world = group.world,
                                  .from = group.rank,
                                  .to = rank,
                                  .stream = stream,
                                  .streams = who.streams()});
  const auto [unwritten, written] = co_await asio::async_write(link, asio::buffer(block), tupled);
  if (unwritten) co_return false;
  // The peer counts the connection from its answer on: if it were closed while a busy or stopped
  // process is late, the peer would take this rank for lost. So the wait ends with the connection,
  // or after the group.
  answer_block reply;
  for (std::size_t got = 0; got < reply.size();) {
    const time_limit look{context_, handshake_limit, [&link] { cancel_quietly(link); }};
    const auto [failed, more] = co_await link.async_read_some(asio::buffer(reply) + got, tupled);
    got += more;
    const bool late = failed == asio::error::operation_aborted;
    if (failed && !(late && is_wanted(who, stream))) co_return false;
  }
  co_return take(who, rank, stream, at, reply, std::move(link));
}

bool acceptor::take(mesh& who, std::int32_t rank, std::uint16_t stream, const tcp_address& at,
                    const answer_block& reply, socket link) {
  const auto refused = [&](std::string_view why) {
    who.abort(fmt::format("rank {} at {} refuses rank {}: {}", rank, to_string(at),
                          who.group().rank, why));
    return true;
  };
  try {
    const auto said = decode_answer(reply);
    if (said.code == answer_code::not_open) return false;
    if (said.code == answer_code::left) {
      who.without(rank);
      return true;
    }
    if (said.code == answer_code::aborted) {
      who.abort(said.text);
      return true;
    }
    if (said.code != answer_code::welcome) return refused(said.text);
    if (!same_secret(said.secret, options_.secret)) return refused("it does not know the secret");
  } catch (const wire_error& error) {
    return refused(fmt::format("it {}", error.what()));
  }
  who.adopt(rank, stream, released(std::move(link)));
  return true;
}

}  // namespace troupe::tcp
