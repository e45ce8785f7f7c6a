// The determinism check repeats a run in a host that differs: another heap layout, other bytes in
// reused memory, another thread, other runs beside it. A difference shows that the run depends on
// something that is not a port and could not be replayed. tests/simulated/determinism_check.py
// varies what only a new process can change: environment, address layout, allocator, working
// folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

/// Disturbs the heap and the stack of this thread while it lives: it allocates blocks of many
/// sizes, fills them with one byte and frees every other one.
class disturbed_host {
public:
  explicit disturbed_host(std::uint64_t seed);
  ~disturbed_host();
  disturbed_host(const disturbed_host&) = delete;
  disturbed_host& operator=(const disturbed_host&) = delete;

private:
  std::vector<std::unique_ptr<unsigned char[]>> held_;
};

/// Where two runs differ.
struct run_difference {
  std::string layer;        ///< first hash that differs: choices, deliveries, state; or `end`
  std::uint64_t event = 0;  ///< first event that differs; 0 if the runs were not recorded
  std::string text;         ///< the event as each run saw it
};
/// Oracle that a run violates when its repetition differs.
inline constexpr const char* determinism_oracle = "a run is the same in another host";
/// Returns nothing when the runs are equal. Recorded runs are compared event by event.
std::optional<run_difference> first_difference(const run_report& one, const run_report& other);

/// Does the run; `recorded` keeps its events. Called on several threads at once, so it must not
/// share mutable state.
using repeatable_run = std::function<run_report(bool recorded)>;

/// Repeats a run that gave `first`, in hosts drawn from `seed`: on a new thread, or for one seed in
/// four on three threads at once. A run that differs is repeated with recording to find the event.
std::optional<run_difference> check_determinism(const run_report& first, const repeatable_run& run,
                                                std::uint64_t seed);

}  // namespace troupe::testing
