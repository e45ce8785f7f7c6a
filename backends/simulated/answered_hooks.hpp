// The hooks that simulated learners answer; they pass by all others.
#pragma once

#include "troupe/hooks.hpp"

namespace troupe {

/// The hook may bring something back, or wait: `learner::on` is to handle it.
inline bool is_answered(const hook& h) {
  using answered =
      hook_list_of<hooks::process_dataloader, hooks::optimizer_step, hooks::save_checkpoint,
                   hooks::load_checkpoint, hooks::barrier, hooks::model_to_device, hooks::teardown>;
  static constexpr auto known = hook_types::each([]<class H>() { return answered::has<H>; });
  return known[h.index()];
}

}  // namespace troupe
