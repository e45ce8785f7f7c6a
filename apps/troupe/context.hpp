// The environment of a command, which main sets up: ports, console, variables, clock.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "apps/troupe/console.hpp"
#include "apps/troupe/launched.hpp"
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
  /// The launcher that has started this process among several.
  std::optional<launched> place{};
  /// What cluster environments are read from.
  cluster_facts cluster{};
  /// Called by a command that runs jobs, before it does. Where a launcher has started several
  /// processes, all but the first one are ranks of its jobs here, and return how that ended.
  std::function<std::optional<program_end>()> take_rank = [] { return std::nullopt; };
  std::string name = "troupe";  ///< of the program, as a user calls it
  std::string about{};          ///< a line for help; empty: that of `troupe`
  std::string version{};        ///< of a user's program; empty: Troupe's alone
};

}  // namespace troupe::program
