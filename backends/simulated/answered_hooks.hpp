// The hooks that simulated learners answer; they pass by all others.
#pragma once

#include "troupe/hooks.hpp"

namespace troupe {

/// The hook may bring something back, or wait: `learner::on` is to handle it.
inline bool is_answered(const hook& h) {
  return h.is<hooks::process_dataloader, hooks::optimizer_step, hooks::save_checkpoint,
              hooks::load_checkpoint, hooks::barrier, hooks::model_to_device, hooks::teardown>();
}

}  // namespace troupe
