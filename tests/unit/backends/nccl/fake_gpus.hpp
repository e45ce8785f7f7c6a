// GPUs and NCCL on the host: a function table whose kernels are loops over memory, run when all
// ranks of a communicator have asked for them. For tests of what stands around the real one.
#pragma once

#include "backends/nccl/library.hpp"

#include <memory>
#include <string>

namespace troupe::testing {

struct fake_counts {
  int communicators = 0;  ///< alive
  int streams = 0;
  int events = 0;
  int allocations = 0;
  int kernels = 0;  ///< started since the reset
  int aborts = 0;   ///< asked for since the reset
};

/// One machine for all cases of the program, because C functions have no owner: reset it first.
/// Thread-safe.
namespace fake_gpus {
void reset(int devices = 8);
std::shared_ptr<const nccl::library> functions();
fake_counts counts();
/// Kernels start and do not end.
void stall(bool on);
/// The next question for asynchronous errors of every communicator is answered with this.
void fail_next(ncclResult_t error);
/// The first ranks answer `in progress` this often before a communicator is there.
void slow_start(int answers);
}  // namespace fake_gpus

}  // namespace troupe::testing
