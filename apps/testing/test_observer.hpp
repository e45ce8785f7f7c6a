// Observers in simulated runs: the production observer actor behind its bounded queue, in every
// behaviour it may have, and an oracle for it.
#pragma once

#include "apps/testing/extension.hpp"

#include <cstdint>
#include <string_view>

namespace troupe::testing {

/// The behaviour of a run's observer.
enum class test_observer : std::uint8_t {
  none,
  receives,  ///< receives everything
  slow,      ///< receives nothing for a while, behind a small queue
  throws,    ///< throws
  dead       ///< its actor dies, and nothing reports it
};
std::string_view to_string(test_observer w);

/// The oracles' names.
inline constexpr const char* observer_oracle = "observers receive what was handled";
inline constexpr const char* rows_oracle = "each committed step has one row of metrics";
inline constexpr const char* queue_oracle = "each step has one value in the queue";

/// Each attempt gets such an observer. It must receive the hooks of a rank in the order in which
/// the rank handled them, and all lifecycle events in order. What it does not receive is counted as
/// dropped. It is flushed once, and receives nothing after that or after its own exception, which
/// is reported to the caller once. Other oracles check that it changes nothing.
///
/// `logs`: the job trains the integer payload with modular_options::logs. Then an observer that
/// receives everything, or is slow, gets the value of each committed step, in the order of the
/// steps, and each once behind metrics_once.
extension_fn observed_by(test_observer how, bool logs);

}  // namespace troupe::testing
