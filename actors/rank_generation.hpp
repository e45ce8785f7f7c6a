// What a rank knows of one generation. A part of the rank machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "messages/control.hpp"
#include "troupe/detail/stable_hash.hpp"

namespace troupe {

/// A regular value. What form_generation says, and how far the rank has come. The next generation
/// begins with a new value.
struct rank_generation {
  std::int32_t world = 1;
  resume_point base;
  std::vector<std::int32_t> holders;  ///< sorted
  std::string resume;
  bool overdue = false;                      ///< the hook in flight was reported
  stop_reason ended_by = stop_reason::none;  ///< of the fit, once finished
  failure failed_with;                       ///< once failed
  failure
      first;  ///< the first cause, once the generation closes; without a type after on_exception
  bool over = false;       ///< once closing: the job ends with this generation
  bool rewinding = false;  ///< the run in flight is `rewind`
  bool orderly = true;
  bool tear_down_asked = false;

  static rank_generation of(const form_generation& order);
  /// The ranks begin at the base, not anew.
  bool has_base() const { return base.number > 0; }
  /// This rank sends the state of the base.
  bool held_by(std::int32_t rank) const;
  /// No rank lacks the state.
  bool held_by_all() const { return holders.size() == static_cast<std::size_t>(world); }

  void add_to(stable_hasher& hash) const;
  friend bool operator==(const rank_generation&, const rank_generation&) = default;
};

/// A form_generation that has arrived while the rank still closes; and the close_generation after
/// it, if that has arrived too. A regular value.
class next_generation {
public:
  explicit next_generation(const form_generation& order)
      : at_(order.at), what_(rank_generation::of(order)) {}

  /// Takes an order to close this generation. False: it is for another one.
  bool take(const close_generation& order);
  form_generation formed() const;
  /// None: the order has not arrived.
  std::optional<close_generation> closed() const;

  void add_to(stable_hasher& hash) const;
  friend bool operator==(const next_generation&, const next_generation&) = default;

private:
  fence at_;
  rank_generation what_;
  bool closed_ = false;
};

}  // namespace troupe
