// The environment of a command, which main sets up: ports, console, variables, clock.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "apps/troupe/console.hpp"
#include "backends/telemetry/event_log.hpp"
#include "troupe/ports.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace troupe::program {

/// How a call of the program ended.
struct program_end {
  int code = 0;
  /// A lane is stuck in user code: flush, then leave without destructors, which would wait for it.
  bool survivors = false;
};

struct context {
  console& screen;
  const catalog& learning;
  std::function<ports()> world;
  std::map<std::string, std::string> variables;  ///< those that start with TROUPE_
  wall_clock wall;
  std::function<double()> age;  ///< seconds since this process began
  /// The rank that mpirun gave this process, when it started several.
  std::optional<placed_rank> place{};
  /// What cluster environments are read from.
  cluster_facts cluster{};
  /// What mpirun's other processes do instead of running a job: each is a rank of the first one's.
  std::function<program_end()> be_rank{};
  std::string name = "troupe";  ///< of the program, as a user calls it
  std::string about{};          ///< a line for help; empty: that of `troupe`
  std::string version{};        ///< of a user's program; empty: Troupe's alone
};

}  // namespace troupe::program
