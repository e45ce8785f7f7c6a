// Where a generation of a job begins, and what its supervisor keeps only while it lasts. A part of
// the supervisor machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/membership.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

/// The point at which a generation begins, and the ranks' state there. A regular value.
struct generation_base {
  resume_point point;  ///< number 0: no rank holds one, and all begin at the newest checkpoint
  std::string digest;  ///< of the state

  bool held() const { return point.number > 0; }
  std::int64_t steps() const { return point.loop.steps; }
  /// Steps that the member has done. Before its first one it has the base, whatever it has said.
  std::int64_t reached_by(const member& m) const { return std::max(m.held.steps, steps()); }
  /// The members with this state that stay where they are, by rank.
  std::vector<std::int32_t> holders(const membership& members) const;
  friend bool operator==(const generation_base&, const generation_base&) = default;
};

/// The members that are left have reported the points that they hold. The base is the highest one,
/// with the state that most of them have. `differs` says what is wrong when there is no such
/// majority.
struct agreed_base {
  generation_base base;
  std::optional<std::string> differs;
};
agreed_base agree_on_base(const membership& members);

/// What belongs to one generation: the next one begins with a new value.
struct generation_state {
  generation_base base;
  std::int64_t redone = 0;  ///< steps that were finished before the base was chosen
  std::uint32_t waits = 0;  ///< times that the wait for ranks to prepare, or to close, was extended
  std::uint32_t asked = 0;  ///< times, since the last new order
  std::int32_t spares_lost = 0;  ///< ended by themselves
  bool proposed = false;         ///< ranks vote on the step to stop or to pause at
  bool close_sent = false;
  bool over = true;  ///< once close is sent: the job ends with this generation
  bool orderly = true;
  bool resting = false;               ///< before the next generation
  std::optional<std::int64_t> named;  ///< the step that they agreed on
  stop_reason ended_by = stop_reason::none;
  void add_to(stable_hasher& hash) const;
  friend bool operator==(const generation_state&, const generation_state&) = default;
};

}  // namespace troupe
