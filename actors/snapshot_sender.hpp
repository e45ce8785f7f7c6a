// How rank 0's process sends snapshots to the checkpointer, which lives in the supervisor's
// process.
#pragma once

#include "actors/deciders.hpp"
#include "backends/link.hpp"

#include <cstdint>
#include <vector>

namespace troupe {

/// Sends snapshots over a link that may be slower than training. As with the checkpointer itself, a
/// newer snapshot takes the place of one that still waits, unless that one must be written or
/// keep_best would keep it (at most `waiting_best_limit` of these wait, see actors/deciders.hpp).
/// What a resumed run had kept is not known here: more snapshots may pass than the checkpointer
/// keeps. Each message says how many snapshots before it were replaced. One thread at a time.
class snapshot_sender {
public:
  /// `to` outlives it.
  snapshot_sender(link& to, checkpoint_policy policy) : to_(to), policy_(std::move(policy)) {}

  void send(write_checkpoint m);

private:
  struct waiting_snapshot {
    std::uint64_t tag = 0;
    kept_checkpoint what;
    std::int64_t skipped = 0;
  };

  void remember(kept_checkpoint sent);

  link& to_;
  checkpoint_policy policy_;
  std::uint64_t tags_ = 0;
  std::vector<waiting_snapshot> waiting_;  // in the link, unless they have left since
  std::vector<kept_checkpoint> sent_;      // the best keep_best of those that have left
};

}  // namespace troupe
