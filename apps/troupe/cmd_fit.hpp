// `troupe fit`, `validate`, `test` and `predict`.
#pragma once

#include "apps/troupe/context.hpp"
#include "apps/troupe/settings_sources.hpp"
#include "troupe/detail/position.hpp"

namespace troupe::program {

/// Trains, then tests; leaves a run's folder.
program_end fit(const schema& all, given what, const context& around);

/// Evaluates weights. `purpose`: validate, test or predict. Predictions go to standard output, one
/// line of JSON each; figures otherwise.
program_end evaluate(stage purpose, const schema& all, given what, const context& around);

}  // namespace troupe::program
