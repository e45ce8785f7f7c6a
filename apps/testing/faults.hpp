// The kinds of faults of a simulated run, and how a run draws them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "apps/testing/choices.hpp"
#include "apps/testing/simulation.hpp"
#include "backends/simulated/disk.hpp"

namespace troupe::testing {

enum class fault : std::uint8_t {
  crash_rank,        ///< a rank's process dies; its host reports it
  crash_host,        ///< a host dies with all its ranks; only silence shows it
  crash_supervisor,  ///< the program that the operator started is killed
  power_loss,        ///< the supervisor's host loses power: data that is not durable is lost
  pause,             ///< a process or a host stops for a while, then continues, perhaps as a zombie
  slow,           ///< a rank's hooks, or all events of the supervisor's process, take much longer
  throw_in_hook,  ///< a hook throws
  out_of_memory,  ///< a hook throws std::bad_alloc
  not_a_number,   ///< a rank's gradient is NaN; the learner throws when its weights are
  cut,            ///< the control link is cut in both directions for a while
  one_way_cut,    ///< in one direction
  disconnect,     ///< the path breaks the control link while both processes live
  data_cut,       ///< a rank's collectives are blocked for a while
  skew,           ///< a process's clock runs fast or slow, and with it that of its links
  late_timers,    ///< a process's timers fire late, and with them its heartbeats
  stop,           ///< the operator requests a stop
  abort,          ///< the operator aborts the job
  leave,          ///< a process is asked to leave (SIGTERM); its ranks should move elsewhere
  scale,          ///< the operator asks for another number of processes
  slow_reader,  ///< one end of a control link reads slowly for a while, so messages wait before it
  // These last for a whole attempt:
  rare_paths,     ///< product code takes rare paths that hardly ever occur by themselves
  stale_message,  ///< messages of an earlier attempt, or late duplicates of this one, are delivered
  storage_error,
  storage_full,
  storage_failed_sync,
  storage_lost_sync,
  storage_torn,
  storage_bit_flip,
  storage_slow,
  storage_hang,
  count_,
};
inline constexpr std::size_t fault_kinds = static_cast<std::size_t>(fault::count_);
std::string_view to_string(fault f);
/// Throws user_error (bad_usage) that lists the known names.
fault fault_named(std::string_view name);

/// A set of faults: those that a run may have.
class fault_set {
public:
  static fault_set none() { return {}; }
  static fault_set all();
  /// `crash_rank,pause,cut`, or `all`, or empty.
  static fault_set parse(std::string_view text);
  fault_set& add(fault f) { return bits_ |= bit(f), *this; }
  fault_set& remove(fault f) { return bits_ &= ~bit(f), *this; }
  bool has(fault f) const { return (bits_ & bit(f)) != 0; }
  bool empty() const { return bits_ == 0; }
  std::string text() const;
  friend bool operator==(const fault_set&, const fault_set&) = default;

private:
  static constexpr std::uint64_t bit(fault f) {
    return std::uint64_t{1} << static_cast<unsigned>(f);
  }
  std::uint64_t bits_ = 0;
};

struct fault_options {
  fault_set may = fault_set::none();
  bool swarm = true;                           ///< each run draws which of them exist
  std::uint32_t per_attempt = 3;               ///< most faults of one attempt
  std::uint32_t fault_per_million = 500'000;   ///< probability of each of them
  std::uint32_t storage_per_million = 30'000;  ///< probability that a storage operation fails
};

/// The target of a fault that could also apply to a rank.
enum class target : std::uint8_t {
  rank,
  host,       ///< all nodes of the rank's host
  program,    ///< the supervisor's process
  test_node,  ///< a node of the test; the rank, where there is none
};
std::string_view to_string(target t);
/// Whether a fault of that kind can be applied to that target.
bool applies_to(fault what, target whom);

/// One fault that is applied at a moment of an attempt.
struct scheduled_fault {
  fault what = fault::crash_rank;
  bool by_event = false;     ///< at an event's number; else at a time
  std::uint64_t moment = 0;  ///< events or nanoseconds after the attempt's beginning
  std::int32_t rank = 0;
  std::uint64_t amount = 0;    ///< duration or strength, in 0 .. 15
  std::uint64_t where = 0;     ///< selects a hook, a direction, or a process: any number
  target whom = target::rank;  ///< used if `applies_to`; else the rank is the target
  friend bool operator==(const scheduled_fault&, const scheduled_fault&) = default;
};
std::ostream& operator<<(std::ostream& out, const scheduled_fault& s);

/// The faults of one attempt. `attempt` labels the draws.
struct attempt_faults {
  std::vector<scheduled_fault> scheduled;
  std::uint32_t stale_messages_per_million = 0;  ///< after each control message
  fault_set storage;
  std::uint32_t storage_per_million = 0;
  bool rare_paths = false;
};

/// Draws which faults exist in this run.
fault_set draw_swarm(choices& from, const fault_options& options);
/// Draws how often faults occur in this run. Without a swarm it is as in `options`, which is also
/// the first choice of a swarm.
fault_options draw_how_often(choices& from, const fault_options& options);
/// `span` and `events`: virtual time and events of an attempt without faults.
attempt_faults draw_faults(choices& from, const fault_options& options, fault_set exist,
                           std::uint32_t attempt, std::int32_t ranks, nanoseconds span,
                           std::uint64_t events);
/// Draws the fault of one storage operation; there may be none.
storage_fault draw_storage_fault(choices& from, const attempt_faults& of);
/// Removes one kind of fault from a recorded run in which the faults of `exist` were possible. The
/// other faults stay as they were. For shrinking.
std::vector<choice> without_fault(const std::vector<choice>& taken, fault_set exist, fault gone);
/// Keeps only `which` (a choice of site fault) of the scheduled faults, as the first fault of the
/// first attempt. For shrinking.
std::vector<choice> alone(const std::vector<choice>& taken, const choice& which);

}  // namespace troupe::testing
