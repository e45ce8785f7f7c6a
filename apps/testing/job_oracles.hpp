// The oracles: what must hold in every run of a job, whatever faults are applied.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

/// Oracle of the invariants in a test's own code.
inline constexpr const char* own_marks_oracle = "invariants of one's own hold";

/// An exception that a fault injected.
struct raised {
  std::int32_t rank = 0;
  std::string hook;
  std::int64_t step = -1;
  std::string type;
  std::string what;
  std::uint64_t generation = 0;
};

/// What happened in one attempt.
struct attempt_facts {
  std::vector<fault> applied;
  std::vector<std::int32_t> ranks;         ///< the ranks that had them
  std::vector<simulation::node_id> nodes;  ///< the processes of ranks that had them
  std::vector<raised> thrown;
  bool program = false;  ///< the supervisor's process was disturbed
  fault_set storage;     ///< storage faults that took effect
  test_observer observer = test_observer::none;
  bool rare = false;  ///< a rare path was taken that may cause a failure
  nanoseconds took{0};
  /// upper bound if nothing is slow: all steps, one failure, one shutdown
  nanoseconds expected{0};
  nanoseconds delayed{0};  ///< upper bound of the delay by faults
  bool any(std::initializer_list<fault> of) const;
  bool concerned(std::int32_t rank) const;  ///< had a fault or threw
};

/// Receives what happens in a run and records violations. Never throws.
class job_oracles {
public:
  /// `foreign`: the payload, if it is not the integer one; else null.
  job_oracles(const job_spec& job, modular_reference& reference, payload_job* foreign,
              run_report& report, const simulation& of);

  /// A rank finished a step: its state and its samples must equal the reference's. A step that is
  /// done again in a later generation must end in the same state.
  void stepped(const finished_step& what, incarnation_id who);
  /// A rank finished a step and its weights are NaN: after that step the weights of all its peers
  /// must be NaN.
  void stepped_to_nan(const finished_step& what, incarnation_id who);
  /// A gradient of a foreign job is NaN; all results that depend on it may be NaN.
  void poisoned(job_id job, std::uint64_t generation, const poison& what);
  /// An attempt begins from a checkpoint of that step (0: without one).
  void attempt_begins(job_id job, std::int64_t resumed_at);
  /// All ranks of the attempt begin a generation at one step, which follows from what the survivors
  /// of the last one held.
  struct generation_start {
    std::uint64_t generation = 0;
    std::vector<incarnation_id> members;  ///< by rank
    std::int64_t fallback = 0;            ///< the step to go on from when no rank survived
    std::int64_t durable = 0;             ///< the newest checkpoint that must exist
    bool lost = false;                    ///< a survivor may have lost its state by a fault
  };
  void generation_begins(const generation_start& what);
  /// The program ended by itself. Checks first cause, survivors and late failures.
  void ended(const job_outcome& outcome, const attempt_facts& facts);
  /// The whole run has finished.
  void finished(const job_outcome& outcome);
  /// A checkpoint to resume from was chosen; called before `attempt_begins`.
  void resumed(const snapshot& from);
  /// The supervisor announced a written checkpoint. `there`: its readable content, or null.
  /// `damaged`: a storage fault may have made it incomplete, wrong or not durable.
  void written(std::int64_t step, const std::string& path, const snapshot* there, bool damaged);
  /// The program has ended by itself. `left`: the nodes on which actors are still alive after the
  /// teardown time.
  void program_ended(const std::vector<std::string>& left, const job_outcome& outcome);
  /// The simulation has run until nothing was left to do.
  void drained(std::size_t actors, std::size_t handles);
  void violate(violation v);
  /// Digest of the final weights, in hexadecimal.
  const std::string& final_digest() const { return digest_; }

private:
  /// What a rank holds.
  struct replica {
    incarnation_id who;
    std::uint64_t generation = 0;
    std::int64_t held = 0;  ///< steps
  };
  bool check(bool holds) {
    ++report_.checks;
    return holds;
  }
  void compare(const modular_state& is, std::int64_t step, std::int32_t rank,
               const std::string& oracle);
  void compare(const snapshot& is, std::int64_t step, const std::string& oracle);
  void compare(const snapshot& is, std::int64_t step, const poisons& applied,
               const std::string& oracle);
  poisons poisons_before(job_id job, std::int64_t step) const;
  poisons inherited_by(const snapshot& from);
  void state_of_step(const finished_step& what);
  void chain(const finished_step& what, incarnation_id who);
  bool in_this_generation(const finished_step& what, incarnation_id who) const;
  void same_everywhere(const finished_step& what);
  void ends_of_generations(const job_outcome& outcome, const attempt_facts& facts);
  void result_is_the_weights(const job_outcome& outcome);
  std::int64_t samples_by(std::int64_t step) const;
  std::int64_t cursor_of(const loop_state& loop) const;
  void first_cause(const failure& first, const attempt_facts& facts);
  void survivors(const job_outcome& outcome, const attempt_facts& facts);
  void saved(const job_outcome& outcome);
  std::int64_t least_held() const;
  static constexpr std::int64_t unknown = -1;  ///< until the first step of the generation
  std::int64_t possible_ = 0;                  ///< the most that ranks may hold until then
  void set_base(std::int64_t base);
  void recount();

  const job_spec& job_;
  modular_reference& reference_;
  payload_job* const foreign_;
  run_report& report_;
  const simulation& simulation_;
  job_id now_;
  std::int64_t resumed_at_ = 0;
  std::int64_t committed_ever_ = 0;  ///< the highest step that all ranks of an attempt held
  std::string digest_;
  std::int64_t committed_ = 0;             // the highest step that all ranks of this attempt held
  std::ptrdiff_t behind_ = 0;              // ranks that hold no more than that
  std::uint64_t generation_ = 0;           // that is active or was active last, in this attempt
  std::int64_t base_ = 0;                  // the step that it began with
  bool fell_back_ = false;                 // it may have begun at a checkpoint
  std::vector<replica> held_;              // by rank, in this attempt
  std::map<incarnation_id, replica> old_;  // that were replaced, in this attempt
  struct known_digest {
    std::uint64_t digest = 0;
    std::uint64_t generation = 0;
  };
  std::vector<std::optional<known_digest>> digests_;  // after steps, in this attempt
  std::int64_t written_ = -1;                         // step of the last checkpoint in this attempt
  std::int64_t nan_at_ = -1;           // step after which weights are NaN, in this attempt
  std::map<job_id, poisons> poisons_;  // of foreign jobs, inherited ones included
  poisons poisons_here_;               // of the newest generation
  bool poisoned_now_ = false;          // a gradient of this attempt was NaN
  std::vector<job_id> attempts_;       // those that have begun
  poisons inherited_;                  // taken over by the attempt that begins
};

}  // namespace troupe::testing
