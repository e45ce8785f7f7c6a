// Which checkpoints a loss of power may take: those whose way onto the disk a lie touched.
#pragma once

#include <cstdint>
#include <set>

#include "backends/simulated/disk.hpp"

namespace troupe::testing {

/// Follows the operations of one checkpointer after the other (actors/checkpoint_machine.hpp).
class durability_tracker {
public:
  /// Another program: nothing is being written.
  void program_starts() { writing_ = none; }
  /// An operation's turn, with the fault that it meets.
  void meets(const storage_op& op, const storage_fault& with);
  /// The checkpoint of that step was said to be durable.
  void announced(std::int64_t step) {
    if (!is_damaged(step)) durable_.insert(step);
  }
  /// What was written of that step last may not be what was asked for, or not be there.
  bool is_damaged(std::int64_t step) const { return damaged_.contains(step); }
  /// The newest one that must be there, whatever happened to the disk; 0: none.
  std::int64_t newest_durable() const { return durable_.empty() ? 0 : *durable_.rbegin(); }

private:
  static constexpr std::int64_t none = -1;
  void damage(std::int64_t step);

  std::set<std::int64_t> durable_;  // announced, not retired, and not touched
  std::set<std::int64_t> damaged_;
  std::int64_t writing_ = none;
};

}  // namespace troupe::testing
