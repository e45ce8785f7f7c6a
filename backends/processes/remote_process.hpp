// One incarnation of a rank in a process that another launcher (mpirun) has placed: the messages
// that wait for its connection, its link and its end.
#pragma once

#include <boost/asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/launcher.hpp"
#include "backends/processes/link_stream.hpp"

namespace troupe {

/// Call `send`, `forget_sink` and `received` from any thread, all other members on the loop's.
class remote_process : public std::enable_shared_from_this<remote_process> {
public:
  /// `lost` is called when the peer ended the link or it broke. `loop` outlives it.
  remote_process(boost::asio::io_context& loop, process_start what, process_sink sink,
                 std::function<void(const std::string& why)> lost);

  const process_start& what() const { return what_; }
  bool over() const { return over_; }
  bool begun() const { return begun_; }
  void send(link_message what);
  void forget_sink();
  /// Bytes that the process has sent, heartbeats included.
  std::int64_t received() const;
  std::int64_t received_attached() const;

  /// Its process has connected and has its assignment. Owns the socket.
  void begin(int socket);
  /// Receives all that has arrived, because the process is known to be dead.
  void drain();
  /// Reports the end, once. The sink gets nothing after it.
  void end(process_end how);

private:
  boost::asio::io_context& loop_;
  const process_start what_;
  bool begun_ = false;
  const std::function<void(const std::string&)> lost_;
  mutable std::mutex sending_;         // guards the next two
  std::vector<link_message> waiting_;  // until there is a link
  std::optional<link_stream> link_;
  std::mutex sink_guard_;  // guards the sink: held while it is called
  process_sink sink_;
  std::atomic<bool> over_{false};
};

}  // namespace troupe
