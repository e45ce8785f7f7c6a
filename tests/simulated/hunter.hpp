// What the hunters of planted bugs share (messages/planted.hpp). Each is a program of its own, of
// which tests/mutants.sh runs one once per bug.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "apps/testing/explore.hpp"
#include "messages/planted.hpp"

#ifndef TROUPE_PLANT_BUGS
#error "hunters are compiled with the planted bugs in"
#endif

namespace troupe::testing {

struct finding {
  std::string by;  ///< strategy
  std::uint64_t runs = 0;
  double seconds = 0;
  std::string what;  ///< the oracle's words, one line
  std::uint64_t seed = 0;
};
std::string one_line(std::string text);

/// Swarms of faults and the portfolio of schedules, until something is found.
std::optional<finding> search_swarm(const job_spec& job, const run_plan& plan,
                                    std::uint64_t first_seed, double seconds);

struct found_by {
  std::optional<finding> exhaustive;
  std::optional<finding> swarm;
};
struct hunter {
  std::span<const planted_bug> bugs;
  /// With one of them planted, or none.
  std::function<found_by(bool planted, double seconds, std::uint64_t first_seed)> hunt;
};

/// Main: `PROGRAM list | PROGRAM NAME|none [SECONDS [FIRST_SEED]]`.
int hunt(const hunter& with, int count, char** arguments);

}  // namespace troupe::testing
