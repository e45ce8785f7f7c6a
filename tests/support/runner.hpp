// For test programs with a main of their own.
#pragma once

namespace troupe::testing {

/// Runs the tests as Catch2's main does.
int run_tests(int count, char** arguments);

}  // namespace troupe::testing
