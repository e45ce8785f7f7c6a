// Exploration: many runs of one job, each with its own seed, schedule and faults, checked by the
// oracles.
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
  double seconds = 0;               ///< 0: no limit; else the first limit that is reached ends it
  bool portfolio = true;            ///< the seed chooses the schedule; else the plan does
  bool vary_job = true;             ///< the seed varies the job, too: see variant_of
  std::uint64_t violations = 1;     ///< stop after so many runs with a violation
  bool determinism_checks = false;  ///< repeat each run (determinism_check.hpp)
};

/// Job and plan of run number `seed` of an exploration: enough to repeat it.
struct variant {
  job_spec job;
  run_plan plan;
};

struct exploration {
  std::uint64_t runs = 0;
  std::uint64_t events = 0;
  std::uint64_t deliveries = 0;
  std::uint64_t attempts = 0;
  std::vector<std::uint64_t> generations;  ///< how many runs formed 1, 2, 3, ... of them
  std::uint64_t checks = 0;
  std::uint64_t determinism_checks = 0;  ///< runs that were repeated and compared
  double seconds = 0;                    ///< of the host's clock
  std::array<std::uint64_t, fault_kinds> faults{};
  std::map<std::string, std::uint64_t> marks;  ///< points that were never hit are listed with 0
  std::uint64_t trace_digest = 0;              ///< of all runs in order
  std::vector<run_report> violating;  ///< repeated with recording, so they hold choices and notes
  std::vector<variant> variants;      ///< job and plan of each of these
  bool clean() const { return violating.empty(); }
  /// No run violates this oracle. Throws user_error (bad_usage) when known_oracles() lacks it.
  bool held(std::string_view oracle) const;
  /// Some run hit this coverage point or had this fault. Throws user_error (bad_usage) for an
  /// unknown name.
  bool met(std::string_view mark_or_fault) const;
  bool met(const user_coverage& which) const { return met(which.text); }
  /// One line per coverage point that was hit, with its count; the others come last.
  std::string marks_text() const;
  /// Adds one run.
  void add(const run_report& report);
};

/// With `vary_job` a seed varies more than the schedule:
/// - ranks per host, accumulation, buffers, one hook per run, the checkpoint interval, and the kind
///   of observer;
/// - whether the hooks of the integer payload call collectives;
/// - of a job that may restart: its processes, spares, min_ranks and on_loss;
/// - for one run in four, fewer samples.
/// A payload may refuse other samples or another accumulation (payload::varies_samples,
/// varies_accumulation).
variant variant_of(const job_spec& what, const run_plan& plan, const budget& of,
                   std::uint64_t seed);

/// Throws user_error (bad_usage) that names the field and its bounds where a case's text could not
/// name the job or the plan, and explore() calls it first.
void check_limits(variant what);

/// `after_each` receives every report; it may be empty. Throws user_error (bad_usage,
/// bad_configuration) that names the seed when the job or the plan cannot be run.
exploration explore(const job_spec& what, const run_plan& plan, const budget& of,
                    const std::function<void(const run_report&)>& after_each = {});

}  // namespace troupe::testing
