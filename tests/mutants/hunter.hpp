// A hunter looks for violations with one finder until it has one or its time is over. It is a
// program of its own, which tests/mutants/mutants.py links with mutated objects and runs once per
// mutant, and without them for the unchanged code.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "apps/testing/explore.hpp"

namespace troupe::testing {

struct finding {
  std::string by;    ///< what was tried, and how often
  std::string what;  ///< the oracle's words
};

/// Swarms of faults and the portfolio of schedules, until something is found.
std::optional<finding> search_swarm(const job_spec& job, const run_plan& plan,
                                    std::uint64_t first_seed, double seconds);

struct finder {
  std::string_view name;
  std::function<std::optional<finding>(double seconds, std::uint64_t first_seed)> look;
};

/// Main: `PROGRAM FINDER MUTANT|none SECONDS [FIRST_SEED]`. Prints one line. Returns 1 when it has
/// found something, 0 when not, 2 when it was not understood.
int hunt(std::initializer_list<finder> finders, int count, char** arguments);

}  // namespace troupe::testing
