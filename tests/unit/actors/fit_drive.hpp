// Plays the lane for one fit machine: answers runs, and says what each hook would.
#pragma once

#include "actors/fit_machine.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fit_drive {

/// What the learner of a test knows about its data and optimizers.
struct facts {
  std::int64_t train = 3;                ///< batches of an epoch
  std::vector<std::int64_t> val = {2};   ///< batches of each validation loader
  std::vector<std::int64_t> test = {2};  ///< of each test or predict loader
  troupe::optimizer_facts optimizers;
  std::optional<troupe::loop_state> restored;
  /// Metrics that every validation (sanity included) logs.
  troupe::metrics validation = {{"val/loss", 1.0}};
};

/// Answers for each hook of a run, beyond the facts: may change the word (skip_epoch at
/// on_train_batch_start, stop anywhere).
using interfere = std::function<void(const troupe::hook&, troupe::hook_outcome&)>;

/// One machine and what came out of it so far.
class driver {
public:
  driver(troupe::fit_plan plan, facts known, interfere more = {});

  /// Hands an event to the machine and files its actions.
  void give(const troupe::fit_event& event);
  void begin() { give(troupe::fit_events::begin{}); }
  /// Answers the run in flight. False when there is none.
  bool answer();
  /// Answers the first `n` hooks of it with the attention word.
  void cut(std::uint32_t n);
  /// Answers runs until the machine ends or holds.
  void drain() {
    while (answer()) {
    }
  }

  troupe::fit_machine machine;
  std::vector<troupe::hook> hooks;              ///< all that were handled
  std::vector<std::size_t> runs;                ///< how many hooks each run brought
  std::optional<troupe::fit_actions::run> run;  ///< in flight
  std::vector<std::int64_t> votes;
  std::vector<std::int64_t> steps;
  std::vector<troupe::fit_actions::metrics_known> known;
  std::vector<troupe::loop_state> snapshots;  ///< what save_checkpoint carried
  std::optional<troupe::fit_actions::finished> end;

private:
  troupe::hook_outcome outcome_of(const troupe::hook& h) const;
  void handled(const troupe::hook& h);

  facts facts_;
  interfere more_;
};

/// `name` of each hook, one behind the other, separated by blanks.
std::string names(const std::vector<troupe::hook>& hooks);
/// Each hook as it prints, one per line.
std::vector<std::string> lines(const std::vector<troupe::hook>& hooks);
/// The whole uninterrupted run.
driver run_through(const troupe::fit_plan& plan, const facts& known, const interfere& more = {});

}  // namespace fit_drive
