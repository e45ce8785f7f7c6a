// The processes of a job as its supervisor knows them, and which of them a rank goes to. A part of
// the supervisor machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "messages/control.hpp"

namespace troupe {

/// One process of ranks that has not ended.
struct place {
  std::int32_t number = 0;
  bool ready = false;    ///< it has said that it can run ranks
  bool warm = false;     ///< a spare: it has loaded what ranks need
  bool spare = false;    ///< it waits for the ranks of another one
  bool leaving = false;  ///< it gets no rank any more
  std::chrono::nanoseconds started{0};
  friend bool operator==(const place&, const place&) = default;
};

/// How many processes a job wants.
struct placement_rules {
  std::int32_t processes = 0;  ///< 0: ranks are threads, and there is nothing to place
  elastic_options::loss on_loss = elastic_options::loss::replace;
  std::int32_t least = 1;
  std::int32_t spares = 0;
  std::chrono::nanoseconds start{0};  ///< a spare that takes longer to be ready is given up
  bool fixed = false;                 ///< none is started after the first ones and their spares
  friend bool operator==(const placement_rules&, const placement_rules&) = default;
};

/// A regular value. Processes are counted from 0 and never get a number again.
class placements {
public:
  explicit placements(placement_rules rules = {}) : rules_(rules), target_(rules.processes) {}

  bool any() const { return rules_.processes > 0; }
  /// The time of the next calls, by a monotonic clock.
  void at(std::chrono::nanoseconds now) { now_ = now; }
  /// The processes of the first generation, those of the ranks first. Returns the process of each
  /// of `world` ranks: contiguous runs of equal length, or one less.
  std::vector<std::int32_t> begin(std::int32_t world);
  void ready(std::int32_t number);
  void warm(std::int32_t number);
  /// The process has ended. Returns false if it is not known or had ended before.
  bool lost(std::int32_t number);
  /// The process gets no further rank.
  void leave(std::int32_t number);
  /// How many processes the job wants from now on.
  void scale(std::int32_t processes) { target_ = processes; }

  /// When ranks get a new process: as on_loss says, only if no process is left, or while the job
  /// has fewer than its target.
  enum class starting { by_loss, last_resort, to_target };
  /// The processes for the ranks of a lost process: one for all of them, or several that are there.
  /// `homes` holds the process of each rank that stays. A new process is appended to `started`.
  /// A spare that is not warm is taken in place of a new process only. One that is not ready in
  /// time leaves.
  std::vector<std::int32_t> homes_for(std::size_t ranks, std::vector<std::int32_t> homes,
                                      starting how, std::vector<std::int32_t>& started);
  /// Restores the job's number of spares. Returns the spares that are to be started now.
  std::vector<std::int32_t> refill();
  /// Fewer than `least` are left, and none can be started.
  bool too_few() const;

  const place* find(std::int32_t number) const;
  std::span<const place> all() const { return all_; }
  /// Processes that may have ranks: neither spare nor leaving.
  std::int32_t working() const;
  std::int32_t target() const { return target_; }

  friend bool operator==(const placements&, const placements&) = default;

private:
  std::int32_t add(bool spare);
  std::int32_t wanted(starting how) const;
  void give_up_spares();
  std::optional<std::int32_t> take_spare(bool warm);

  placement_rules rules_;
  std::int32_t target_ = 0;
  std::int32_t next_ = 0;
  std::chrono::nanoseconds now_{0};
  std::vector<place> all_;
};

}  // namespace troupe
