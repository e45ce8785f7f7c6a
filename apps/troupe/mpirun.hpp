// A call of the program under mpirun: its processes are the ranks of one job.
#pragma once

#include "apps/troupe/settings.hpp"
#include "troupe/communicator.hpp"
#include "troupe/ports.hpp"
#include "troupe/trainer.hpp"

#include <optional>
#include <string>

namespace troupe::program {

/// Sets `ranks` to mpirun's number of processes. Throws user_error (bad_configuration) if the
/// settings ask for another number, placement or communicator. Without a place nothing happens.
void take_place(settings& s, const std::optional<placed_rank>& place);

/// The same for a job of these settings: ranks are processes, over mpi.
void take_place(job& what, const std::optional<placed_rank>& place);

/// Where a rank of a job is: by mpirun's variables when it placed the rank, and else on this host.
cluster_environment_ptr place_of_rank(const std::optional<placed_rank>& place,
                                      const cluster_facts& from, std::int32_t rank,
                                      std::int32_t world);

/// Throws user_error (bad_configuration) when another launcher than mpirun has started several
/// processes of this program: each would run the whole job.
void refuse_copies(const cluster_facts& from, const std::optional<placed_rank>& place);

/// The note to the user that mpirun's processes are the ranks.
std::string place_note(const placed_rank& place);

}  // namespace troupe::program
