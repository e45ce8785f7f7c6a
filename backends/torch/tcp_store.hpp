// The launcher store over PyTorch's TCPStore: torchrun has one; for Slurm rank 0's launcher serves
// one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/processes/launcher_store.hpp"

namespace troupe {

/// Where the store of a job is.
struct store_place {
  std::string host;
  std::uint16_t port = 0;
  /// This process serves the store, for as long as the object lives. False: another one does.
  bool serves = false;
  /// What the keys of this job begin with.
  std::string prefix;
  std::string launcher;  ///< for errors: `torchrun`
  /// How long a process waits for a store that is not there yet, or that does not answer.
  std::chrono::milliseconds patience = std::chrono::minutes{5};
};

/// Nothing is connected or served before the first call.
std::shared_ptr<launcher_store> tcp_store(store_place where);

}  // namespace troupe
