// A case: a short text from which one run happens again, pasted into an issue or kept as a
// regression.
//
//   troupe-case/1
//   build 6f0c9b...                         (what recorded it; may be missing)
//   expect state equals the reference       (the oracle that was violated; may be missing)
//   meets crash_rank, resumed from a checkpoint
//   job ranks=8 steps=20 ...                (what is not said is as job_spec says)
//   plan schedule=1 depth=3 ...
//   brings guests=1 marks=3                 (what only the test's code has; may be missing)
//   payload ghost                           (what is trained, if it is not the field payload)
//   faults crash_rank,pause
//   seed 123
//   choices fault.0.0=1 detail.256.0=3 ...  (none: all draws are the seed's)
//   end
//
// Blanks around a line and lines that begin with # mean nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/testing/explore.hpp"

namespace troupe::testing {

struct run_case {
  variant what;
  std::uint64_t seed = 0;
  std::optional<std::vector<choice>> taken;  ///< none: the seed decides
  std::string expect;                        ///< the oracle that was violated; empty: none
  std::string build;                         ///< build_id() of what recorded it; empty: unknown
  std::vector<std::string> meets;            ///< faults that strike and marks that are hit
};

/// Of the running program: changes with its code. Empty when its linker wrote none.
std::string build_id();

std::string to_text(const run_case& what);
/// Throws user_error (bad_usage) that names the line it does not understand, the field and its
/// bounds. Guests, marks of a test's own, the network's costs and slow nodes are not in a text, but
/// how many there were is, and of a payload only its name: `with` brings them (its other members do
/// not matter). Throws user_error (bad_usage) that names what is missing when `with` brings fewer
/// than the recorded run had. Ghosts need not be brought.
run_case parse_case(std::string_view text, const run_plan& with = {});

/// The case of a run that explore() reported.
run_case case_of(const run_report& report, const variant& what);
run_report replay(const run_case& what, modular_reference& reference);
/// What is odd about a replay, one sentence each: recorded by another build, what was expected is
/// not violated, what it was to meet it does not. None: it went as the case says.
std::vector<std::string> remarks(const run_case& what, const run_report& replayed);

/// Removes faults, then choices, and lowers what is left, as long as the expected oracle is still
/// violated, in `runs` runs at most; every 250,000 events of a run count as one more. A case of a
/// seed is turned into one of choices first. A case that does not violate what it expects comes
/// back as it is.
run_case shrink(const run_case& what, modular_reference& reference, std::uint64_t runs = 400);

/// What broke, which faults struck, the last moments as a chart. The report must have been
/// recorded. `replay_line`: how to see it again.
std::string render(const run_report& report, std::string_view replay_line = {});

}  // namespace troupe::testing
