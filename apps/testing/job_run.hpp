// One complete run of a job: faults are applied, an operator resumes a failed job from the newest
// good checkpoint until it finishes, and oracles check every step.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/testing/extension.hpp"
#include "apps/testing/faults.hpp"
#include "apps/testing/payload.hpp"
#include "apps/testing/simulated_job.hpp"
#include "apps/testing/test_observer.hpp"
#include "backends/simulated/modular_learner.hpp"

namespace troupe::testing {

/// The job that is trained.
struct job_spec {
  std::int32_t ranks = 8;
  std::int64_t steps = 20;
  std::int64_t samples = 100;
  std::int64_t batch_size = 2;
  std::int64_t accumulate = 1;
  std::int64_t checkpoint_every = 5;
  std::size_t width = 8;
  bool buffers = false;
  bool one_hook_per_run = false;
  bool collectives = false;  ///< the integer payload's hooks call collectives
  std::uint64_t seed = 0;    ///< of the data and the weights, not of the simulation
  nanoseconds detect = std::chrono::milliseconds{500};
  nanoseconds hook_limit = std::chrono::seconds{20};
  // As in elastic_options.
  std::int32_t max_restarts = 0;
  elastic_options::loss on_loss = elastic_options::loss::replace;
  std::int32_t min_ranks = 1;
  std::int32_t spares = 0;
  /// Processes that the job begins with, where ranks have processes: each gets its share of the
  /// ranks. 0: one per rank.
  std::int32_t processes = 0;

  /// As the ranks see them: `ranks` is the number of shards.
  trainer_options options() const;
  /// As a caller gives them: `ranks` is the number of processes.
  trainer_options asked() const;
};

struct run_plan {
  simulation_options simulation;
  cluster_model cluster{.compute = std::chrono::milliseconds{50}};
  fault_options faults;
  /// Most runs of the program; the last two have no faults. An operator starts it again when its
  /// job has failed (`job_spec::max_restarts`), was stopped or was killed.
  std::uint32_t attempts = 6;
  std::uint64_t events_limit = 2'000'000;
  test_observer observer = test_observer::none;
  std::vector<extension_fn> extensions;  ///< parts that the test supplies; not in a case's text
  std::vector<user_coverage> marks;  ///< coverage points of the test's code; not in a case's text
  std::shared_ptr<testing::payload> payload;  ///< null: the integer payload
};

/// What an oracle found. Undefined numbers are -1.
struct violation {
  std::string oracle;
  std::string text;
  std::int64_t step = -1;
  std::int32_t rank = -1;
  std::string parameter;
  std::int64_t element = -1;
  std::uint64_t event = 0;
  friend bool operator==(const violation&, const violation&) = default;
};
std::ostream& operator<<(std::ostream& out, const violation& v);

struct run_report {
  std::uint64_t seed = 0;
  bool finished = false;
  std::uint32_t attempts = 0;
  std::uint32_t generations = 0;  ///< formed in all attempts
  std::uint64_t events = 0;
  std::uint64_t deliveries = 0;
  nanoseconds virtual_time{0};
  trace_hashes hashes;
  std::string weights_digest;
  straggler_report stragglers;                      ///< step times and stragglers
  std::array<std::uint64_t, fault_kinds> faults{};  ///< applied faults
  std::map<std::string, std::uint64_t> marks;       ///< of the simulator: paths that were taken
  coverage_counts product{};                        ///< of the product, by coverage point
  std::vector<coverage_book::own_count> own;        ///< of the test's code
  std::uint64_t checks = 0;                         ///< number of checks by oracles
  std::vector<violation> violations;
  std::vector<choice> taken;        ///< when recorded
  std::vector<trace_note> notes;    ///< when recorded; faults begin with "fault: "
  std::vector<event_hashes> trail;  ///< when recorded
  std::vector<std::string> nodes;   ///< names, when recorded
  bool violates(std::string_view oracle) const;
};

/// Oracle that a run violates when a payload, its reference or an extension throws.
inline constexpr const char* exception_oracle = "no run ends by an exception";

/// Thread-compatible: the call may extend `reference`, so each thread needs its own. It must belong
/// to the same job. Throws user_error (bad_usage, bad_configuration) for a job or a plan that
/// cannot be run; any other std::exception is a violation of the run (`exception_oracle`).
run_report run_job(const job_spec& what, const run_plan& plan, choices from,
                   modular_reference& reference);
/// Makes the reference of a job.
modular_reference reference_of(const job_spec& what);
/// Names of all coverage points of simulator and product, so that those never hit can be listed.
const std::vector<std::string>& known_marks();
/// Adds a run's hits to counts by the names of `known_marks`.
void add_marks(std::map<std::string, std::uint64_t>& to, const run_report& of);
/// Names of all oracles.
const std::vector<std::string>& known_oracles();

}  // namespace troupe::testing
