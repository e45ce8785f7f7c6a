// Catch2 itself. The main function is in a source of its own, so that a test program can have
// another one.
#define CATCH_CONFIG_RUNNER
#include "tests/support/runner.hpp"

#include "tests/support/catch.hpp"

namespace troupe::testing {

int run_tests(int count, char** arguments) { return Catch::Session().run(count, arguments); }

}  // namespace troupe::testing
