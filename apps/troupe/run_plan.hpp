// The folder, the checkpoint and the resulting settings of a call of fit, validate, test or
// predict.
#pragma once

#include "apps/troupe/checkpoint_reader.hpp"
#include "apps/troupe/run_folder.hpp"
#include "apps/troupe/settings_sources.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::program {

struct run_plan {
  program::settings settings;
  std::string folder;      ///< the run's; empty for an evaluation without one
  std::string checkpoint;  ///< to continue from, or to read weights from; verified; empty: none
  std::int64_t step = 0;   ///< the checkpoint's
  bool resumes = false;    ///< the folder holds a run that continues
  std::shared_ptr<run_folder> held;  ///< that folder, locked; null: it holds no run
  std::vector<std::string> notes;
};

/// A note for each damaged checkpoint that is newer than the one that was found.
std::vector<std::string> passed_over(const found_checkpoint& found);

/// The plan of a fit. Only with `resume` may the folder hold a run, the checkpoint's. `resume`
/// without a folder means the checkpoint's own run, or the run started last. That run's config.toml
/// is read first, also for a new folder, unless another configuration is named. A run that ended
/// before its first checkpoint starts again.
/// `fresh` names a new folder. Throws user_error with the fix; changes nothing but `lock`.
run_plan plan_fit(const schema& all, given what, const checkpoint_reader& checkpoints,
                  const std::function<std::string(const std::string& model)>& fresh);

/// The plan of an evaluation. Its weights come from `resume` (or its other name, `checkpoint`), the
/// folder's latest checkpoint, or init_weights. Throws user_error: none is named (bad_usage), or a
/// folder and a checkpoint of another run (bad_configuration).
run_plan plan_evaluation(const schema& all, given what, const checkpoint_reader& checkpoints,
                         const std::string& command);

}  // namespace troupe::program
