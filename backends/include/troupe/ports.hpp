// The ports of a world, chosen by main and passed in. Two worlds: `local_ports()` is this machine,
// tests build others from simulated adapters.
#pragma once

#include "troupe/checkpoint.hpp"
#include "troupe/communicator.hpp"
#include "troupe/rendezvous.hpp"
#include "troupe/storage.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

namespace troupe {

class entropy;
class lane_backend;
class process_control;
class rank_launcher;

/// Everything a session's actors may reach outside. All shared and thread-safe. CAF's clock is the
/// clock of the actors; `now` is for what runs outside of them (lanes, figures in results).
struct ports {
  std::vector<std::shared_ptr<communicator_backend>> communicators;  ///< in order of preference
  std::shared_ptr<lane_backend> lanes;
  std::shared_ptr<storage> files;
  /// The format of checkpoints of jobs whose recipe has none of its own, for reading and writing.
  /// Null: those jobs write no checkpoints.
  std::shared_ptr<const checkpoint_io> checkpoints;
  std::shared_ptr<process_control> processes;
  std::shared_ptr<rank_launcher> children;  ///< null: no ranks as processes
  std::vector<std::shared_ptr<rendezvous_kind>>
      rendezvous_kinds;  ///< of such ranks, in order of preference
  std::shared_ptr<troupe::entropy> random;
  std::function<std::chrono::nanoseconds()> now;  ///< monotonic
};

/// Threads of this process, its file system, the kernel's entropy. A fresh set at each call:
/// nothing is shared between two sets.
ports local_ports();

}  // namespace troupe
