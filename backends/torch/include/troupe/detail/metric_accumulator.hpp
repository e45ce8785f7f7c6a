// Accumulates the metrics that a rank's module logs until they are reduced over ranks. It knows
// neither LibTorch nor a communicator: the caller passes the exchange between ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/detail/loop_state.hpp"

namespace troupe {

enum class log_reduction : std::uint8_t { mean, sum, min, max };

/// How a number is logged.
struct log_options {
  std::optional<bool> on_step;   ///< default: in training steps
  std::optional<bool> on_epoch;  ///< default: elsewhere
  log_reduction reduce = log_reduction::mean;
  /// The weight of a mean; default: the number of this rank's samples in the batch, and 1 in hooks
  /// outside of batches. 0: the number does not count. Below 0: a user_error (job_failed).
  std::optional<std::int64_t> batch_size;
  /// With several evaluation loaders each has a value of its own, whose name ends in the loader's
  /// number: `val/loss/dataloader_idx_1`. False: one value over all loaders.
  bool add_dataloader_idx = true;
  /// Progress displays show it; by default only `train/loss` and `val/accuracy`.
  bool prog_bar = false;
};

/// Returns every rank's bytes, by rank. Collective; all ranks pass the same number of bytes.
using byte_exchange =
    std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte> mine)>;

/// Numbers by name, summed in float64. A regular value.
class metric_accumulator {
public:
  struct entry {
    log_reduction how = log_reduction::mean;
    double sum = 0;
    double count = 0;
    double least = 0;
    double most = 0;
    bool touched = false;  ///< since the last reduction
    friend bool operator==(const entry&, const entry&) = default;
  };

  /// `sum` is the sum of `count` numbers. Throws user_error if the name was logged with another
  /// reduction before.
  void add(std::string_view name, double sum, double count, log_reduction how);
  /// A batch begins, of which this rank has samples or none. All ranks call it for each batch.
  void begin_batch(bool has_samples) { ++(has_samples ? batches_ : batches_without_samples_); }
  /// This rank has taken another one's place and lacks what that one logged last: as if it had had
  /// no samples so far.
  void may_lack_names() {
    batches_without_samples_ = std::max<std::int64_t>(1, batches_without_samples_ + batches_);
    batches_ = 0;
  }
  bool empty() const { return entries_.empty(); }
  void clear() { *this = {}; }

  /// Reduces the values of all ranks and clears them. Collective: every rank calls it at the same
  /// place and gets the same metrics. A rank may have logged nothing since the last call, or other
  /// names if it had samples in none of the batches since then: it ran no step. All other ranks
  /// must have logged the same names in the same way, or fewer if they lacked samples of some
  /// batch; else every rank throws a user_error that says which rank logged which names. Costs two
  /// exchanges, three or four if a rank lacks names.
  metrics reduce(const byte_exchange& exchange);

  /// The accumulated values of all ranks, as `reduce` sees them, without clearing. Collective.
  metric_accumulator total(const byte_exchange& exchange) const;

  const std::map<std::string, entry>& entries() const { return entries_; }
  /// Everything in it, for ranks of the same build, and back. `parse` removes what it reads from
  /// the front of `bytes`.
  std::string bytes() const;
  static metric_accumulator parse(std::string_view& bytes);
  /// The accumulated values of several ranks, in their order, as `total` of all of them.
  static metric_accumulator joined(const std::vector<metric_accumulator>& ranks);
  /// The values of several ranks, in their order, as `reduce` of all of them would give.
  static metrics reduced(const std::vector<metric_accumulator>& ranks);
  /// Restores from a checkpoint: rank 0 passes `numbers` true, other ranks restore the names only.
  void restore(const std::map<std::string, entry>& saved, bool numbers);

  friend bool operator==(const metric_accumulator&, const metric_accumulator&) = default;

private:
  void agree(const byte_exchange& exchange);
  bool ran_no_step() const { return batches_ == 0 && batches_without_samples_ > 0; }

  std::map<std::string, entry> entries_;
  std::int64_t batches_ = 0;                  // with samples of this rank, since the last reduction
  std::int64_t batches_without_samples_ = 0;  // the others
};

}  // namespace troupe
