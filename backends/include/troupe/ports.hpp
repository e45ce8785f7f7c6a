// The ports of a session, chosen by main and passed in: `local_ports()` is this machine; tests
// build others from simulated adapters.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/failure.hpp"
#include "troupe/storage.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

class entropy;
class lane_backend;
class rank_launcher;

/// Everything that the actors of a session may reach outside. All shared and thread-safe.
///
/// To replace a port, or to add an adapter of your own, change what local_ports() returns:
///
///     auto world = troupe::local_ports();
///     world.use(std::make_shared<my_communicator_backend>());
///     troupe::session session{executor, world};
struct ports {
  /// For ranks that are threads, in order of preference: `auto` takes the first usable one.
  std::vector<std::shared_ptr<communicator_backend>> communicators;
  /// For ranks that are processes, in order of preference.
  std::vector<std::shared_ptr<rendezvous_kind>> rendezvous_kinds;
  /// Where relative paths of run folders begin.
  std::shared_ptr<storage> files;
  /// The format of checkpoints of jobs whose recipe has none of its own, for reading and writing.
  /// Null: those jobs write no checkpoints.
  std::shared_ptr<const checkpoint_io> checkpoints;
  /// Where ranks run their learners.
  std::shared_ptr<lane_backend> lanes;
  std::shared_ptr<rank_launcher> children;  ///< null: no ranks as processes
  /// Makes the ids and names of jobs. The results of training do not depend on it.
  std::shared_ptr<troupe::entropy> random;
  /// A monotonic clock for parts that are no actors: lanes, and the times in results. Actors read
  /// CAF's clock.
  std::function<std::chrono::nanoseconds()> now;
  /// The exceptions of ranks in other processes that a job throws as themselves.
  exception_types exceptions;

  /// Takes the place of the adapter with the same name, or becomes the last one.
  /// @{
  void use(std::shared_ptr<communicator_backend> one);
  void use(std::shared_ptr<rendezvous_kind> one);
  /// @}
};

/// Threads and processes of this machine, its file system, the kernel's entropy, and every
/// communicator that Troupe has: an adapter that cannot be used here says why (`unusable`). `mpi`
/// can be used where main replaces it by one that knows mpirun's variables, which the library does
/// not read. A fresh set at each call: nothing is shared between two sets.
ports local_ports();

}  // namespace troupe
