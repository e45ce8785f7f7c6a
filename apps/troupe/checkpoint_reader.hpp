// What commands read of checkpoints: in Troupe's format, or in that of a program's plug-ins.
#pragma once

#include "backends/checkpoint/run_checkpoints.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::program {

/// Const and thread-safe. Every function waits for the disk, and throws user_error(checkpoint).
class checkpoint_reader {
public:
  /// `own`: a program's format; null: Troupe's.
  explicit checkpoint_reader(std::shared_ptr<const checkpoint_io> own);

  /// checkpoint_io::latest.
  found_checkpoint latest(const std::string& run) const;
  /// Reads and verifies the whole checkpoint: checkpoint_io::read.
  snapshot read(const std::string& folder) const;
  /// What its commit file says; of a program's format without files, tensors and versions.
  manifest inspect(const std::string& folder) const;
  /// list_checkpoints.
  std::vector<listed_checkpoint> list(const std::string& run) const;

private:
  std::shared_ptr<const checkpoint_io> own_, format_;
};

}  // namespace troupe::program
