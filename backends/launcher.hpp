// The launcher port: processes of ranks, for the process that starts them and for the rank's own.
#pragma once

#include "backends/link.hpp"
#include "backends/process_identity.hpp"
#include "troupe/detail/value_bytes.hpp"
#include "troupe/observer.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// The hook that a rank's lane entered last.
struct last_hook {
  std::int32_t rank = 0;
  std::string name;
  std::int64_t epoch = undefined;
  std::int64_t step = undefined;
  friend bool operator==(const last_hook&, const last_hook&) = default;
};

/// How a process of ranks ended. The kind of `what` is `signal` (with its name), `exit`,
/// `start_failed`, or, when the launcher killed it, `deadline` (it was stopped for too long) or
/// `lost` (it sent nothing for too long, or what is no message).
struct process_end {
  failure what;
  bool clean = false;     ///< it ended by itself with code 0
  bool given_up = false;  ///< the launcher killed it after `release`, when its grace had passed
  std::vector<last_hook> hooks{};  ///< of the ranks that have entered one

  /// The failure of one of its ranks: with the rank, and its hook, epoch and step, if any.
  failure of_rank(std::int32_t rank) const {
    auto one = what;
    one.rank = rank;
    for (const auto& last : hooks) {
      if (last.rank != rank) continue;
      one.hook = last.name;
      one.epoch = last.epoch;
      one.step = last.step;
    }
    return one;
  }
};

/// Called on a thread of the launcher, one call at a time. Must not block and not throw.
struct process_sink {
  std::function<void(link_message&&)> received;
  /// Once, after the last message: none of the process's code runs any more. It is reaped, or the
  /// kernel still releases its memory.
  std::function<void(process_end)> ended;
};

/// A rank's process, owned by the code that started it. Thread-safe.
class rank_process {
public:
  /// Kills the process if it still runs, without waiting. The sink is not called any more.
  virtual ~rank_process() = default;
  virtual void send(link_message what) = 0;
  /// The rank has ended, and its process should end too: closes the link and kills the process if
  /// it still runs after `grace`. A process that makes progress gets another `grace`, at most
  /// `graces_max` in all.
  virtual void release(std::chrono::nanoseconds grace) = 0;
  static constexpr int graces_max = 16;
  /// A number that grows while the process makes progress (it uses the processor, it connects, or
  /// a launcher has placed it and it sends heartbeats);
  /// 0 when nothing is known. Two equal numbers mean: no progress between the two calls.
  virtual std::int64_t progress() const { return 0; }
  /// The bytes of snapshots that have arrived from it; of one that is still arriving, too.
  virtual std::int64_t snapshot_bytes() const { return 0; }
};

/// What a rank's process is started with.
struct process_start {
  process_identity who;
  /// Open descriptors that it inherits, in the order of `launcher_client::descriptors`.
  std::vector<int> descriptors;
  /// Encodes tensors in values; may be null. Outlives the process.
  const tensor_bytes* tensors = nullptr;
  /// D: how long a process may run after its link broke. A child that is stopped (SIGSTOP) for
  /// max(4 D, 2 s) is killed and ends as `deadline`. A process that sends nothing for max(20 D,
  /// 10 s) ends as `lost`.
  std::chrono::nanoseconds detect = std::chrono::milliseconds{500};
};

/// Processes that something else has started. None is started in place of one that has ended.
struct placed_processes {
  std::int32_t number = 0;  ///< that have not ended
  /// The others can go on without one that has ended. With MPI they cannot.
  bool outlive_loss = false;
};

/// Starts processes of ranks, which run this program. Thread-safe. Destruction kills the processes
/// that are left and waits until they are reaped.
class rank_launcher {
public:
  virtual ~rank_launcher() = default;
  /// Why no process can be started; empty if processes can be started.
  virtual std::string unusable() const { return {}; }
  /// Does not block. Throws user_error when the process has no descriptor left. If the start fails
  /// for another reason, `ended` is called with it.
  virtual std::unique_ptr<rank_process> start(process_start what, process_sink sink) = 0;
  /// Its processes, if something else has started them (mpirun, torchrun); else it starts as many
  /// as are wanted.
  virtual std::optional<placed_processes> placed() const { return std::nullopt; }
  /// False: all runs in one thread (a simulation), so nothing may wait.
  virtual bool has_threads() const { return true; }
};

/// Children of this process: the same executable with arguments that `launcher_client_of`
/// recognises, connected by a socket. They inherit no other descriptors but the standard ones. The
/// kernel kills a child when this process ends, from the child's first instruction on.
///
/// Unusable until this process has called `launcher_client_of`. In a program that never calls it,
/// each child would run main as the user's program does, and start children itself.
std::shared_ptr<rank_launcher> child_launcher();

/// Processes that something else has placed (mpirun, torchrun), each with a number from 0. They
/// connect to this process over TCP and receive the assignment to a job, for one job after the
/// other. This process is not one of them. Process 0 is its child, started with the first job; the
/// child learns the address first and passes it on to the others (`placed_child`). A process that
/// has ended is not replaced.
///
/// With `outlive_loss` process n of a job is the launcher's process n, or the first free one when
/// that has ended. Without, every further start of a process that has ended is `start_failed`.
///
/// Process 0 ends as a child does; another one ends with kind `lost` when its connection ends.
/// Destruction sends the shutdown message, waits at most 15 s until process 0 has ended and the
/// others have the message, and then kills process 0. Without `outlive_loss` it sends no message
/// once a process was lost or killed, because the others would wait for that one.
struct placed_options {
  std::int32_t world = 1;  ///< all of them
  /// All of them are on this host, so that other hosts cannot connect to this process.
  bool one_host = true;
  bool outlive_loss = false;  ///< placed_processes
  /// A descriptor that process 0 needs from its launcher: it has a copy at `kept_descriptor`.
  std::optional<int> keep{};
};
std::shared_ptr<rank_launcher> placed_launcher(const placed_options& options);

/// In the child of a placed_launcher (rank 0's process): the text with the address that all ranks'
/// processes need for `placed_client`. In any other process: nothing. Reads the inherited
/// descriptor once.
std::optional<std::string> placed_child(int count, const char* const* arguments);

/// In a rank's process: its connection to the process that started the rank.
class launcher_client {
public:
  virtual ~launcher_client() = default;
  virtual const process_identity& who() const = 0;
  virtual link& control() = 0;
  virtual const std::vector<int>& descriptors() const = 0;
  /// Sets the encoder of tensors in values, before the first of them is sent.
  virtual void carry(const tensor_bytes* tensors) = 0;
  /// Records that the rank's lane enters a hook, in memory that outlives this process. One thread
  /// at a time for each rank.
  virtual void enter(std::int32_t rank, const hook& what) noexcept = 0;
  /// Serves the link in the calling thread until it is closed or lost. `received` is called on
  /// another one, because it may run user code, and heartbeats must go on. True when the other side
  /// closed the link; then the last call of `received` has returned. False after a loss, or when
  /// that call does not return within a minute. It may still run: the process is to end without
  /// cleanup.
  virtual bool serve(std::function<void(link_message&&)> received) = 0;
  /// As rank_launcher::has_threads.
  virtual bool has_threads() const { return true; }
};

/// The connection to the launcher, if these are the arguments of a process that one started; else
/// null. Call it first in main. A rank's process then ignores SIGINT and SIGHUP, because its parent
/// receives them too and ends the rank in order, and is killed when its parent ends. SIGTERM is
/// blocked; while `serve` runs, the first one sends process_leaves to the parent.
/// Throws internal_error for arguments that only look like a rank's.
///
/// The call sets a flag of the whole process, which is never reset. Without it `child_launcher`
/// starts nothing.
std::unique_ptr<launcher_client> launcher_client_of(int count, const char* const* arguments);

/// Whether a launcher started this process as a rank, by the command line that the kernel keeps
/// (/proc/self/cmdline, read once). Such a process starts no job, whether it has called
/// `launcher_client_of` or not. Thread-safe.
bool started_as_rank();

/// The same in a process that something else has placed as `rank`: connects to the address in
/// `join_info` and waits there for its next assignment, without a limit. Null: no assignment will
/// follow. Throws user_error (membership) when no launcher answers, or it has ended. SIGINT,
/// SIGTERM and SIGHUP are ignored from then on.
std::unique_ptr<launcher_client> placed_client(std::int32_t rank, const std::string& join_info);

}  // namespace troupe
