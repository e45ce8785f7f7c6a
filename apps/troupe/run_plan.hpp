// What a call of fit, validate, test or predict works on: which folder, which checkpoint, and the
// settings that follow from them.
#pragma once

#include "apps/troupe/settings_sources.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::program {

struct run_plan {
  program::settings settings;
  std::string folder;      ///< the run's; empty for an evaluation without one
  std::string checkpoint;  ///< to continue from, or to take weights from; verified; empty: none
  std::int64_t step = 0;   ///< the checkpoint's
  bool resumes = false;    ///< the folder holds a run that is gone on with
  std::vector<std::string> notes;
};

/// Where a fit works. A folder that holds a run is gone on with by `resume` only. `resume` without
/// a folder means the checkpoint's own run, or the run started last; its config.toml is read first
/// unless another configuration is named. A run that was ended before its first checkpoint begins
/// anew. `fresh` names a new folder. Throws user_error naming the fix; changes nothing.
run_plan plan_fit(const schema& all, given what,
                  const std::function<std::string(const std::string& model)>& fresh);

/// Where weights to evaluate come from: `resume` (or its other name, `checkpoint`), the folder's
/// latest checkpoint, or init_weights. Throws user_error (bad_usage) when none is named.
run_plan plan_evaluation(const schema& all, given what, const std::string& command);

}  // namespace troupe::program
