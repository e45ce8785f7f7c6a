// `troupe bench collectives`: any communicator beside the bare loop over the same memory traffic,
// in one run, interleaved.
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
  /// Tensors lie in what the communicator's `allocate` gives; else in memory that it does not know,
  /// as those of other libraries do.
  bool registered = true;
};

struct collectives_row {
  std::string operation;
  std::string communicator;
  std::int32_t ranks = 1;
  std::size_t bytes = 0;
  timing collective;
  std::optional<timing> bare;  ///< none where there is no traffic: a barrier, one rank
  /// Of staging_floor, in turn with the others: for sums of two `shm` ranks over ordinary memory.
  std::optional<timing> floor;
};

/// `all_reduce`, `broadcast`, `all_gather`, `reduce_scatter`, `barrier`. Sums of float32. Bytes are
/// those of the whole tensor: what all_gather ends with, what reduce_scatter begins with.
const std::vector<std::string>& benched_operations();

/// One rank's part; every rank of the group calls it alike. Hands over each size's row, equal on
/// all ranks, as it is done. A time is that of the slowest rank. Checks one result of each size
/// before it measures (internal_error).
void bench_collectives(communicator& group, const collectives_question& what,
                       const std::function<void(const collectives_row&)>& take);

}  // namespace troupe::program
