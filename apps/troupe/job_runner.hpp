// Runs jobs on an event loop of the program's own, stopped by SIGINT, SIGTERM and SIGHUP, or by a
// request to the control socket.
#pragma once

#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

#include <functional>
#include <memory>
#include <string>

namespace troupe::program {

/// The first signal ends the job at a step boundary, the second at once, the third the program. A
/// SIGHUP counts only as the first signal, because a terminal that closes sends it several times.
/// A SIGHUP that is ignored at construction (nohup) stays ignored.
/// It handles signals from construction to destruction, between jobs too. For one thread.
class job_runner {
public:
  /// `run`, `signal` and `signals` call `notify` for each signal, with the signals counted so far.
  job_runner(ports world, std::function<void(int signal, int count)> notify);
  ~job_runner();
  job_runner(const job_runner&) = delete;
  job_runner& operator=(const job_runner&) = delete;

  /// Serves a control socket in `folder` while jobs run. Throws user_error as control_socket does.
  void serve(const std::string& folder,
             std::function<std::string(const std::string& request)> answer);
  /// Serves `text` on `port` of 127.0.0.1 until `serve_no_more`, and returns the port. Throws
  /// user_error as program::serve_metrics does.
  std::uint16_t serve_metrics(std::uint16_t port, std::function<std::string()> text);
  /// Removes the control socket, if there is one, and serves no more metrics.
  void serve_no_more();

  /// Waits for the job. It is stopped from its start on when a stop was wanted before.
  job_outcome run(job what);
  /// Stops the job that runs, and later ones at their start. `now`: ends it at once.
  void stop(bool now);
  /// Asks the job that runs for so many processes of ranks.
  void scale(std::int32_t ranks);

  /// The first signal so far; 0: none.
  int signal();
  /// A signal or a call of `stop` has asked for an end so far.
  bool stopped();
  /// The same, for handlers of the event loop: of the signals that were handled.
  bool stopping() const;
  /// The second signal, or a call of `stop`, has asked for an end at once.
  bool ended_at_once() const;

  /// For the end of a call: SIGINT, SIGTERM and SIGHUP change nothing after the destructor, until
  /// another runner is made. The call has its result, and its exit code stands while it exits.
  static void ignore_later_signals();

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe::program
