// How every lane handles a run of hooks: in order, closures inside optimizer_step, the attention
// word between hooks, fire drills at entry, an exception turned into its record where it happened.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "messages/lane.hpp"
#include "troupe/learner.hpp"

namespace troupe {

/// One lane's way of handling runs. Used by one thread, the lane's.
class run_handler {
public:
  struct surroundings {
    const std::atomic<attention>* word = nullptr;
    /// At entry of every hook, and again when a closure's hook has ended and optimizer_step goes
    /// on.
    std::function<void(const hook&)> current;
    /// At entry of every hook, once; before its drill.
    std::function<void(const hook&)> entered;
    /// Carries a drill out; `raise` is done here. Empty: drills other than `raise` are internal
    /// errors.
    std::function<void(const fault_drill&)> drill;
    /// How the text of an exception is read.
    exception_text text = what_of;
  };
  run_handler(const learner_context& context, surroundings around);

  /// Never throws: what a hook throws is in the answer, with its hook, epoch and step.
  ran handle(learner& who, const hook_run& run);
  /// For lanes that handle a run in pieces: goes on behind the hooks that `answer` says are
  /// handled and adds to it, until as many as `until` are. False: the next hook cannot go on yet.
  /// `again`: that was so before; it is not entered anew.
  bool go_on(learner& who, const hook_run& run, ran& answer, std::size_t until, bool again);

private:
  bool handle_step(learner& who, std::span<const hook> hooks, std::size_t inside,
                   hook_outcome& into);
  bool handle_one(learner& who, const hook& h, const closure& inner, hook_outcome& into);
  void pass(learner& who, std::span<const hook> hooks, std::uint32_t& handled);
  void enter(const hook& h);
  bool watched() const { return around_.current || around_.entered || !drills_.empty(); }
  void failed(ran& answer, failure what) const;
  void drill(const hook& h);

  std::vector<fault_drill> drills_;  ///< those still to fire on this rank
  surroundings around_;
  const hook* current_ = nullptr;
  bool skip_entry_ = false;
};

}  // namespace troupe
