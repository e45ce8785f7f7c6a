// A call of the program under mpirun: its processes are the ranks of one job.
#pragma once

#include "apps/troupe/settings.hpp"
#include "troupe/communicator.hpp"
#include "troupe/job.hpp"

#include <optional>
#include <string>

namespace troupe::program {

/// Fits the settings to the place that mpirun gave this process: `ranks` becomes mpirun's count.
/// Throws user_error (bad_configuration) for another count that was given, and for a placement or
/// communicator that was asked for and is not mpirun's. Without a place nothing happens.
void take_place(settings& s, const std::optional<placed_rank>& place);

/// The same for a job of these settings: ranks are processes, over mpi.
void take_place(job& what, const std::optional<placed_rank>& place);

/// The note that informs the user about the place.
std::string place_note(const placed_rank& place);

}  // namespace troupe::program
