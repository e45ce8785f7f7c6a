// Runs jobs on an event loop of the program's own, stopped by SIGINT, SIGTERM and SIGHUP.
#pragma once

#include "troupe/job.hpp"
#include "troupe/ports.hpp"

#include <functional>
#include <memory>

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

  /// Waits for the job. It is stopped from its start on when a signal came before.
  job_outcome run(job what);
  /// The first signal so far; 0: none.
  int signal();
  /// The number of signals so far.
  int signals();

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace troupe::program
