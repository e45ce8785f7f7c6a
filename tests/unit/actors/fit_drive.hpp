// Plays the lane for one fit machine: it answers runs with the outcome that each hook would have.
#pragma once

#include "actors/fit_machine.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fit_drive {

/// What the learner of a test reports about its data and optimizers.
struct facts {
  std::int64_t train = 3;                ///< batches of an epoch
  std::vector<std::int64_t> val = {2};   ///< batches of each validation loader
  std::vector<std::int64_t> test = {2};  ///< batches of each test or predict loader
  troupe::optimizer_facts optimizers;
  /// Parts in time of the batches, in turn; where `optimizers` says that batches are split.
  std::vector<std::int32_t> splits = {3, 1, 2};
  std::optional<troupe::loop_state> restored;
  /// Metrics that every validation logs, the sanity check included.
  troupe::metrics validation = {{"val/loss", 1.0}};
};

/// Changes the outcome of a hook: for example its word (skip_epoch at on_train_batch_start), or a
/// stop at any hook.
using interfere = std::function<void(const troupe::hook&, troupe::hook_outcome&)>;

/// The order to stop after so many steps.
inline troupe::stop_at stop_after(std::int64_t step,
                                  troupe::stop_reason why = troupe::stop_reason::caller) {
  troupe::stop_at order{{}, why};
  order.at.step = troupe::step_id{step};
  return order;
}

/// One machine and what came out of it so far.
class driver {
public:
  driver(troupe::fit_plan plan, facts known, interfere more = {});

  /// Passes an event to the machine and records its actions.
  void give(const troupe::fit_event& event);
  void begin() { give(troupe::fit_events::begin{}); }
  /// Handles the hooks of `run`, the action that waits for an answer, and gives the machine the
  /// answer. Returns false if no `run` waits.
  bool answer();
  /// Answers the first `n` hooks of the run with the attention word.
  void cut(std::uint32_t n);
  /// The generation closes while the run is in flight: its first `n` hooks are handled, and the
  /// next one throws if there is one. The machine returns to its last point.
  void interrupt(std::uint32_t n);
  /// Answers runs until the machine has finished or holds.
  void drain() {
    while (answer()) {
    }
  }

  troupe::fit_machine machine;
  std::vector<troupe::hook> hooks;              ///< all handled hooks
  std::vector<std::size_t> runs;                ///< the number of hooks of each run
  std::optional<troupe::fit_actions::run> run;  ///< in flight
  std::vector<std::int64_t> votes;
  std::vector<std::int64_t> steps;
  std::vector<troupe::fit_actions::metrics_known> known;
  std::vector<troupe::loop_state> snapshots;  ///< the loop states of save_checkpoint
  std::optional<troupe::fit_actions::finished> end;
  bool set_up = false;  ///< the machine waits for the state of a point

private:
  struct filer;
  troupe::hook_outcome outcome_of(const troupe::hook& h) const;
  void handled(const troupe::hook& h);

  facts facts_;
  interfere more_;
};

/// The `name` of each hook, separated by blanks.
std::string names(const std::vector<troupe::hook>& hooks);
/// Each hook as it prints, one per line.
std::vector<std::string> lines(const std::vector<troupe::hook>& hooks);
/// Runs the plan to its end without interruption.
driver run_through(const troupe::fit_plan& plan, const facts& known, const interfere& more = {});

}  // namespace fit_drive
