// Twins: the same run a second time, in a host that is unlike the first: other holes in the heap,
// other bytes in memory that was used before, another thread, other runs beside it. What differs
// then depends on something that is no port, and would not be replayed. What only another process
// can vary (environment, address layout, allocator, working folder) is varied by
// tests/simulated/determinism_check.py.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

/// The heap and the stack of this thread are unlike before, for as long as it lives: many blocks of
/// any size are taken, filled with one byte, and every other one given back.
class disturbed_host {
public:
  explicit disturbed_host(std::uint64_t seed);
  ~disturbed_host();
  disturbed_host(const disturbed_host&) = delete;
  disturbed_host& operator=(const disturbed_host&) = delete;

private:
  std::vector<std::unique_ptr<unsigned char[]>> held_;
};

/// Where two runs parted.
struct run_difference {
  std::string layer;        ///< the first hash that differs: choices, deliveries, state; or `end`
  std::uint64_t event = 0;  ///< the first that differs; 0 when the runs were not recorded
  std::string text;         ///< for people: the event as either side saw it
};
/// What a run violates that differs from its twin.
inline constexpr const char* determinism_oracle = "a run is the same in another host";
/// Nothing when they are the same run. Recorded ones are compared event by event.
std::optional<run_difference> first_difference(const run_report& one, const run_report& other);

/// Does the run, with `recorded` so that its events are kept. Called on several threads at once:
/// what it uses is its own, or is not changed.
using repeatable_run = std::function<run_report(bool recorded)>;

/// Repeats a run that gave `first`, in hosts drawn from `seed`: on a thread of its own, or (one
/// seed in four) on three at once. A run that differs is repeated, recorded, to name the event.
std::optional<run_difference> check_determinism(const run_report& first, const repeatable_run& run,
                                                std::uint64_t seed);

}  // namespace troupe::testing
