// The parts of a small job as values: a rank with its lane, a supervisor with its deadline. A part
// receives an event, changes, and returns its effects.
#pragma once

#include "actors/rank_machine.hpp"
#include "actors/supervisor_machine.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

/// The effects of an event on the outside of a rank.
struct rank_effects {
  std::vector<supervision::event> sent;  ///< to the supervisor, in order
  bool aborts = false;                   ///< the generation's communicator
  std::string broken;                    ///< what its machine threw
};

/// A rank's machine and its lane. The lane handles a run in up to three stages: before its
/// collective with the other ranks (a barrier, a reduction, a transfer of state), waiting in it,
/// and after it. The state of its learner is the number of steps that were applied to it, and the
/// digest of that state is the number in words.
struct rank_part {
  enum class lane_stage : std::uint8_t { idle, before, waits, after };

  rank_machine machine;
  std::int32_t rank = 0;
  lane_stage stage = lane_stage::idle;
  std::optional<hook_run> run = {};
  std::uint32_t rendezvous_kinds = 0;  ///< collectives of the generation it has arrived at
  bool opening = false;                ///< its communicator
  bool attention = false;
  bool lane_ends = false;
  bool gone = false;
  bool alone = false;        ///< its lane has a communicator without peers
  std::int64_t applied = 0;  ///< steps, to the learner's state
  std::int64_t kept = 0;     ///< the same of the state to which the learner can return
  std::uint64_t held = 0;    ///< the point of its last closed_generation

  bool meets() const;  ///< the run in flight has a collective
  std::int64_t steps() const { return machine.fit().loop().steps; }

  rank_effects receive(const supervision::order& what);
  rank_effects communicator_open();
  void arrive();
  void pass();
  /// The lane answers; `step_batches` are the batches of an epoch.
  rank_effects answer(std::int64_t step_batches);
  rank_effects answer_attention();
  rank_effects answer_thrown(failure what);
  /// A hook throws: the last one, if the collective is complete.
  rank_effects throws();
  rank_effects lane_ended();
  rank_effects vanish(const std::string& why);

  friend bool operator==(const rank_part& a, const rank_part& b);
  std::uint64_t digest() const;

private:
  rank_effects feed(const ranks::event& what);
  std::string wrong_state(const ranks::report& report) const;
  std::string handle(const hook& what, hook_outcome& outcome);
  bool is_applied_before_last_hook() const;
};

/// The type of the exception that an injected fault throws in a hook.
inline constexpr const char* injected_type = "std::domain_error";
failure injected_throw(const hook_run& run, bool after_collective);
failure closed_under_it();
failure peers_missing();

/// The effects of an event on the outside of the supervisor.
struct supervisor_effects {
  std::vector<std::pair<std::int32_t, incarnation_id>> started;  ///< after `abandoned`
  std::vector<std::pair<std::int32_t, supervision::order>> sent;
  std::vector<std::int32_t> abandoned;
  std::optional<std::int64_t> committed;
  std::string broken;
};

/// A supervisor's machine and its last deadline. Checkpointer and observers finish at once. It
/// keeps only the cause of a generation that is over, as later decisions read it, and no numbers of
/// deadlines.
struct supervisor_part {
  supervisor_machine machine;
  std::uint64_t deadline = 0;  ///< 0: none is armed
  std::optional<supervision::complete> end = {};

  supervisor_effects receive(const supervision::event& what);
  /// Whether a deadline would change something if it passed.
  bool waits() const;

  friend bool operator==(const supervisor_part& a, const supervisor_part& b);
  std::uint64_t digest() const;

private:
  void receive(const supervision::event& what, supervisor_effects& out);
};

/// The whole content of a message on one line: equal texts are equal messages.
std::string text_of(const supervision::order& what);
std::string text_of(const supervision::event& what);

}  // namespace troupe::testing
