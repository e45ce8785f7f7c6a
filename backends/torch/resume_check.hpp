// What a fit must not change when it resumes a checkpoint: recorded in the checkpoint's state,
// compared on every rank when it loads the checkpoint, and by learner_recipe::check_fit before.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/data.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/options.hpp"
#include "troupe/snapshot.hpp"

namespace troupe {

struct module;

/// Ranks, batch size and limits may change on a resume; they are recorded for checkpoints without a
/// cursor. A member that a checkpoint does not have is not compared.
struct fit_record {
  std::uint64_t seed = 0;
  std::string data;           ///< data_module::name(); empty: not known
  std::int64_t samples = -1;  ///< of training; -1: not known
};

/// JSON text: `{"seed": 0, "data": "synthetic", "samples": 960}`, without what is not known.
std::string record_text(const fit_record& what);
/// Throws user_error (bad_configuration) that names the first difference between `now` and what the
/// state of `from` records, and the value to give.
void check_record(const snapshot& from, const fit_record& now, const std::string& path);

/// The cursor at which a fit with `layout` resumes `from`: the recorded one. A checkpoint without
/// one (an earlier version, behind its first epoch) has it where its samples fit the ranks that
/// are recorded and the batch size and limit of this run. Throws user_error (checkpoint) where they
/// do not, and where the cursor lies behind the data's end.
std::int64_t cursor_of(const snapshot& from, const data_layout& layout,
                       const trainer_options& options, const std::string& path);

/// The optimizers that `made` configures take what `from` holds of theirs. Throws user_error
/// (checkpoint) that says what does not fit.
void check_optimizers(module& made, const snapshot& from, const std::string& path);

}  // namespace troupe
