// Many runs of one job, each with a seed of its own: schedules, faults, oracles, and what they
// found.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "apps/testing/determinism_check.hpp"
#include "apps/testing/job_run.hpp"

namespace troupe::testing {

struct budget {
  std::uint64_t first_seed = 0;
  std::uint64_t runs = 100;
  double seconds = 0;               ///< 0: no limit; else whatever comes first
  bool portfolio = true;            ///< the schedule goes with the seed; else the plan's
  bool vary_job = true;             ///< so does the job: see variant_of
  std::uint64_t violations = 1;     ///< stop behind so many runs that violate
  bool determinism_checks = false;  ///< repeat each run (determinism_check.hpp)
};

/// What run number `seed` of an exploration runs: enough to do it again.
struct variant {
  job_spec job;
  run_plan plan;
};

struct exploration {
  std::uint64_t runs = 0;
  std::uint64_t events = 0;
  std::uint64_t deliveries = 0;
  std::uint64_t attempts = 0;
  std::uint64_t checks = 0;
  std::uint64_t determinism_checks = 0;  ///< runs that were compared with their twins
  double seconds = 0;                    ///< of the host's clock
  std::array<std::uint64_t, fault_kinds> faults{};
  std::map<std::string, std::uint64_t> marks;  ///< those never hit are there with 0
  std::uint64_t trace_digest = 0;              ///< of all runs in order
  std::vector<run_report> violating;           ///< with choices and notes: they ran again, recorded
  std::vector<variant> variants;               ///< what they ran, one for each
  bool clean() const { return violating.empty(); }
  /// No run violates this oracle. Throws user_error (bad_usage) when known_oracles() lacks it.
  bool held(std::string_view oracle) const;
  /// Some run met this mark or fault. Throws user_error (bad_usage) when there is none of the name.
  bool met(std::string_view mark_or_fault) const;
  bool met(const user_coverage& which) const { return met(which.text); }
  /// Each mark that was hit and how often, one line each; last those that never were.
  std::string marks_text() const;
  /// Counts one run.
  void add(const run_report& report);
};

/// With `vary_job` a seed draws more than the schedule:
/// - ranks per host, accumulation, buffers, runs of one hook, how often a checkpoint is due, and
///   which observer watches;
/// - for one run in four, fewer samples, if the payload allows it (payload::varies_samples).
variant variant_of(const job_spec& what, const run_plan& plan, const budget& of,
                   std::uint64_t seed);

/// `after_each` receives every report; it may be empty. Throws user_error (bad_usage,
/// bad_configuration) that names the seed when the job or the plan cannot be run.
exploration explore(const job_spec& what, const run_plan& plan, const budget& of,
                    const std::function<void(const run_report&)>& after_each = {});

}  // namespace troupe::testing
