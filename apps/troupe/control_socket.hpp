// The socket in a run's folder through which other programs reach the one that runs there: one line
// in, one line out (docs/running.md).
#pragma once

#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace troupe::program {

inline constexpr const char* control_file = "control.sock";

/// The bytes of a request, its line end included. The connection of a longer one is closed.
inline constexpr std::size_t control_request_max = 4096;
/// One connection more closes the one that has been silent for longest.
inline constexpr std::size_t control_connections_max = 16;

/// Serves as long as `loop` runs, for processes of the same user (mode 0600). A client that does
/// not read gets no further answer and delays nothing. For one thread.
class control_socket {
public:
  /// Makes the answer to one line, both without a line end. Must not wait and not throw.
  using answer = std::function<std::string(const std::string& request)>;

  /// Replaces the socket that a dead program has left in `folder`; the caller holds the folder's
  /// lock. Throws user_error (bad_configuration): the folder has something else of this name, or
  /// cannot hold a socket.
  control_socket(boost::asio::io_context& loop, const std::string& folder, answer how);
  /// Closes all connections and removes the file.
  ~control_socket();
  control_socket(const control_socket&) = delete;
  control_socket& operator=(const control_socket&) = delete;

private:
  struct server;
  std::shared_ptr<server> server_;
};

/// Sends one line to the program that runs in `folder` and returns its answer. Nothing: no program
/// serves there. Waits at most 10 s, then it throws user_error (job_failed).
std::optional<std::string> ask_program(const std::string& folder, const std::string& request);

}  // namespace troupe::program
