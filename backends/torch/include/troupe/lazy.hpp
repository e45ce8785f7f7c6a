// What LibTorch's lazy tensors did in this process: graphs, compilations, and operators that no
// graph can hold. For finding out why a fit on the accelerator `lazy` is slow.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// Since the process started. All of its ranks count together.
struct lazy_counts {
  std::int64_t marks = 0;         ///< step marks: ends of steps, and reads by the host
  std::int64_t graphs = 0;        ///< that were run
  std::int64_t compilations = 0;  ///< graphs that had no equal before, and were compiled
  /// Operators that ran one by one on the host, by name (`aten::...`), with their number of calls.
  /// `aten::_local_scalar_dense` is the read of a single number.
  std::map<std::string, std::int64_t> fallbacks;
};

/// Thread-safe. Never waits for a device.
lazy_counts counts_of_lazy();
/// The counts, LibTorch's own counters, and the operators of graphs that have not run yet. For
/// people: the format may change. Thread-safe where no rank of the process is in a step.
std::string report_of_lazy();

}  // namespace troupe
