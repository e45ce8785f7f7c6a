// A case is a short text from which one simulated run can be repeated. It can be pasted into an
// issue, or kept as a regression test.
//
//   troupe-case/2
//   build 6f0c9b...                         (build that recorded it; optional)
//   expect state equals the reference       (oracle that was violated; optional)
//   meets crash_rank, resumed from a checkpoint
//   job ranks=8 steps=20 ...                (other fields: the defaults of job_spec)
//   plan schedule=1 depth=3 ...
//   brings extensions=1 marks=3             (parts that exist only in a test's code; optional)
//   payload none                            (integers, if the line is missing)
//   faults crash_rank,pause
//   seed 123
//   choices fault.0.0=1 detail.256.0=3 ...  (without this line, the seed makes all draws)
//   end
//
// Blanks around a line and lines that begin with # are ignored.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/testing/explore.hpp"

namespace troupe::testing {

struct run_case {
  variant what;
  std::uint64_t seed = 0;
  std::optional<std::vector<choice>> taken;  ///< empty: the seed makes all draws
  std::string expect;                        ///< violated oracle; empty: none
  std::string build;               ///< build_id() of the recording program; empty: unknown
  std::vector<std::string> meets;  ///< faults that were applied and coverage points that were hit
};

/// Identifies the build of the running program. Empty if the linker wrote no build id.
std::string build_id();

std::string to_text(const run_case& what);
/// Throws user_error (bad_usage) that names the line it does not understand, the field and its
/// bounds. Extensions, user coverage points, the network's costs and slow hosts are not part of the
/// text: it only says how many there were. Of a payload it holds the name. `with` supplies these
/// parts; its other members are ignored. Throws user_error (bad_usage) that names the missing part
/// when `with` supplies fewer than the recorded run had. The payload `none` need not be supplied.
run_case parse_case(std::string_view text, const run_plan& with = {});

/// Makes the case of a run that explore() reported.
run_case case_of(const run_report& report, const variant& what);
run_report replay(const run_case& what, modular_reference& reference);
/// Compares a replay with its case. Each sentence names a difference: another build recorded it,
/// the expected violation did not occur, or an expected fault or coverage point was not met. Empty:
/// the replay did what the case says.
std::vector<std::string> remarks(const run_case& what, const run_report& replayed);

/// Removes faults, then choices, and lowers the remaining values, as long as the expected oracle is
/// still violated. Does at most `runs` runs; every 250,000 events of a run count as one more. A
/// case without choices gets those of its seed first. A case that does not violate the expected
/// oracle is returned unchanged.
run_case shrink(const run_case& what, modular_reference& reference, std::uint64_t runs = 400);

/// Describes a recorded run: the violation, the applied faults, and a chart of the last events.
/// `replay_line` says how to repeat it.
std::string render(const run_report& report, std::string_view replay_line = {});
/// Describes a violating run of explore() whose replay does not violate the same oracle, or that
/// differed in another host. Otherwise empty: the report of the replay says it all.
std::string render_unrepeated(const run_report& found, const run_report& replayed);

}  // namespace troupe::testing
