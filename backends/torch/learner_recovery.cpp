// How a learner returns to a point of its run, and how it receives the state of one from its peers.
#include "backends/torch/torch_learner.hpp"

namespace troupe {

void torch_learner::keep_point() {}

void torch_learner::handle(const hooks::rewind&) {
  throw user_error(errc::job_failed, "this learner cannot return to a point");
}

void torch_learner::handle(const hooks::restore_state&) {
  throw user_error(errc::job_failed, "this learner cannot receive a state");
}

}  // namespace troupe
