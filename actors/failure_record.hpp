// The failures of a job: the first cause of a generation's end, what failed with it, and what takes
// nothing away. A part of the supervisor machine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messages/control.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

/// Whether another attempt could end differently.
bool curable(const failure& what, const elastic_options& elastic);
/// Whether `what` ends a generation as `before` did: at the same place, and from inside of the
/// process.
bool comes_back(const failure& what, const failure& before);

/// A regular value. The first cause is the earliest failure that follows from no other one; order
/// and cause do not depend on the order of the calls. Each failure gets an id when it has none.
class failure_record {
public:
  /// The id that the next failure without one gets.
  failure_id next_id() const;

  /// A failure that ends the generation.
  void add(failure what);
  /// The same, but never the first cause: there is one.
  void add_other(failure what);
  /// A failure that does not end the job. Of checkpoints that failed in the same hook the first and
  /// the newest are kept, which says how many came between them: a full disk may last for days.
  void add_late(failure what);
  /// A failure that makes the job a failed one, although there is no generation to end. It may have
  /// been late before.
  void end_job(failure what);
  /// Forgets what ended the generation before.
  void begin_generation();

  const std::optional<failure>& first() const { return first_; }
  const std::vector<failure>& others() const { return others_; }
  const std::vector<failure>& late() const { return late_; }
  /// The first cause with the others in it.
  std::optional<failure> whole() const;
  bool is_first(failure_id id) const { return first_ && first_->id == id; }
  /// The failure is the first cause or one of the others.
  bool holds(failure_id id) const;
  bool is_late(failure_id id) const;

  void add_to(stable_hasher& hash) const;
  friend bool operator==(const failure_record&, const failure_record&) = default;

private:
  friend struct supervisor_history;  // of the exhaustive search

  std::optional<failure> first_;
  std::vector<failure> others_;  // sorted
  std::vector<failure> late_;
  std::uint64_t before_ = 0;  // failures of the generations that ended, and those left out
  std::map<std::string, std::uint64_t> left_out_;  // by hook
};

}  // namespace troupe
