// Switches of LibTorch that hold for a whole process, as the jobs of this process want them.
#pragma once

#include "troupe/options.hpp"

namespace troupe {

/// Sets what `detect_anomaly`, `deterministic` and `benchmark` ask for, while it exists. Ranks of a
/// process count together: a switch is on while some rank wants it, of two wishes the stricter one
/// counts, and the last rank that leaves restores what the program had set before. So a rank of
/// another job in this process is subject to them too. Thread-safe.
class process_modes {
public:
  explicit process_modes(const trainer_options& wanted);
  ~process_modes();
  process_modes(const process_modes&) = delete;
  process_modes& operator=(const process_modes&) = delete;

private:
  bool anomaly_;
  deterministic_kind deterministic_;
  std::optional<bool> benchmark_;
};

}  // namespace troupe
