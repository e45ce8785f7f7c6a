// Strong identifiers: numbers of different meaning do not convert into each other, so a rank cannot
// be passed as a step.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace troupe {

/// A number with a meaning. Regular, ordered and hashable; only `value()` returns the number.
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

/// One agreed membership of the job; only the supervisor raises it. The first is 1, 0 means none.
using generation_id = strong_id<struct generation_tag, std::uint64_t>;
/// One life of a rank: a random number from the entropy port at each start.
using incarnation_id = strong_id<struct incarnation_tag, std::uint64_t>;
/// Optimizer steps done so far. The step in flight has the number of steps before it, from 0.
using step_id = strong_id<struct step_tag, std::int64_t>;
/// One job of a session; a random number, so unique across hosts too.
using job_id = strong_id<struct job_tag, std::uint64_t>;
/// One life of the job's supervisor. Always 1 until supervisors can be replaced.
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
