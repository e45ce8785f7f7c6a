// A job: what a session runs. Plain data and factories; the command line, the trainer and the
// simulator make the same thing.
#pragma once

#include "troupe/learner.hpp"
#include "troupe/observer.hpp"
#include "troupe/outcome.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

class event_stream;

struct job {
  /// train (fit), validate, test, predict or call.
  stage purpose = stage::train;
  trainer_options options;
  recipe_ptr recipe;
  /// With ranks as processes: what each of them is told to make its recipe from
  /// (actors/rank_process.hpp). Text of the program's own.
  std::string recipe_text;
  /// Checkpoints go to `<run_folder>/checkpoints`, relative to the storage port's root. Empty: no
  /// files. A fit that does not resume is refused where there is a good checkpoint already.
  std::string run_folder;
  /// The checkpoint to resume (fit), or to take the weights from (validate, test, predict): its
  /// folder, a run's folder for the newest good one of that run, or `latest` for that of
  /// `run_folder`. The last two are looked up in the initiating call, which reads the checkpoint.
  /// Unset: none. An empty path is refused: it is what an outcome without a checkpoint has.
  std::optional<std::string> resume;
  /// Weights to start with, before the first broadcast; null: the module's own.
  snapshot_ptr initial;
  std::vector<observer_factory> observers;
  /// What observers hear, as a stream for a coroutine or any other completion token; null: none.
  std::shared_ptr<event_stream> events;
  /// Called at entry of every hook, in the order in which each rank handles them; on the lanes'
  /// threads, so thread-safe and cheap. Empty: no trace.
  std::function<void(std::int32_t rank, const hook& what)> trace;
};

}  // namespace troupe
