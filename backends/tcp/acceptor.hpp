// Creates connections, by accepting and dialing: one listener and one thread per process, for all
// its ranks and generations.
#pragma once

#include "backends/tcp/mesh.hpp"
#include "backends/tcp/tcp.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <condition_variable>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

namespace troupe::tcp {

/// Thread-safe. Accepts, dials, does the handshake, and drives meshes. Its destructor waits until
/// peers have received the last frames of departed ranks, 2 s at most.
class acceptor {
public:
  explicit acceptor(tcp_options options);
  ~acceptor();

  /// Binds and listens. Throws user_error with the fix.
  tcp_address listen();
  /// Makes a mesh reachable. Throws internal_error if the rank opened this generation or a later
  /// one before.
  std::shared_ptr<mesh> enter(const group_description& who);
  /// The rank's handle is destroyed.
  void leave(const group_description& who) noexcept;
  /// The number of meshes, dials and answers in progress. They hold all descriptors except the
  /// listener's and those of connections without a hello.
  std::size_t meshes() const;

private:
  void start();
  using socket = boost::asio::ip::tcp::socket;

  boost::asio::awaitable<void> accept();
  boost::asio::awaitable<void> receive(socket from);
  boost::asio::awaitable<void> dial(std::shared_ptr<mesh> who, std::int32_t rank,
                                    std::uint16_t stream);
  /// False: the caller has to try again. `lacking` counts calls in a row that had no descriptor.
  boost::asio::awaitable<bool> call(mesh& who, std::int32_t rank, std::uint16_t stream,
                                    tcp_address at, int& lacking);
  bool take(mesh& who, std::int32_t rank, std::uint16_t stream, const tcp_address& at,
            const answer_block& reply, socket link);
  boost::asio::awaitable<void> look_after(std::shared_ptr<mesh> who);
  std::pair<answer, std::shared_ptr<mesh>> judge(const hello& from) const;
  std::size_t dialed_here() const;
  void tend();
  void untend();

  const tcp_options options_;
  const std::shared_ptr<tcp_rendezvous> rendezvous_;
  boost::asio::io_context context_{1};
  boost::asio::ip::tcp::acceptor acceptor_{context_};
  std::thread thread_;
  mutable std::mutex mutex_;
  std::map<std::tuple<job_id, generation_id, std::int32_t>, std::shared_ptr<mesh>> open_;
  struct history {
    generation_id newest;                  ///< that the rank opened
    std::optional<generation_id> aborted;  ///< the newest that was aborted before its handle went
    std::string why;                       ///< the reason of that abort, for peers that dial late
  };
  std::map<std::pair<job_id, std::int32_t>, history> histories_;
  std::condition_variable less_;  // `tended_` has decreased
  std::size_t tended_ = 0;        // meshes, dials, answers
  std::size_t dialed_here_ = 0;   // connections that the peers of the open meshes dial
  // Connections that have not sent a hello yet, oldest first. The loop's thread only.
  std::map<std::uint64_t, socket*> strangers_;
  std::uint64_t next_stranger_ = 0;
};

}  // namespace troupe::tcp
