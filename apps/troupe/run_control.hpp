// What a running program says of its job, and what it does on a request to its control socket
// (docs/running.md).
#pragma once

#include "apps/troupe/job_runner.hpp"
#include "apps/troupe/result_file.hpp"
#include "troupe/observer.hpp"
#include "troupe/options.hpp"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <memory>
#include <string>

namespace troupe::program {

/// How the job stands now, as the request `status` and `troupe status` print it. Thread-safe.
class live_status {
public:
  /// `age` counts seconds. Of a run that is resumed, `step` is where it begins.
  live_status(const trainer_options& options, std::function<double()> age, std::int64_t step);

  /// Makes the observer of a job. `stage` is its purpose: what this call of the program does now.
  observer_factory watch(std::string stage) const;
  /// `stopping`: a stop was asked for.
  nlohmann::ordered_json as_json(bool stopping) const;

private:
  struct state;
  std::shared_ptr<state> state_;
};

/// Answers one line. `note` shows the user of the program what was asked for. Scaling is refused
/// with `fixed` as the reason unless that is empty.
std::string answer_request(const std::string& line, job_runner& runner, const live_status& live,
                           const std::string& fixed,
                           const std::function<void(const std::string&)>& note);

/// Why the number of these ranks cannot change; empty: it can.
std::string ranks_fixed(const trainer_options& options, bool placed);

}  // namespace troupe::program
