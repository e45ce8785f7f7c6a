// A case: a short text from which one run happens again, pasted into an issue or kept as a
// regression.
//
//   troupe-case/1
//   expect state equals the reference
//   job ranks=8 steps=20 ...
//   plan schedule=1 depth=3 ...
//   faults crash_rank,pause
//   seed 123
//   choices fault.0.0=1 detail.256.0=3 ...      (none: all draws are the seed's)
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
};

std::string to_text(const run_case& what);
/// Throws user_error (bad_usage) that names the line it does not understand.
run_case parse_case(std::string_view text);
run_report replay(const run_case& what, field_reference& reference);

/// Removes and lowers choices as long as the expected oracle is still violated, in `runs` runs at
/// most. A case of a seed is turned into one of choices first.
run_case shrink(const run_case& what, field_reference& reference, std::uint64_t runs = 400);

/// What broke, which faults struck, the last moments as a list of messages, and how to see it
/// again. The report must have been recorded.
std::string render(const run_report& report, std::size_t last_notes = 40);

}  // namespace troupe::testing
