// The launcher port: processes of ranks, seen from the side that starts them and from their own.
#pragma once

#include "backends/link.hpp"
#include "backends/process_control.hpp"
#include "troupe/detail/value_bytes.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// How a rank's process ended. `what` has a type: `signal` (with its name), `exit`, `start_failed`,
/// or `deadline` (the process was stopped for too long and the launcher killed it); and the hook,
/// epoch and step that its lane had entered last, if any.
struct process_end {
  failure what;
  bool clean = false;     ///< it ended by itself with code 0
  bool given_up = false;  ///< the launcher killed it after `release`, when its grace had passed
};

/// Called on a thread of the launcher's, one call at a time: never waits, never throws.
struct process_sink {
  std::function<void(link_message&&)> received;
  /// Once, behind the last message: nothing of the process is left, it is dead and reaped.
  std::function<void(process_end)> ended;
};

/// A rank's process, held by whoever started it. Thread-safe.
class rank_process {
public:
  /// Kills it, if it still lives, and does not wait. The sink is not called any more.
  virtual ~rank_process() = default;
  virtual void send(link_message what) = 0;
  /// The rank has ended and the process is to follow: the link is closed; what has not ended by
  /// itself after `grace` is killed. A process that makes progress gets its grace again, at most
  /// `graces_max` times in all.
  virtual void release(std::chrono::nanoseconds grace) = 0;
  static constexpr int graces_max = 16;
  /// A number that grows while the process makes progress (it uses the processor, or it connects);
  /// 0 when nothing is known. Two equal numbers mean: no progress between the two calls.
  virtual std::int64_t progress() const { return 0; }
};

/// What a rank's process is started with.
struct process_start {
  rank_start who;
  /// Open descriptors that it inherits, in this order, as `launcher_client::descriptors`.
  std::vector<int> descriptors;
  /// How tensors in values travel; may be null. Outlives the process.
  const tensor_bytes* tensors = nullptr;
  /// D: how long a process whose link broke may go on living. A child that is stopped (SIGSTOP) for
  /// max(4 D, 2 s) is killed and ends as `deadline`.
  std::chrono::nanoseconds detect = std::chrono::milliseconds{500};
};

/// Starts processes of ranks: this program again. Thread-safe. Destruction kills what is left and
/// waits until it is reaped.
class rank_launcher {
public:
  virtual ~rank_launcher() = default;
  /// Why `start` would start nothing; empty when it can start processes.
  virtual std::string unusable() const { return {}; }
  /// Never waits. Throws user_error when there is no descriptor left; a process that can not be
  /// started otherwise has `ended` with the reason.
  virtual std::unique_ptr<rank_process> start(process_start what, process_sink sink) = 0;
};

/// Children of this process: the same executable with arguments of its own (`launcher_client_of`
/// knows them), connected by a socket, all other descriptors but the standard ones closed. A child
/// dies with this process from its first instruction on, whatever it does.
///
/// Unusable until this process has called `launcher_client_of`: in a program that does not, each
/// child would run main as its user's program does, and start children of its own.
std::shared_ptr<rank_launcher> child_launcher();

/// Processes that something else has placed (mpirun), one per rank, which come to this one over TCP
/// and are told which rank of which job to be, job after job. This process is none of them: rank
/// 0's is a child of it, started with the first rank, which learns where to come first and hands
/// that on to the others (`placed_child`). A process that is gone does not come back: then every
/// further rank of that place is `start_failed`, and the end is no goodbye.
///
/// As the sink hears it, rank 0 ends as a child does; another ends with type `lost` when its
/// connection does. Destruction says goodbye and waits until rank 0's process has ended, 15 s at
/// most, then kills it; when a rank was lost or killed it does not say goodbye.
struct placed_options {
  std::int32_t world = 1;
  /// No rank is on another host: nobody else is to reach this process.
  bool one_host = true;
};
std::shared_ptr<rank_launcher> placed_launcher(const placed_options& options);

/// In the child of a placed_launcher that is rank 0's process: where all ranks' processes have to
/// come, to be handed on to `placed_client`. Else nothing. Reads what it inherited, once.
std::optional<std::string> placed_child(int count, const char* const* arguments);

/// In a rank's process: its way back.
class launcher_client {
public:
  virtual ~launcher_client() = default;
  virtual const rank_start& who() const = 0;
  virtual link& control() = 0;
  virtual const std::vector<int>& descriptors() const = 0;
  /// How tensors in values travel; before the first of them is sent.
  virtual void carry(const tensor_bytes* tensors) = 0;
  /// Leaves word that the lane enters a hook, where it outlives this process. Any one thread.
  virtual void enter(const hook& what) noexcept = 0;
  /// Hears the link in the calling thread until it is closed or lost. True when it was closed by
  /// the other side.
  virtual bool serve(std::function<void(link_message&&)> received) = 0;
};

/// The other end of what a launcher started, if these are the arguments of such a process; else
/// null. To be called first in main: it makes this process ignore SIGINT, SIGTERM and SIGHUP
/// (whoever started it hears them and ends the rank in order) and die with its parent. Throws
/// internal_error for arguments that only look like it.
///
/// The process remembers the call: without it `child_launcher` starts nothing. That is one flag of
/// the whole process, which is never reset.
std::unique_ptr<launcher_client> launcher_client_of(int count, const char* const* arguments);

/// Whether a launcher started this process to be a rank: its command line says so, as the kernel
/// keeps it (/proc/self/cmdline, read once). Such a process starts no job, whether it has called
/// `launcher_client_of` or not. Thread-safe.
bool started_as_rank();

/// The same in a process that something else has placed as `rank`: comes to where `summons` says,
/// and waits there for the next rank to be, as long as that takes. Null: there will be no more.
/// Throws user_error (membership) when nobody is there, or nobody any more. SIGINT, SIGTERM and
/// SIGHUP are ignored from then on.
std::unique_ptr<launcher_client> placed_client(std::int32_t rank, const std::string& join_info);

}  // namespace troupe
