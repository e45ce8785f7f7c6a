// Strong identifiers. Two numbers of different meaning never convert into each other, so a rank can
// not be passed where a step is meant.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace troupe {

/// A number that means one thing. Regular, ordered, hashable; `value()` is the only way back.
template <class Tag, class Rep>
class strong_id {
public:
  using rep = Rep;

  constexpr strong_id() = default;
  constexpr explicit strong_id(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }
  constexpr strong_id next() const { return strong_id{static_cast<Rep>(value_ + 1)}; }

  friend constexpr auto operator<=>(const strong_id&, const strong_id&) = default;
  friend std::ostream& operator<<(std::ostream& out, const strong_id& id) {
    return out << +id.value_;
  }
  /// CAF 0.17 finds it when it serialises a message.
  template <class Inspector>
  friend typename Inspector::result_type inspect(Inspector& f, strong_id& id) {
    return f(id.value_);
  }

private:
  Rep value_{};
};

/// One member of a training world, 0 .. world size - 1. Stamped with a generation: never cached
/// across it.
using rank_id = strong_id<struct rank_tag, std::int32_t>;
/// One agreed membership of the world; only the supervisor raises it. The first is 1, 0 means none.
using generation_id = strong_id<struct generation_tag, std::uint64_t>;
/// One life of a rank: drawn from the entropy port at each start.
using incarnation_id = strong_id<struct incarnation_tag, std::uint64_t>;
/// Optimizer steps done so far; the step in flight has the number of those before it (from 0).
using step_id = strong_id<struct step_tag, std::int64_t>;
/// One job of a session; unique within a process and, being random, across hosts.
using job_id = strong_id<struct job_tag, std::uint64_t>;
/// One reign of a supervisor. 1 until supervisors can be replaced.
using term_id = strong_id<struct term_tag, std::uint64_t>;
/// Counts messages (or hook runs) of one sender within one generation.
using sequence_id = strong_id<struct sequence_tag, std::uint64_t>;

}  // namespace troupe

template <class Tag, class Rep>
struct std::hash<troupe::strong_id<Tag, Rep>> {
  std::size_t operator()(const troupe::strong_id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
