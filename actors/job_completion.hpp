// How a job's outcome reaches its caller.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "troupe/failure.hpp"
#include "troupe/outcome.hpp"

namespace troupe {

/// What ended the supervisor; empty: no exception. Written before its state is destroyed.
using supervisor_error = std::shared_ptr<std::string>;

/// Completes the job exactly once, at the latest when the supervisor's state is destroyed.
class job_completion {
public:
  job_completion(std::function<void(job_outcome)> complete, supervisor_error error)
      : complete_(std::move(complete)), error_(std::move(error)) {}
  ~job_completion() {
    job_outcome outcome;
    caught why;
    why.original =
        std::make_exception_ptr(internal_error("the supervisor ended before its job" + *error_));
    why.record = describe(why.original);
    outcome.failed_with = std::make_shared<const caught>(std::move(why));
    (*this)(std::move(outcome));
  }
  job_completion(const job_completion&) = delete;
  job_completion& operator=(const job_completion&) = delete;
  void operator()(job_outcome outcome) {
    if (auto call = std::exchange(complete_, nullptr)) call(std::move(outcome));
  }

private:
  std::function<void(job_outcome)> complete_;
  const supervisor_error error_;
};

}  // namespace troupe
