// MPI in this process: started once, driven by the waiting lane or by the engine's own thread.
#pragma once

#include "backends/mpi/group.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace troupe::mpi {

/// Thread-safe. One thread at a time calls MPI (MPI_THREAD_SERIALIZED): the one that holds the lock
/// moves all groups on.
class engine {
public:
  explicit engine(placed_rank place);
  /// Waits up to ten seconds for the groups to be closed everywhere; finalises MPI if they were.
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  void add(std::shared_ptr<group> fresh);
  /// See mpi_backend. Not while a group is open.
  std::string share(const std::string& text);
  /// Moves all groups on unless another thread is at it or MPI is still starting. False then.
  bool pump();
  /// Wakes the engine's thread. Call after there is something new to do.
  void wake() noexcept;

  /// Exists while a lane pumps: the engine's thread then sleeps longer.
  class waiter {
  public:
    explicit waiter(engine& of) : of_(of) { of_.waiters_.fetch_add(1); }
    ~waiter() { of_.waiters_.fetch_sub(1); }
    waiter(const waiter&) = delete;
    waiter& operator=(const waiter&) = delete;

  private:
    engine& of_;
  };
  /// Yields the core, for longer the more `turns` were idle.
  static void relax(int turns);

private:
  void run();
  bool start();
  void refuse(const std::string& why);
  bool pump_all();
  void rest(int idle_turns);
  void finish();

  const placed_rank place_;
  std::mutex mutex_;  // of everything below but the atomics, and of MPI
  std::vector<std::shared_ptr<group>> groups_;
  std::size_t opened_ = 0;  // groups that MPI knows
  std::optional<operations> arithmetic_;
  bool mine_ = false;  // this engine started MPI
  bool clean_ = true;  // no group was aborted
  std::string trouble_;

  std::mutex bell_;  // of the thread's sleep
  std::condition_variable rung_;
  bool woken_ = false;
  std::vector<std::shared_ptr<group>> fresh_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> ending_{false};
  std::atomic<int> waiters_{0};
  std::thread thread_;
};

}  // namespace troupe::mpi
