// The hooks that simulated learners answer; they ignore all others.
#pragma once

#include "troupe/observer.hpp"

namespace troupe {

/// Whether the hook may return something or wait, so that `learner::on` has to handle it.
inline bool is_answered(const hook& h) {
  return h.is<hooks::process_dataloader, hooks::optimizer_step, hooks::save_checkpoint,
              hooks::load_checkpoint, hooks::barrier, hooks::model_to_device, hooks::teardown,
              hooks::rewind, hooks::restore_state>();
}

}  // namespace troupe
