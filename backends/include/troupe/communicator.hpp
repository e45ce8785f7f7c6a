// The communicator port: a rank's handle to the collectives of one generation, and the backend that
// opens such handles. No LibTorch: memory is described by pointer, count and dtype. A backend of a
// program's own passes the conformance suite (tests/conformance) and goes into `ports`.
#pragma once

#include "troupe/detail/ids.hpp"
#include "troupe/failure.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// Element types of collectives. Sums of f16 and bf16 accumulate in f32 and round once; integers
/// wrap for sum and product and refuse mean; boolean allows min (and), max (or) and sum (or) only.
enum class dtype : std::uint8_t { u8, i8, i16, i32, i64, f16, bf16, f32, f64, boolean, c64, c128 };
/// Bytes of one element.
std::size_t size_of(dtype type);
/// PyTorch's name: `float32`.
std::string_view to_string(dtype type);

/// `mean` scales before it rounds, so it overflows only where the mean itself does. min and max
/// propagate NaN.
enum class reduction : std::uint8_t { sum, mean, min, max, product };
/// The enumerator's name.
std::string_view to_string(reduction operation);

/// The ranks that a collective concerns; empty: the whole world.
struct subgroup {
  /// World ranks, ascending, the caller's among them; else std::invalid_argument.
  std::vector<std::int32_t> ranks;
  friend bool operator==(const subgroup&, const subgroup&) = default;
};

/// Whether a decision needs the yes of all members or of any one.
enum class decision : std::uint8_t { all, any };

/// A point in the work of a device, such as a CUDA event. Thread-safe.
class device_event {
public:
  virtual ~device_event() = default;
  /// Everything before the point is done. Never waits.
  virtual bool done() const = 0;
  /// Waits in the calling thread until `done`.
  virtual void wait() const = 0;
  /// The event as the device's own functions take it: a cudaEvent_t. Null: no stream has to wait
  /// for it.
  virtual void* native() const { return nullptr; }
};
/// Shared by the operations that begin after it.
using device_event_ptr = std::shared_ptr<const device_event>;

/// Dense memory. It stays valid, and its owner neither reads nor writes it, until the operation is
/// quiescent, or runs after its point on the device (work::on_device).
struct buffer {
  /// Memory of the host, except in communicators with device_collectives.
  void* data = nullptr;
  std::size_t count = 0;  ///< elements; 0 is allowed
  /// The type of the elements.
  dtype type = dtype::f32;
  /// The number of the device whose memory it is. -1: the host, or the rank's own device in
  /// communicators that carry no other memory. Communicators of the host refuse others.
  std::int32_t device = -1;
  /// Memory of a device may be used after this point. Null: where the device's default stream has
  /// got to at submission.
  device_event_ptr ready;
};

/// The members of a group, seen by one of them. Immutable: a new membership is a new group with
/// resources of its own.
struct group_description {
  /// Identifies the group together with the generation.
  job_id job;
  /// The membership that the group has.
  generation_id generation;
  /// The rank of the member that sees the group, from 0.
  std::int32_t rank = 0;
  /// Members.
  std::int32_t world = 1;
  /// How long an operation waits for its peers before it ends as `timed_out`, with the missing
  /// ranks named. 0: no limit.
  std::chrono::nanoseconds deadline{0};
  /// The number that texts use for rank 0: a group inside a larger one names its ranks by the
  /// larger group's numbers.
  std::int32_t named_from = 0;
};

/// How an operation ended.
enum class work_status : std::uint8_t {
  pending,
  ok,
  aborted,    ///< the group was aborted; contents undefined
  timed_out,  ///< the deadline passed: `missing` has the ranks that did not arrive; the group is
              ///< aborted
  mismatch,   ///< ranks called different operations: `text` says which; nothing was written; the
              ///< group is aborted
};

/// How an operation stands or ended.
struct work_result {
  /// `pending` until it has ended.
  work_status status = work_status::pending;
  /// For people; of `timed_out`, `mismatch` and `aborted`.
  std::string text;
  /// `timed_out`: the ranks that did not arrive.
  std::vector<std::int32_t> missing;
};

/// One operation in flight. Ends exactly once. Thread-safe.
class work {
public:
  virtual ~work() = default;
  /// How it stands. Never waits; a deadline that has passed is noticed here, too.
  virtual work_result poll() = 0;
  /// Waits in the calling thread, which may do a part of the work meanwhile. Returns on `ok`.
  /// Throws generation_closed when aborted, else collective_timeout or collective_mismatch.
  virtual void wait() = 0;
  /// For memory of devices: waits until the device has the operation, but not until it has run.
  /// Returns the event after which the result is there: a stream can wait for it, and no thread has
  /// to. Null: the operation has ended, as always on memory of the host. Throws as `wait` does. If
  /// the operation fails later, its contents are undefined, and `poll` and `wait` report that.
  virtual device_event_ptr on_device();
};
/// Keeps the operation, not its memory.
using work_ptr = std::shared_ptr<work>;

/// Names the ranks that did not arrive at an operation in time.
class collective_timeout : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Ranks called different operations, or the same one with other shapes, dtypes, roots or names.
class collective_mismatch : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A rank's handle to one generation's collectives.
///
/// - Order: every rank of a (sub)group submits the same operations in the same order. The n-th
///   operation of one rank belongs to the n-th of the others; a fingerprint (operation, dtype,
///   count, reduction, root, label) is compared before anything is written.
/// - Threads: only the owning lane submits; `abort`, `aborted`, `quiescent` and `waiting` may be
///   called by any thread. At most 4,096 operations of a rank may be in progress: one more is
///   refused with user_error (bad_usage). Wait for some of them first.
/// - Progress: an operation completes without a rank that waits for it; a waiting rank helps.
/// - Cancellation: `abort` ends all operations of the group, on all ranks.
/// - Bits: reductions follow the canonical tree over ranks (split at the largest power of two below
///   the count), with partial results in the accumulation type. They depend neither on arrival nor
///   on timing. `mpi` and `nccl` reduce in an order of their own.
class communicator {
public:
  virtual ~communicator() = default;

  /// The group, as this rank sees it; constant.
  virtual const group_description& group() const = 0;
  /// As options and errors write it: `inproc`, `tcp`.
  virtual std::string_view name() const = 0;

  /// In place; every rank ends with the same bytes. Cost: one pass over memory, with (ranks reads +
  /// ranks writes) per element.
  virtual work_ptr all_reduce(buffer data, reduction operation, const subgroup& among = {}) = 0;
  /// `root` is a world rank and a member of `among`.
  virtual work_ptr broadcast(buffer data, std::int32_t root, const subgroup& among = {}) = 0;
  /// out.count == members x in.count; piece i is from the i-th member. `in` may be out's own piece.
  virtual work_ptr all_gather(buffer in, buffer out, const subgroup& among = {}) = 0;
  /// in.count == members x out.count; member i gets the reduced i-th piece. `in` is not changed
  /// unless `out` lies in it.
  virtual work_ptr reduce_scatter(buffer in, buffer out, reduction operation,
                                  const subgroup& among = {}) = 0;
  /// Completes when all members have arrived. `label` is part of the fingerprint and of the error
  /// that names missing ranks. `deadline` 0: the group's.
  virtual work_ptr barrier(std::string_view label,
                           std::chrono::nanoseconds deadline = std::chrono::nanoseconds{0},
                           const subgroup& among = {}) = 0;
  /// Waits for the agreement: true if all members (or any of them) said yes. The same on all.
  virtual bool decide(bool yes, decision by, const subgroup& among = {}) = 0;

  /// True if the ranks share an address space, so that one may work in another's memory.
  virtual bool shares_memory() const { return false; }
  /// Where memory is shared: work on the memory of all ranks at once. `mine` points to whatever the
  /// ranks have agreed on; all pass the same `pieces` and `label`.
  /// - When all ranks have arrived, member 0's `body` is called once for each of `pieces` pieces,
  ///   by any of the ranks' threads, several at once and in no order, with the pointers of all
  ///   ranks.
  /// - Quiescent means that no thread is inside a body.
  /// - An exception in a body aborts the group. The rank whose thread threw it throws it from
  ///   wait(); the others throw generation_closed.
  /// Throws internal_error where memory is not shared.
  using shared_body =
      std::function<void(std::span<const void* const> everybodys, std::size_t piece)>;
  /// See shared_body.
  virtual work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                                 shared_body body);

  /// True while the owning lane waits for its peers in this communicator. With it the rank
  /// distinguishes a hook that waits from a hook that hangs.
  virtual bool waiting() const noexcept = 0;

  /// Memory that this communicator reduces fastest (aligned, in huge pages where allowed). Freed by
  /// its last owner.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;

  /// Ends every operation of the group, on all ranks, as `aborted`: at once, by any thread, in any
  /// state. Idempotent; the first reason stays.
  virtual void abort(std::string_view why) noexcept = 0;
  /// The group was aborted, by any rank or by an error.
  virtual bool aborted() const noexcept = 0;
  /// True once no rank and no device can read or write the memory of an aborted operation. Only
  /// then may the memory be reused.
  virtual bool quiescent() const noexcept = 0;
};

/// Which rank of which world a process is.
struct placed_rank {
  /// From 0.
  std::int32_t rank = 0;
  /// Ranks in all.
  std::int32_t world = 1;
  friend bool operator==(const placed_rank&, const placed_rank&) = default;
};

/// One kind of communicator, opened once per generation and rank. In `ports::communicators`.
/// Thread-safe.
class communicator_backend {
public:
  virtual ~communicator_backend() = default;
  /// The name of its communicators, as `--communicator` takes it.
  virtual std::string_view name() const = 0;
  /// Empty when it can be used here, else the reason why not, for `doctor` and for errors.
  virtual std::string unusable() const = 0;
  /// The one rank that this process can open, where a launcher placed the ranks (mpirun). Empty:
  /// Troupe places them.
  virtual std::optional<placed_rank> placed() const { return std::nullopt; }
  /// A rank's handle to its group. Called once per rank and generation, in any order. Never waits.
  virtual std::shared_ptr<communicator> open(const group_description& group) = 0;
};

// What a communicator adds when its tensor operations carry memory of devices: `nccl`, or a
// program's own.

/// A base beside `communicator`. Its all_reduce, broadcast, all_gather and reduce_scatter take
/// memory of one kind of device and no other; a barrier and a decision need no memory.
class device_collectives {
public:
  virtual ~device_collectives() = default;
  /// The accelerator whose memory is carried, by name: `cuda`.
  virtual std::string_view memory_of() const = 0;
  /// A communicator between the same ranks for memory of the host. It is aborted with this one.
  virtual communicator& on_host() = 0;
};

/// The communicator between the same ranks that carries memory of the host: `world` itself, or what
/// it has for that. Keeps `world` alive.
std::shared_ptr<communicator> host_collectives(const std::shared_ptr<communicator>& world);
/// Whether tensor operations of `world` take memory of this accelerator's devices.
bool carries(const communicator& world, std::string_view accelerator);

// The rendezvous port: how ranks in processes of their own connect to each other. One kind for each
// communicator that reaches from process to process.

/// The options of a rendezvous.
struct rendezvous_options {
  /// Connections between two ranks of tcp and hier; unset: the adapter's default.
  std::optional<std::int64_t> tcp_streams;
};

/// The rendezvous of one job. The process of the supervisor holds it while the job runs.
class rendezvous {
public:
  virtual ~rendezvous() = default;
  /// Sent to each rank: text that only the kind reads.
  virtual std::string address() const { return {}; }
  /// Open descriptors that each rank's process inherits, in this order.
  virtual std::vector<int> descriptors() const { return {}; }
};

/// In `ports::rendezvous_kinds`, the same in the supervisor's process and in the ranks'. Const and
/// thread-safe.
class rendezvous_kind {
public:
  virtual ~rendezvous_kind() = default;
  /// The name of its communicator.
  virtual std::string_view name() const = 0;
  /// Empty when it can be used here, else the reason why not, for `doctor` and for errors.
  virtual std::string unusable() const = 0;
  /// What to know before choosing it (for `doctor`); may be empty.
  virtual std::string about() const { return {}; }
  /// A job with more ranks (shards) is refused before it starts, and `auto` takes another kind.
  virtual std::int32_t most_ranks() const { return std::numeric_limits<std::int32_t>::max(); }
  /// In the supervisor's process, once per job. Throws user_error that says how to fix it.
  virtual std::shared_ptr<rendezvous> arrange(const rendezvous_options& options) const = 0;
  /// In a rank's process, once, with the address and the descriptors of the rendezvous. Throws
  /// user_error.
  virtual std::shared_ptr<communicator_backend> join(const std::string& address,
                                                     const std::vector<int>& descriptors) const = 0;
};

}  // namespace troupe
