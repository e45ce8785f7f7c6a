// The commands other than fit, validate, test and predict. Each adds its flags and passes its
// action to `choose` when the user calls it.
#pragma once

#include "apps/troupe/context.hpp"
#include "apps/troupe/schema.hpp"

#include "troupe/options.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::program {

class command;
class command_line;

/// What a command does once all flags are read.
using action = std::function<program_end()>;
/// Called by a command that was chosen.
using choose = std::function<void(action)>;

void add_checkpoint(const command& app, const schema& all, const context& around,
                    const choose& chosen);
void add_data(const command& app, const context& around, const choose& chosen);
void add_config(const command& app, const schema& all, const context& around, const choose& chosen);
/// `line` has the commands that are completed, also those that are added later.
void add_completion(const command& app, const command_line& line, const schema& all,
                    const context& around, const choose& chosen);
void add_manual(const command& app, const command_line& line, const context& around,
                const choose& chosen);
void add_models(const command& app, const context& around, const choose& chosen);
void add_doctor(const command& app, const context& around, const choose& chosen);
void add_bench(const command& app, const schema& all, const context& around, const choose& chosen);
/// `report`.
void add_report(const command& app, const context& around, const choose& chosen);
void add_status(const command& app, const context& around, const choose& chosen);
void add_watch(const command& app, const context& around, const choose& chosen);
/// `stop` and `scale`.
void add_control(const command& app, const context& around, const choose& chosen);
/// `tune learning-rate` and `tune batch-size`. Both must outlive the call.
void add_tune(const command& app, const schema& all, const context& around, const choose& chosen);
void add_write(const command& app, const context& around, const choose& chosen);
void add_simulate(const command& app, const context& around, const choose& chosen);

/// The folder of a checkpoint; for the folder of a run, that of its latest good checkpoint. Notes
/// say which damaged ones it passed over.
std::string checkpoint_at(const std::string& path, const context& around);

/// The samples of one rank and micro-batch, for `data order`.
struct ordered_batch {
  std::int64_t step = 0;
  std::int64_t batch = 0;
  std::int64_t rank = 0;
  std::vector<std::int64_t> samples;
};
/// Micro-batches of an epoch that one attempt of a run did.
struct order_part {
  std::int64_t batches = 0;
  std::int64_t ranks = 1;
  std::int64_t batch_size = 1;
};
struct order_question {
  std::int64_t size = 0;
  std::int64_t ranks = 2;
  std::int64_t batch_size = 64;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t accumulate = 1;
  std::vector<order_part> history;  ///< of this epoch, before it went on as above
  batch_limit limit = 1.0;          ///< on the micro-batches of each epoch
  bool shuffle = true;              ///< false: the order of the data, which overfit_batches takes
};
/// Calls back for each batch and rank of the epoch, in order of batches. Steps count from the first
/// step of the first epoch.
void data_order(const order_question& what, const std::function<void(const ordered_batch&)>& take);
/// The number if the whole text is decimal digits; nothing otherwise, or if it is too large.
std::optional<std::uint64_t> whole_number(std::string_view text);
/// For `check` of a flag: the error in this text as a seed; empty if it is valid.
std::string wrong_with_seed(const std::string& text);

}  // namespace troupe::program
