// Fuzz targets that run for a while when requested: `tcp_test "[minutes]"`, as .ci/run does.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>

#include "tests/support/catch.hpp"

namespace troupe::testing {

/// Calls `round` for a minute, or TROUPE_FUZZ_SECONDS, with generators of consecutive seeds,
/// starting from a random one. Prints the range of seeds; a failure prints its own. With
/// TROUPE_FUZZ_SEED=N in the environment it runs that round alone.
inline void for_a_while(const std::function<void(std::mt19937_64&)>& round) {
  const auto* given = std::getenv("TROUPE_FUZZ_SEED");
  const std::uint64_t first = given ? std::stoull(given) : std::random_device{}();
  const auto* seconds = std::getenv("TROUPE_FUZZ_SECONDS");
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds{seconds ? std::stoi(seconds) : 60};
  std::uint64_t seed = first;
  do {
    INFO("TROUPE_FUZZ_SEED=" << seed);
    std::mt19937_64 draw{seed++};
    round(draw);
  } while (!given && std::chrono::steady_clock::now() < end);
  std::cout << "seeds " << first << " to " << seed - 1 << std::endl;
}

}  // namespace troupe::testing
