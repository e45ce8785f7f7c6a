// Collectives over MPI, for clusters that provide it: `mpirun -n 8 troupe ...` places the
// processes, and MPI's own algorithms move and reduce the tensors.
#pragma once

#include "troupe/communicator.hpp"

#include <memory>
#include <mutex>
#include <optional>

namespace troupe {

namespace mpi {
class engine;
}

/// One rank per process, the ranks and the world being those of MPI_COMM_WORLD. Thread-safe.
///
/// What differs from the host communicators:
/// - Bits: MPI reduces in an order of its own. Results are equal on all ranks, not to the canonical
///   tree. f16 and bf16 travel and add up as f32 and round once. NaN, -0 and integers follow the
///   rules of canonical_reduce.
/// - Fingerprints travel in a small message to every member before an operation begins; barrier and
///   decide are nothing but these. They cost members - 1 messages per operation and rank.
/// - Abort is local, and the backend sends it to the other ranks. MPI cannot end a collective
///   that it has begun. The backend releases that collective's memory when MPI is done with it,
///   which needs all members to be alive and in this program; `wait` gives MPI two seconds, then
///   throws all the same. `quiescent` is true only once MPI has released the memory, or nothing had
///   begun. An operation that never becomes quiescent ends with the process, and mpirun ends the
///   others. After an abort, operations that other ranks may have begun are carried out with
///   scratch memory in the background, so that they end there, as aborted.
/// - Operations over a subgroup exchange whole tensors between its members (memory: members x
///   bytes) and have the canonical bits. They are made for small tensors.
/// - `open` returns at once; MPI starts in the background. A generation's world must be all of
///   mpirun's ranks, and every process opens every generation, in the same order.
/// - At most 4096 operations of a (sub)group may be in flight (user_error beyond).
/// - The last owner's end waits up to ten seconds for the other ranks to close their groups and
///   then finalises MPI, which waits for all processes; where they do not, it leaves MPI as it is.
class mpi_backend final : public communicator_backend {
public:
  /// `place`: what mpirun's variables say about this process; nothing: not under mpirun.
  explicit mpi_backend(std::optional<placed_rank> place);
  ~mpi_backend() override;
  mpi_backend(const mpi_backend&) = delete;
  mpi_backend& operator=(const mpi_backend&) = delete;

  std::string_view name() const override { return "mpi"; }
  std::string unusable() const override;
  std::optional<placed_rank> placed() const override { return place_; }
  /// Throws std::invalid_argument if the description is not this process's place.
  std::shared_ptr<communicator> open(const group_description& group) override;
  /// Returns the text of rank 0's process on all of mpirun's processes. Each calls this once,
  /// before it opens its first group; the others' texts are ignored. Waits until all have called,
  /// without a limit. Throws user_error (device) when MPI does not start as mpirun's variables
  /// promise, internal_error for more than 4 KiB.
  std::string share(const std::string& text);
  /// Finalises MPI as the last owner's end does, which is the one here when no handle is left.
  void close();

private:
  std::shared_ptr<mpi::engine> running();

  const std::optional<placed_rank> place_;
  std::mutex mutex_;
  std::shared_ptr<mpi::engine> engine_;
};

}  // namespace troupe
