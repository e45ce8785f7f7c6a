// A call of the program by a launcher (mpirun, torchrun, srun, jsrun) that has started several
// processes: they are the ranks of one job.
#pragma once

#include "apps/troupe/build_facts.hpp"
#include "apps/troupe/settings.hpp"
#include "troupe/communicator.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

#include <optional>
#include <string>

namespace troupe::program {

/// What a launcher says about this process and its job.
struct launched {
  placed_rank place;
  std::string by;     ///< the launcher, as users call it: `mpirun`
  std::string count;  ///< its flag for the number of processes: `-n`
  /// What carries the collectives unless the settings say tcp or hier: mpi for mpirun and
  /// srun with a PMI, shm for others on one host, and else tcp.
  communicator_kind over = communicator_kind::mpi;
  std::int32_t per_host = 0;  ///< processes on each host, or on the first ones; 0: not known
  std::int32_t hosts = 0;     ///< 0: not known. If known: the last ones may have a process fewer
  /// For mpi: the open descriptor over which MPICH's mpirun or srun's PMI starts MPI, if any.
  std::optional<int> pmi_descriptor{};
  /// Not for mpi: where the processes learn of each other (backends/torch/tcp_store.hpp), and
  /// whether the launcher serves that itself.
  /// @{
  std::string store_host{};
  std::uint16_t store_port = 0;
  bool store_is_served = false;
  std::string store_prefix{};
  /// @}

  /// All processes are on this host; false when in doubt.
  bool one_host() const { return per_host == place.world; }
};

/// mpirun, by the variables of Open MPI and PMI, also if it has started one process only; or srun,
/// if these are of its own PMI (`--mpi=pmi2`). Nothing in a process of torchrun, whose own starter
/// may have set them.
std::optional<launched> by_mpirun(const cluster_facts& from);

/// The launcher of this process. Nothing: no launcher has started several processes of this
/// program, or its variables contradict each other (`refuse_copies` says which). MPI's variables
/// come first (`by_mpirun`), then those of detect_environment. A program without MPI takes srun's
/// processes for its ranks without MPI.
std::optional<launched> launched_by(const cluster_facts& from,
                                    bool with_mpi = build_facts::with_mpi);

/// Sets `ranks` to the launcher's number of processes without `elastic.spares`. Throws user_error
/// (bad_configuration) if the settings ask for another number, placement or communicator. Without a
/// launcher nothing happens.
void take_place(settings& s, const std::optional<launched>& by);

/// The same for a job of these settings: ranks are processes. With `auto` the collectives are over
/// launched::over.
void take_place(job& what, const std::optional<launched>& by);

/// Where a rank of a job is: by the launcher's variables when it placed the rank. A rank that
/// shares its process, or has moved to it, has the local rank of the host where it began.
/// `spares`: the job's; its last processes.
cluster_environment_ptr place_of_rank(const std::optional<launched>& by, const cluster_facts& from,
                                      std::int32_t rank, std::int32_t world, std::int32_t spares);

/// Throws user_error (bad_configuration) when a launcher that `launched_by` does not support has
/// started several processes of this program: each would run the whole job.
void refuse_copies(const cluster_facts& from, const std::optional<launched>& by);

/// The note to the user that the launcher's processes are the ranks, after take_place.
std::string place_note(const launched& by, const settings& s);

/// Why a running job cannot get another number of ranks.
std::string place_is_fixed(const launched& by);

}  // namespace troupe::program
