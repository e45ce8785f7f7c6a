// What a rank's module has logged and not reduced yet. No LibTorch, no communicator: the exchange
// between ranks is passed in.
#pragma once

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
  /// The weight of a mean; default: the batch's samples of this rank.
  std::optional<std::int64_t> batch_size;
  /// With several evaluation loaders: the loader's number behind the name,
  /// `val/loss/dataloader_idx_1`. False: one number over all loaders.
  bool add_dataloader_idx = true;
};

/// Every rank's bytes, by rank. All ranks give the same number of bytes, at the same time.
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

  /// `sum` stands for `count` numbers. Throws user_error when the name was logged with another
  /// reduction.
  void add(std::string_view name, double sum, double count, log_reduction how);
  bool empty() const { return entries_.empty(); }
  void clear() { entries_.clear(); }

  /// What all ranks logged, the same on each; starts anew. Collective: every rank calls it at the
  /// same place. A rank that logged nothing since the last time says nothing; ranks that did must
  /// have logged the same names in the same way, else user_error naming who logged what, on all.
  /// Two exchanges, three when a silent rank lacks names.
  metrics reduce(const byte_exchange& exchange);

  /// All ranks' numbers together, as reduce sees them, without starting anew; collective.
  metric_accumulator total(const byte_exchange& exchange) const;

  const std::map<std::string, entry>& entries() const { return entries_; }
  /// From a checkpoint: rank 0 takes the numbers, the others the names alone.
  void restore(const std::map<std::string, entry>& saved, bool numbers);

  friend bool operator==(const metric_accumulator&, const metric_accumulator&) = default;

private:
  void agree(const byte_exchange& exchange);

  std::map<std::string, entry> entries_;
};

}  // namespace troupe
