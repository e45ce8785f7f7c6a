// Tracks which checkpoints a power loss may destroy: those that a silent storage fault affected
// while they were written.
#pragma once

#include <cstdint>
#include <set>

#include "backends/simulated/disk.hpp"

namespace troupe::testing {

/// Follows the operations of one checkpointer after the other (actors/checkpoint_machine.hpp).
class durability_tracker {
public:
  /// A new program starts: nothing is being written.
  void program_starts() { writing_ = none; }
  /// Called with each operation and the fault that is applied to it.
  void meets(const storage_op& op, const storage_fault& with);
  /// The checkpoint of that step was reported as durable.
  void announced(std::int64_t step) {
    if (!is_damaged(step)) durable_.insert(step);
  }
  /// The checkpoint of that step may be incomplete, wrong or missing.
  bool is_damaged(std::int64_t step) const { return damaged_.contains(step); }
  /// The newest checkpoint that must survive any fault so far; 0: none.
  std::int64_t newest_durable() const { return durable_.empty() ? 0 : *durable_.rbegin(); }

private:
  static constexpr std::int64_t none = -1;
  void damage(std::int64_t step);

  std::set<std::int64_t> durable_;  // reported, not removed and not damaged
  std::set<std::int64_t> damaged_;
  std::int64_t writing_ = none;
  bool broken_ = false;  // what is being written
};

}  // namespace troupe::testing
