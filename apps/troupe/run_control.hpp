// What a running program says of its job, and what it does on a request to its control socket
// (docs/running.md).
#pragma once

#include "apps/troupe/exit_status.hpp"
#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/launched.hpp"
#include "apps/troupe/run_loggers.hpp"
#include "troupe/options.hpp"
#include "troupe/trainer.hpp"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <string>

namespace troupe::program {

/// The test after a fit: what the job that runs now says, and what is known of the fit. Within the
/// bounds of a job_status: of 512 metrics and 16 failures the newest stay.
job_status together(job_status fit, const job_status& test);

/// How this call of the program stands, as the request `status` and `troupe status` print it: its
/// fit, then the test after it. For one thread.
class live_status {
public:
  /// `step`: where a run that is resumed begins. `hidden`: metrics that are left out.
  live_status(const trainer_options& options, std::int64_t step, hidden_figures hidden = {});

  /// The job that runs from now on (job_context::started).
  void hold(job_handle now);
  job_status as_status() const;
  nlohmann::ordered_json as_json() const;

private:
  job_status unfiltered() const;

  hidden_figures hidden_;
  job_status before_;  ///< what is known without the job that runs
  job_handle running_;
  bool fitted_ = false;
};

/// What answers depend on: who started the ranks, and what a stop leaves now.
struct request_rules {
  trainer_options options{};
  std::optional<launched> by{};
  left_by_stop left = left_by_stop::nothing;
};

/// Answers one line. `note` shows the user of the program what was asked for. A number of ranks
/// that the job cannot have is refused with the reason.
std::string answer_request(const std::string& line, job_runner& runner, const live_status& live,
                           const request_rules& rules,
                           const std::function<void(const std::string&)>& note);

}  // namespace troupe::program
