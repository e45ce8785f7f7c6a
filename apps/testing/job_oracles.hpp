// What must hold in every run of a field job, whatever strikes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/testing/job_run.hpp"

namespace troupe::testing {

/// The oracle of invariants that a test's own code marks.
inline constexpr const char* own_marks_oracle = "invariants of one's own hold";

/// A throw that a fault raised.
struct raised {
  std::int32_t rank = 0;
  std::string hook;
  std::int64_t step = -1;
  std::string type;
  std::string what;
};

/// What befell one attempt.
struct attempt_facts {
  std::vector<fault> applied;
  std::vector<std::int32_t> ranks;  ///< whom they struck
  std::vector<raised> thrown;
  bool program = false;  ///< the supervisor's process was held up
  bool lossy = false;    ///< a link that loses frames was lost
  fault_set storage;     ///< faults of storage that took effect
  test_observer observer = test_observer::none;
  bool rare = false;  ///< a rare path was taken that may fail what it strikes
  nanoseconds took{0};
  nanoseconds expected{0};  ///< at most, when nothing is slow: all steps, one failure, one way down
  nanoseconds delayed{0};   ///< at most, by what struck
  bool any(std::initializer_list<fault> of) const;
  bool concerned(std::int32_t rank) const;  ///< was struck or threw
};

/// Hears what happens and remembers what is wrong. Never throws.
class job_oracles {
public:
  /// `foreign`: what is trained in place of the field payload, or null.
  job_oracles(const job_spec& job, modular_reference& reference, payload_job* foreign,
              run_report& report, const simulation& of);

  /// A rank finished a step: it must be where the reference is, with the same samples.
  void stepped(const finished_step& what);
  /// A rank finished a step and its weights are NaN: all of its peers' are, behind that step.
  void stepped_to_nan(const finished_step& what);
  /// A gradient of a foreign job is NaN, and with it whatever comes of it.
  void poisoned(job_id job, const poison& what);
  /// An attempt begins, from a checkpoint of that step (0: from nothing).
  void attempt_begins(job_id job, std::int64_t resumed_at);
  /// The program ended by itself. First causes, survivors, late failures.
  void ended(const job_outcome& outcome, const attempt_facts& facts);
  /// The whole run has finished.
  void finished(const job_outcome& outcome);
  /// A checkpoint was chosen to go on from; before `attempt_begins`.
  void resumed(const snapshot& from);
  /// The supervisor has announced that a checkpoint of that step is written; `there` is what can be
  /// read of it, null when nothing good can be. `lied`: the disk had said that something was
  /// durable that may not be, or wrote something else than it was told.
  void written(std::int64_t step, const std::string& path, const snapshot* there, bool damaged);
  /// The program has ended by itself, and a teardown's time later these places are inhabited.
  void program_ended(const std::vector<std::string>& left, const job_outcome& outcome);
  /// Everything was let run out.
  void drained(std::size_t actors, std::size_t handles);
  void violate(violation v);
  /// Of the weights a finished run has brought home, in hexadecimal.
  const std::string& final_digest() const { return digest_; }

private:
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
  void chain(const finished_step& what);
  void same_everywhere(const finished_step& what);
  void result_is_the_weights(const job_outcome& outcome);
  std::int64_t samples_by(std::int64_t step) const;
  std::int64_t cursor_of(const loop_state& loop) const;
  void first_cause(const failure& first, const attempt_facts& facts);
  void survivors(const job_outcome& outcome, const attempt_facts& facts);
  void saved(const job_outcome& outcome);
  std::int64_t least_held() const;

  const job_spec& job_;
  modular_reference& reference_;
  payload_job* const foreign_;
  run_report& report_;
  const simulation& simulation_;
  job_id now_;
  std::int64_t resumed_at_ = 0;
  std::int64_t committed_ever_ = 0;  ///< the highest step that all ranks of one attempt held
  std::string digest_;
  std::vector<std::int64_t> held_;                     // by rank, in this attempt
  std::vector<std::optional<std::uint64_t>> digests_;  // behind steps, in this attempt
  std::int64_t written_ = -1;          // the step of the last checkpoint, in this attempt
  std::int64_t nan_at_ = -1;           // step behind which weights are NaN, in this attempt
  std::map<job_id, poisons> poisons_;  // of foreign jobs, and of what they were resumed from
  std::vector<job_id> attempts_;       // that have begun
  poisons inherited_;                  // by the attempt that begins
};

}  // namespace troupe::testing
