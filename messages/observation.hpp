// What observers hear. They cannot stall a rank and cannot change a result.
#pragma once

#include "messages/failure.hpp"
#include "messages/hooks.hpp"
#include "messages/loop_state.hpp"

#include <map>
#include <string>
#include <variant>

namespace troupe {

namespace seen {

/// A rank handled a hook. Sent by rank actors after the run that held it. Only to observers that
/// ask for hooks.
struct hook {
  std::int32_t rank = 0;
  troupe::hook what;
};
/// Reduced values became known (rank 0 sends them): `logged` at optimizer step `at.step`.
struct metrics {
  position at;
  troupe::metrics logged;
};
/// Rank 0 finished a step or an evaluation batch. Progress displays live on it; the first to be
/// dropped when a queue is full.
struct progress {
  position at;
  std::int64_t batches = undefined;  ///< of the loader, after limits
  std::int64_t samples = 0;          ///< consumed so far, all ranks
};
/// Something in the life of the job: `rank_started`, `generation_formed`, `generation_active`,
/// `generation_closed`, `checkpoint_written`, `checkpoint_failed`, `stop_requested`, `stop_agreed`,
/// `rank_failed`, `rank_finished`, `teardown`, `survivor`, `job_ended`. Details are text and
/// numbers, ready for events.jsonl. Never dropped.
struct lifecycle {
  std::string event;
  std::int32_t rank = -1;
  std::uint64_t generation = 0;
  std::int64_t step = undefined;
  std::map<std::string, std::string> details;
};

}  // namespace seen

using observation = std::variant<seen::hook, seen::metrics, seen::progress, seen::lifecycle>;

/// How many observations there was no room for. No others are ever dropped.
struct dropped_observations {
  std::uint64_t progress = 0;
  std::uint64_t hooks = 0;

  std::uint64_t all() const { return progress + hooks; }
  void add(const dropped_observations& more) {
    progress += more.progress;
    hooks += more.hooks;
  }
  void add(const observation& one) {
    if (std::holds_alternative<seen::hook>(one))
      ++hooks;
    else
      ++progress;
  }
  friend bool operator==(const dropped_observations&, const dropped_observations&) = default;
};

}  // namespace troupe
