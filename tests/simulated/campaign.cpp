// The program of campaigns (tests/campaign.sh): `troupe` without LibTorch, linked with the guard. A
// call to the outside by an actor or a machine ends the run as a violation.
#include "apps/testing/delivery.hpp"
#include "apps/testing/simulation.hpp"
#include "apps/troupe/process.hpp"
#include "tests/unit/apps/integer_program.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

// Whether the guard is linked and stops a forbidden call.
bool guarded() {
  using namespace troupe::testing;
  simulation in{choices::of_seed(0), {}};
  in.at(0, nanoseconds{0}, [] { static_cast<void>(std::getenv("HOME")); });
  try {
    while (in.step()) continue;
  } catch (const reached_outside&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace troupe::program;
  if (!guarded()) {
    std::fputs("the guard is not linked, or sees nothing\n", stderr);
    return 70;
  }
  console screen{standard_output(), standard_error(), terminal_of_standard_error()};
  const troupe::testing::integer_catalog learning{{}};
  const context around{.screen = screen,
                       .learning = learning,
                       .world = [] { return troupe::local_ports(); },
                       .variables = {},
                       .wall = [] { return std::chrono::system_clock::now(); },
                       .age = process_age};
  return run_program({arguments + 1, arguments + count}, around).code;
}
