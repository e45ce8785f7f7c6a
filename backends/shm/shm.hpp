// Collectives of ranks that are processes of one host: through shared memory without a name, so
// that nothing is left behind when all of them are killed.
#pragma once

#include "troupe/communicator.hpp"

#include <cstddef>
#include <memory>

namespace troupe {

/// How the shared memory of a job is laid out. Chosen once, by the process that creates the file.
struct shm_sizes {
  /// Staging memory of one rank and (sub)group is three times this, whatever the tensors' sizes.
  /// A multiple of 4096, up to 16 MiB.
  std::size_t slot_bytes = std::size_t{512} << 10;
  /// Addresses set aside for what `allocate` gives one rank in one generation; memory comes with
  /// use. Beyond it `allocate` gives ordinary memory, which is staged. A multiple of 2 MiB, up to 1
  /// TiB.
  std::size_t registered_bytes = std::size_t{16} << 30;
};

/// The rendezvous of one job's processes: one anonymous file in memory. The kernel frees it when
/// the last process closes it. A process without it cannot take part. A file of another version is
/// refused before anything else in it is read.
///
/// Processes that have the file are trusted: they belong to one user and one job and write to each
/// other's memory through it, so a faulty one can make the others fail in any way. A process may
/// end or stop at any point of what it writes; the others handle that.
///
/// The launcher creates it before it starts ranks and lets them inherit `descriptor()` (or passes
/// it over a Unix socket); a rank's process adopts it. Thread-safe; a value, copies are the same
/// rendezvous.
class shm_rendezvous {
public:
  /// Throws user_error if the kernel refuses.
  static shm_rendezvous create(const shm_sizes& sizes = {});
  /// From a descriptor of this process, which stays the caller's. Throws user_error if it is no
  /// rendezvous of this version.
  static shm_rendezvous adopt(int descriptor);
  /// For ranks that Troupe did not launch. The processes of one host that give the same `key` (16
  /// to 64 bytes, random) and run as the same user get the same rendezvous. The first one creates
  /// it and answers the others as long as it holds a copy. Waits up to `patience` for an answer;
  /// throws user_error after that.
  static shm_rendezvous by_name(std::string_view key, std::chrono::nanoseconds patience,
                                const shm_sizes& sizes = {});
  /// The rendezvous that another process of this host holds by this `key`. Waits up to `patience`
  /// for its answer. Throws user_error (membership) if there is none.
  static shm_rendezvous find(std::string_view key, std::chrono::nanoseconds patience);

  /// Closed on exec: the launcher passes a duplicate to a child.
  int descriptor() const;

  class control_segment;
  const std::shared_ptr<control_segment>& where() const { return control_segment_; }

private:
  explicit shm_rendezvous(std::shared_ptr<control_segment> at) : control_segment_(std::move(at)) {}
  std::shared_ptr<control_segment> control_segment_;
};

struct shm_options {
  /// Cores that ranks may use; waiters spin only while a generation has no more ranks than cores,
  /// and no other member of the (sub)group was seen on theirs. 0: what the process is allowed to
  /// (its affinity) at construction.
  int cores = 0;
  /// Ask for huge pages for slots and registered memory.
  bool huge_pages = true;
};

/// The shared memory of process ranks. Ranks of one process may share a backend or have their own.
/// Thread-safe.
///
/// Beyond the port's contract:
/// - `open` throws std::invalid_argument if the description makes no sense or its world differs
///   from what the generation's other ranks said (the group is aborted then), internal_error if the
///   rank is open already, and user_error if memory is refused (the group is aborted then, too). Up
///   to `ranks_max` ranks, 64 (sub)groups of a generation, 64 generations at a time. A rank that
///   opens a generation after a later one of the job has begun, or when all members of its own have
///   left, gets a handle that is aborted.
/// - Memory of `allocate` (up to shm_sizes::registered_bytes) is reduced in place if all ranks give
///   such memory of the same generation; all other memory goes through slots of bounded size. It
///   keeps its contents after its handle is gone; a generation whose memory is held counts as open.
/// - Operations of a (sub)group run one after the other, in order. Waiters do the work; the
///   handle's own thread finds work without a waiter within a few milliseconds.
/// - Deadlines are kept by `wait` and `poll`: until all ranks arrived they count from submission;
///   then an operation in which nothing moves for so long names the ranks that lag.
/// - A process that ends without closing its handle aborts the group and is named, within a
///   fraction of a second. One that is stopped is named by the deadline.
/// - `wait` throws after this process has let go of the memory. Others may still be at work in
///   registered memory until `quiescent`; such memory is never given out again in its generation.
/// - The memory of a generation goes back to the kernel when all its ranks have left or ended. The
///   file gets longer with each generation, but not larger: the rest of it is a hole.
/// - At most 4096 operations of a (sub)group may be in flight (user_error beyond).
/// - Destroying a handle while one of its operations has not ended, or while others wait for its
///   rank, aborts the group; afterwards an operation that needs the rank aborts the group.
/// - `quiescent` of a group that was not aborted: nothing of this rank is in flight.
class shm_backend final : public communicator_backend {
public:
  static constexpr std::int32_t ranks_max = 256;
  explicit shm_backend(shm_rendezvous where, shm_options options = {});
  ~shm_backend() override;
  shm_backend(const shm_backend&) = delete;
  shm_backend& operator=(const shm_backend&) = delete;

  std::string_view name() const override { return "shm"; }
  std::string unusable() const override;
  std::shared_ptr<communicator> open(const group_description& group) override;

  class hub;

private:
  std::shared_ptr<hub> hub_;
};

/// Empty if this machine can use shm, else why not. For `doctor`, without a rendezvous.
std::string shm_unusable();

}  // namespace troupe
