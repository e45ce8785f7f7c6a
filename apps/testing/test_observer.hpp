// Observers in field runs: the production observer actor behind its bounded queue, in every way in
// which one may behave, with an oracle.
#pragma once

#include "apps/testing/extension.hpp"

#include <cstdint>
#include <string_view>

namespace troupe::testing {

/// Who watches a run.
enum class test_observer : std::uint8_t {
  none,
  receives,  ///< an observer that hears everything
  slow,      ///< one that hears nothing for a while, behind a small queue
  throws,    ///< one that throws
  dead       ///< one whose actor is gone, and nobody said so
};
std::string_view to_string(test_observer w);

/// What a violation of it is called.
inline constexpr const char* observer_oracle = "observers hear what was handled";

/// Each attempt has such an observer. What must hold: it hears hooks of a rank in the order in
/// which the rank handled them, and all of the job's life, in order; what it does not hear was
/// counted as dropped; it is flushed once, and hears nothing behind that or behind its own throw,
/// which is said to the caller once. That it changes nothing is for the other oracles to see.
extension_fn observed_by(test_observer how);

}  // namespace troupe::testing
