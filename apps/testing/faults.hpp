// What can go wrong in a simulated run, and how a run draws its share of it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "apps/testing/choices.hpp"
#include "apps/testing/control_link.hpp"
#include "backends/simulated/disk.hpp"

namespace troupe::testing {

enum class fault : std::uint8_t {
  crash_rank,        ///< a rank's process dies; its host says so
  crash_host,        ///< a host dies with all its ranks; only silence says so
  crash_supervisor,  ///< the program that the operator started is killed
  power_loss,        ///< the supervisor's host goes: what was not durable is lost
  pause,             ///< a process, or a host, stands still and comes back, maybe as a zombie
  slow,              ///< a rank's hooks take much longer, or whatever the supervisor's process does
  throw_in_hook,     ///< a hook throws
  out_of_memory,     ///< a hook throws std::bad_alloc
  not_a_number,      ///< a rank's gradient is NaN; the learner throws when its weights are
  cut,               ///< the control link is cut in both directions, for a while
  one_way_cut,       ///< in one
  data_cut,          ///< a rank's collectives stand still, for a while
  skew,              ///< a process's clock is fast or slow, that of its links with it
  late_timers,       ///< a process's timers are late, the beats of its links too
  stop,              ///< the operator asks for a stop
  abort,             ///< the operator aborts
  // Along a whole attempt:
  lose,           ///< frames of control links are lost
  repeat,         ///< or repeated
  reorder,        ///< or overtaken
  rare_paths,     ///< product code takes paths that hardly ever come by themselves
                  ///< (troupe/detail/coverage.hpp)
  stale_message,  ///< control messages of an earlier attempt are heard, or some of this one late and
                  ///< once more
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
/// Throws user_error (bad_usage) that names the nearest.
fault fault_named(std::string_view name);

/// A set of faults; an explicit list of what a run may meet.
class fault_set {
public:
  static fault_set none() { return {}; }
  static fault_set all();
  /// `crash_rank,pause,lose`, or `all`, or empty.
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
  std::uint32_t per_attempt = 3;               ///< faults that strike in one attempt, at most
  std::uint32_t fault_per_million = 500'000;   ///< each of them
  std::uint32_t storage_per_million = 30'000;  ///< operations of storage that fail
};

/// Whom a fault of a rank's kind befalls in its place.
enum class target : std::uint8_t {
  rank,
  host,       ///< all that lives on the rank's host
  program,    ///< the supervisor's process
  test_node,  ///< a process that the test has brought; where there is none, the rank
};
std::string_view to_string(target t);
/// Whether a fault of that kind may befall it.
bool applies_to(fault what, target whom);

/// One fault that strikes at a moment of an attempt.
struct scheduled_fault {
  fault what = fault::crash_rank;
  bool by_event = false;     ///< at an event's number, else at a time
  std::uint64_t moment = 0;  ///< event, or nanoseconds, behind the attempt's beginning
  std::int32_t rank = 0;
  std::uint64_t amount = 0;    ///< how long, how much: in 0 .. 15
  std::uint64_t where = 0;     ///< which hook and step: any number
  target whom = target::rank;  ///< where it `befalls`; else the rank
  friend bool operator==(const scheduled_fault&, const scheduled_fault&) = default;
};
std::ostream& operator<<(std::ostream& out, const scheduled_fault& s);

/// What one attempt meets. `attempt` labels the draws.
struct attempt_faults {
  std::vector<scheduled_fault> scheduled;
  path_faults path;
  std::uint32_t stale_messages_per_million = 0;  ///< behind each control message
  fault_set storage;
  std::uint32_t storage_per_million = 0;
  bool rare_paths = false;
};

/// Which faults exist in this run.
fault_set draw_swarm(choices& from, const fault_options& options);
/// How often they strike in this run: in a swarm that is drawn, too, and the first choice is as
/// `options` say.
fault_options draw_how_often(choices& from, const fault_options& options);
/// `span`: virtual time and events an attempt takes without faults.
attempt_faults draw_faults(choices& from, const fault_options& options, fault_set exist,
                           std::uint32_t attempt, std::int32_t ranks, nanoseconds span,
                           std::uint64_t events);
/// The fault of one storage operation, if any.
storage_fault draw_storage_fault(choices& from, const attempt_faults& of);
/// What a run drew when the faults of `exist` were possible, as it would be without the kind
/// `gone`: its own strikes are gone, the others strike as they did. For shrinking.
std::vector<choice> without_fault(const std::vector<choice>& taken, fault_set exist, fault gone);
/// Of all that strikes at a moment only `which` (a choice of site fault), as the first of the first
/// attempt. For shrinking.
std::vector<choice> alone(const std::vector<choice>& taken, const choice& which);

}  // namespace troupe::testing
