// Checks that a resumed fit does not change settings that must stay the same. They are recorded in
// the checkpoint's state. learner_recipe::check_fit compares them before the start, and every rank
// compares them when it loads the checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/data.hpp"
#include "troupe/detail/data_order.hpp"
#include "troupe/options.hpp"
#include "troupe/value.hpp"

namespace troupe {

struct module;
class optimizers;

/// Ranks, batch size and limits may change on a resume; they are recorded for checkpoints without a
/// cursor. A field that the checkpoint lacks is not compared.
struct fit_record {
  std::uint64_t seed = 0;
  std::string data;           ///< data_module::name(); empty: not known
  std::int64_t samples = -1;  ///< of training; -1: not known
};

/// JSON text: `{"seed": 0, "data": "synthetic", "samples": 960}`, without unknown fields.
/// Throws user_error(errc::checkpoint) for a name that is not UTF-8.
std::string record_text(const fit_record& what);
/// Throws user_error (bad_configuration) that names the first difference between `now` and the
/// record in the state of `from`, and the value to set.
void check_record(const snapshot& from, const fit_record& now, const std::string& path);

/// The cursor at which a fit with `layout` resumes `from`: the recorded one. For a checkpoint
/// without one (of an earlier version), it is computed from the recorded ranks and this run's batch
/// size and limit. Throws user_error (checkpoint) if the checkpoint's samples do not match these,
/// or if the cursor lies past the end of the data.
std::int64_t cursor_of(const snapshot& from, const data_layout& layout,
                       const trainer_options& options, const std::string& path);

/// Checks that the optimizers that `made` configures can load their state from `from`, once they
/// have the parameters that hooks had added. One that still lacks some is left to the ranks. Throws
/// user_error (checkpoint) that names the difference. Returns the optimizers.
optimizers check_optimizers(module& made, const snapshot& from, const std::string& path);

}  // namespace troupe
