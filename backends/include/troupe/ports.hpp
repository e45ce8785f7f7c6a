// The ports of a session, chosen by main and passed in: `local_ports()` is this machine; tests
// build others from simulated adapters.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/failure.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// Cluster environments: what the launcher of a process says about its rank. docs/clusters.md has
// the variables of each one.

/// The cluster-environment port. Read once, when a rank's environment is set up; never written to.
/// Used by the rank's lane only.
class cluster_environment {
public:
  virtual ~cluster_environment() = default;
  /// As errors and `doctor` write it.
  virtual std::string_view name() const = 0;
  /// All ranks, and this one, from 0.
  /// @{
  virtual std::int32_t world() const = 0;
  virtual std::int32_t rank() const = 0;
  /// @}
  /// Among the ranks of one host: 0 prepares data for the others.
  virtual std::int32_t local_rank() const = 0;
  /// How many ranks share the devices of this host; all of them where it is not known.
  virtual std::int32_t local_world() const { return world(); }
  /// Index of the host, from 0.
  virtual std::int32_t node_rank() const { return 0; }
  /// Where rank 0 can be reached. Empty: the environment does not say.
  virtual std::string main_address() const { return "127.0.0.1"; }
  /// None: any free port.
  virtual std::optional<std::uint16_t> main_port() const { return std::nullopt; }
  /// Something else has started the processes of the ranks.
  virtual bool has_processes() const { return false; }
  /// Throws user_error (bad_configuration) when a job of so many ranks on each of so many hosts
  /// does not fit the environment.
  virtual void check(std::int32_t nodes, std::int32_t ranks_per_node) const {
    (void)nodes, (void)ranks_per_node;
  }
  /// Called when the rank is taken down.
  virtual void teardown() {}
};

/// All ranks on this host.
class local_environment : public cluster_environment {
public:
  /// 0 <= rank < world.
  local_environment(std::int32_t rank, std::int32_t world) : rank_(rank), world_(world) {}
  std::string_view name() const override { return "local"; }
  std::int32_t world() const override { return world_; }
  std::int32_t rank() const override { return rank_; }
  std::int32_t local_rank() const override { return rank_; }

private:
  std::int32_t rank_;
  std::int32_t world_;
};

/// What an environment is read from. The library reads nothing of its process: a program passes
/// `std::getenv` and the like. None or empty functions: nothing is there.
struct cluster_facts {
  /// A variable of the environment; none: it is not set.
  std::function<std::optional<std::string>(const std::string& name)> variable;
  /// The lines of a file (LSF names one).
  std::function<std::vector<std::string>(const std::string& path)> lines;
  std::string host;  ///< the name of this host
};

/// Each throws user_error (bad_configuration) that names the variable which is missing, is no
/// number, or contradicts another one.
using cluster_environment_ptr = std::shared_ptr<cluster_environment>;
/// The environment of torchrun.
cluster_environment_ptr torchelastic_environment(const cluster_facts& from);
/// The environment of Slurm's srun.
cluster_environment_ptr slurm_environment(const cluster_facts& from);
/// The environment of LSF's jsrun.
cluster_environment_ptr lsf_environment(const cluster_facts& from);
/// Open MPI, or MPICH and its relatives (PMI).
cluster_environment_ptr mpi_environment(const cluster_facts& from);
/// One rank per host.
cluster_environment_ptr kubeflow_environment(const cluster_facts& from);
/// The processes that PJRT, the run time of XLA, counts.
cluster_environment_ptr xla_environment(const cluster_facts& from);

/// What detect_environment found.
struct detected_environment {
  cluster_environment_ptr which;  ///< null: none of them, so all ranks are on this host
  std::string why;                ///< the variables that decided
};
/// The first one whose variables are there, in the order torchelastic, slurm, lsf, mpi, xla.
/// Kubeflow's variables are those of any launcher, so it is never detected. Throws as the
/// environment that was found.
detected_environment detect_environment(const cluster_facts& from);

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
