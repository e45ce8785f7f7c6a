// `troupe bench collectives`: measures a communicator and the bare loop over the same memory
// traffic, alternating in one run.
#pragma once

#include "apps/bench/timing.hpp"
#include "troupe/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

struct collectives_question {
  std::string operation = "all_reduce";
  std::vector<std::size_t> sizes;  ///< bytes
  int rounds = 7;                  ///< of each size; five times as many up to 1 MiB
  /// Tensors are in memory of the communicator's `allocate`; else in ordinary memory, as those of
  /// other libraries are.
  bool registered = true;
};

struct collectives_row {
  std::string operation;
  std::string communicator;
  std::int32_t ranks = 1;
  std::size_t bytes = 0;
  timing collective;
  std::optional<timing> bare;  ///< none where there is no traffic: a barrier, one rank
  /// The time of staging_floor, for sums of two `shm` ranks over ordinary memory.
  std::optional<timing> floor;
};

/// `all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `barrier`. Sums of float32. Sizes are
/// those of the whole tensor: the output of all_gather, the input of reduce_scatter.
const std::vector<std::string>& benched_operations();

/// One rank's part; all ranks of the group call it with the same arguments. Passes on the row of
/// each size, equal on all ranks, when it is measured. A time is that of the slowest rank. Checks
/// one result of each size before it measures (internal_error).
void bench_collectives(communicator& group, const collectives_question& what,
                       const std::function<void(const collectives_row&)>& take);

}  // namespace troupe::program
