// A device for tests, on LibTorch's key for devices of others (PrivateUse1). It has three devices,
// `late:0` to `late:2`, and computes with the CPU's operators, but like a GPU:
//
// - Its memory cannot be read by the host (late_memory.hpp).
// - Each stream runs its tasks in a thread of its own, as late as possible (late_stream.hpp).
// - Operators that mix devices, or a device and the host, are errors.
//
// A forgotten wait or an assumption about the CPU therefore fails a test. The results are those of
// the CPU, bit for bit.
#pragma once

#include "tests/support/late_stream.hpp"
#include "troupe/accelerator.hpp"

namespace troupe::testing {

inline constexpr c10::DeviceType late_type = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex late_devices = 3;

inline c10::Device late_device(c10::DeviceIndex index = 0) { return {late_type, index}; }

/// Called `late`. The first call makes LibTorch know the device: before any backward of the
/// process.
accelerator_ptr late_accelerator();

/// Operators that ran so far, and those of them that had to wait for the device, because the shape
/// of their result was not known before.
struct late_counts {
  std::int64_t operators = 0;
  std::int64_t waited = 0;
};
late_counts late_operators();

}  // namespace troupe::testing
