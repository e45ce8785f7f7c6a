// Everything outside that a command touches, chosen by main.
#pragma once

#include "apps/troupe/catalog.hpp"
#include "apps/troupe/console.hpp"
#include "backends/ports.hpp"
#include "backends/telemetry/event_log.hpp"

#include <functional>
#include <map>
#include <string>

namespace troupe::program {

struct surroundings {
  console& screen;
  const catalog& learning;
  std::function<ports()> world;
  std::map<std::string, std::string> variables;  ///< those that start with TROUPE_
  wall_clock wall;
  std::function<double()> age;  ///< seconds since this process began
};

/// How a call of the program ended.
struct program_end {
  int code = 0;
  /// A lane is stuck in user code: flush, then leave without destructors, which would wait for it.
  bool survivors = false;
};

}  // namespace troupe::program
