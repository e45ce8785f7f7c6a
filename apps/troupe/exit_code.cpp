#include "apps/troupe/exit_code.hpp"

namespace troupe::program {

int exit_code_of_signal(int signal) { return 128 + signal; }

int exit_code(const std::exception_ptr& error) {
  if (!error) return exits::job_failed;
  try {
    std::rethrow_exception(error);
  } catch (const user_error& e) {
    return static_cast<int>(e.code());
  } catch (const internal_error&) {
    return exits::internal;
  } catch (...) {
    return exits::job_failed;
  }
}

int exit_code(const job_outcome& outcome) {
  switch (outcome.status) {
    case job_outcome::ending::finished: return exits::done;
    case job_outcome::ending::stopped: return exits::stopped_early;
    case job_outcome::ending::failed: break;
  }
  if (!outcome.failed_with) return exits::job_failed;
  return static_cast<int>(outcome.failed_with->record.code);
}

}  // namespace troupe::program
