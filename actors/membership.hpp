// The ranks of a job as its supervisor knows them: who they are, and what they have reported in
// this generation. A part of the supervisor machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/control.hpp"

namespace troupe {

/// How far a rank or the job is. More steps are further; equal steps have equal numbers.
struct progress {
  std::int64_t steps = 0;    ///< finished
  std::int64_t epoch = 0;    ///< finished epochs
  std::int64_t samples = 0;  ///< consumed in these steps, all ranks
  friend auto operator<=>(const progress&, const progress&) = default;
};
progress progress_of(const loop_state& loop);

/// One rank. What every message needs comes first.
struct member {
  incarnation_id incarnation;
  std::int32_t process = 0;  ///< number of the process that it lives in
  progress held;
  bool prepared = false;
  bool answered = false;  ///< from it, since the supervisor asked last
  bool arriving = false;  ///< the newest rank_busy said so: a snapshot, ahead of its answer
  bool finished = false;
  bool closed = false;
  bool torn_down = false;
  bool gone = false;
  bool abandoned = false;
  bool moves = false;  ///< its next incarnation lives in another process
  std::optional<std::int64_t> vote;
  std::string busy;
  std::string
      unresponsive;    ///< what it was doing when it did not answer in time; empty: it answered
  resume_point point;  ///< once closed: the point whose state it holds
  std::string digest;  ///< of that state

  friend bool operator==(const member&, const member&) = default;
};

/// A regular value. The counts are kept up to date, so that a message of one rank does not look at
/// all of them.
class membership {
public:
  membership(job_id job, std::size_t world) : job_(job), members_(world) {}

  /// The ranks of the first generation. Identities are distinct.
  void begin_with(const std::vector<incarnation_id>& incarnations);
  /// Forgets what belongs to one generation; the members hold `held`, `committed` steps are
  /// committed. Ranks that are gone or abandoned or that move get a new incarnation. Returns their
  /// numbers.
  std::vector<std::int32_t> begin_generation(const progress& held, std::int64_t committed);

  auto begin() { return members_.begin(); }
  auto end() { return members_.end(); }
  auto begin() const { return members_.begin(); }
  auto end() const { return members_.end(); }
  std::size_t size() const { return members_.size(); }
  member& at(std::int32_t rank) { return members_.at(static_cast<std::size_t>(rank)); }
  const member& at(std::int32_t rank) const { return members_.at(static_cast<std::size_t>(rank)); }
  std::int32_t rank_of(const member& m) const {
    return static_cast<std::int32_t>(&m - members_.data());
  }
  /// The member with this identity, or null.
  member* find(incarnation_id incarnation);
  /// The sender of a message, or null: the message is of another job, generation or incarnation, or
  /// the member is gone.
  member* sender(const fence& at);
  /// A message is from an incarnation that a rank left behind.
  bool is_of_former(const fence& at);
  /// The fence of messages to the member.
  fence fence_for(const member& m) const;

  /// Notes that a rank holds `now`. True: every member holds more than `committed` now.
  bool hold(member& m, const progress& now, std::int64_t committed);
  progress least_held() const;
  void recount(std::int64_t committed);
  void prepare(member& m);
  void finish(member& m);
  void close(member& m);
  /// Every member that is there owes another answer to close_generation.
  void reopen();
  void leave(member& m);
  void abandon(member& m);
  /// The member did not answer in time. `during` names what it was asked for.
  void mark_unresponsive(member& m, std::string_view during);

  job_id job() const { return job_; }
  /// 0 before `begin_with`. Each generation has the next number.
  generation_id generation() const { return generation_; }
  std::size_t unprepared() const { return unprepared_; }
  std::size_t unfinished() const { return unfinished_; }
  std::size_t unclosed() const { return unclosed_; }
  /// Members that are neither gone nor abandoned.
  std::size_t there() const { return there_; }

  friend bool operator==(const membership&, const membership&) = default;

private:
  void index();

  job_id job_;
  generation_id generation_;
  std::vector<member> members_;
  std::unordered_map<incarnation_id, std::int32_t> by_incarnation_;  // the rank
  std::size_t behind_ = 0;  // hold no more than the committed step
  std::size_t unprepared_ = 0;
  std::size_t unfinished_ = 0;
  std::size_t unclosed_ = 0;
  std::size_t there_ = 0;
};

}  // namespace troupe
