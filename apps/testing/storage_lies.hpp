// Which checkpoints a loss of power may take: those whose way onto the disk a lie touched.
#pragma once

#include <cstdint>
#include <set>

#include "backends/simulated/disk.hpp"

namespace troupe::testing {

/// Follows the operations of one checkpointer after the other (actors/checkpoint_machine.hpp).
class storage_lies {
public:
  /// Another program: nothing is being written.
  void program_starts() { writing_ = none; }
  /// An operation's turn, with the fault that it meets.
  void meets(const storage_op& op, const storage_fault& with);
  /// The checkpoint of that step was said to be durable.
  void announced(std::int64_t step) {
    if (!touched(step)) sure_.insert(step);
  }
  /// What was written of that step last may not be what was asked for, or not be there.
  bool touched(std::int64_t step) const { return lied_.contains(step); }
  /// The newest one that must be there, whatever happened to the disk; 0: none.
  std::int64_t newest_sure() const { return sure_.empty() ? 0 : *sure_.rbegin(); }

private:
  static constexpr std::int64_t none = -1;
  void touch(std::int64_t step);

  std::set<std::int64_t> sure_;  // announced, not retired, and not touched
  std::set<std::int64_t> lied_;
  std::int64_t writing_ = none;
};

}  // namespace troupe::testing
