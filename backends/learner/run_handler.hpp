// Handles a run of hooks, for every lane: in order, with closures inside optimizer_step. Checks the
// attention word between hooks, injects faults at the entry of a hook, keeps the point that ends a
// run, and turns an exception into its record.
//
// Attention does not end a run
// - after a hook that updated the weights of a step (hook_outcome::samples > 0),
// - directly before an lr_scheduler_step,
// - before a rewind, which follows the end of a generation.
// Hooks that `learner::pass` handles cannot report samples, so the same rule holds for them.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "messages/lane.hpp"
#include "troupe/learner.hpp"

namespace troupe {

/// Handles the runs of one lane. Used by the lane's thread only.
class run_handler {
public:
  struct lane_services {
    const std::atomic<attention>* word = nullptr;
    /// At entry of every hook, and again when a closure's hook has ended and optimizer_step
    /// continues.
    std::function<void(const hook&)> current;
    /// At entry of every hook, once, before an injected fault.
    std::function<void(const hook&)> entered;
    /// Injects a fault other than `raise`, which run_handler throws itself. Empty: any other fault
    /// is an internal error.
    std::function<void(const fault_drill&)> drill;
    /// Reads the text of an exception.
    exception_text text = what_of;
  };
  run_handler(const learner_context& context, lane_services lane);

  /// Never throws: the answer has what a hook threw, with hook, epoch and step.
  ran handle(learner& who, const hook_run& run);
  /// For lanes that handle a run in pieces: continues after the `answer.handled` hooks and adds to
  /// `answer`, until `until` hooks are handled. False: the next hook has to wait. `again`: the next
  /// hook has waited before, so its entry is not reported again.
  bool go_on(learner& who, const hook_run& run, ran& answer, std::size_t until, bool again);

private:
  bool handle_step(learner& who, std::span<const hook> hooks, std::size_t inside,
                   hook_outcome& into);
  bool handle_one(learner& who, const hook& h, const closure& inner, hook_outcome& into);
  void pass(learner& who, std::span<const hook> hooks, std::uint32_t& handled);
  bool stops_before(const hook& next, hook_outcome& so_far) const;
  void enter(const hook& h);
  bool watched() const { return lane_.current || lane_.entered || !drills_.empty(); }
  void failed(ran& answer, failure what) const;
  void drill(const hook& h);

  std::vector<fault_drill> drills_;  ///< the faults still to inject on this rank
  lane_services lane_;
  const hook* current_ = nullptr;
  bool skip_entry_ = false;
};

/// Whether the learner of a lane has failed since its last successful `rewind`, after this run. A
/// teardown whose peers are gone is no failure of the learner.
bool has_failed(bool before, const hook_run& run, const ran& answer);
/// What a lane without a learner answers to `rewind` with; null for all other runs, which then do
/// nothing.
std::exception_ptr refusal_without_learner(const hook_run& run);

}  // namespace troupe
