// Simulated GPUs and NCCL on the host, for tests of the code around the real ones. A function table
// whose kernels are loops over memory; a kernel runs once all ranks of its communicator have
// started it.
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
  int aborts = 0;   ///< requested since the reset
};

/// One machine for all cases of the program, because the C functions carry no state of their own.
/// Call reset first. Thread-safe.
namespace fake_gpus {
void reset(int devices = 8);
std::shared_ptr<const nccl::library> functions();
fake_counts counts();
/// While `on`, kernels start and do not finish.
void stall(bool on);
/// The next query of asynchronous errors, by any communicator, returns this error.
void fail_next(ncclResult_t error);
/// Whether a stream was made to wait for the event since the reset.
bool waited_for(cudaEvent_t event);
/// Each rank reports `in progress` this often before its communicator is ready.
void slow_start(int answers);
/// With `true`, the next query of asynchronous errors after a kernel was seen to end does not
/// return before `false`.
void hold_after_end(bool on);
}  // namespace fake_gpus

}  // namespace troupe::testing
