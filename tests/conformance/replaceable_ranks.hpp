// Ranks in processes of their own that a test kills and replaces. They open one generation after
// the other from the same backend, as the ranks of an elastic job do.
#pragma once

#include "backends/local/file_descriptor.hpp"
#include "troupe/communicator.hpp"

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::testing {

/// What the lane of a rank does, or for `abort` another thread of its process.
struct rank_order {
  enum class act : std::uint8_t {
    open,    ///< a generation; the rank keeps the handle of the one before
    reduce,  ///< reductions until one throws; reports `at work` and later `closed: ...`
    sum,     ///< one sum, and checks it; reports `ok`, or `closed: ...`
    forget,  ///< waits until the older generation is quiescent, and closes its handle
    fill,    ///< takes `bytes` of memory and writes to them
    measure,
    abort,  ///< the newest generation
  };
  act what = act::sum;
  std::uint64_t generation = 0;
  std::size_t bytes = 0;    ///< reduce, sum and fill
  bool registered = false;  ///< reduce and sum: memory of `allocate`
};

struct rank_report {
  std::array<char, 512> text{};
  std::int64_t at = 0;           ///< steady clock, in nanoseconds, when it happened
  bool quiescent = false;        ///< closed: the group was quiescent when the sum threw
  std::int64_t descriptors = 0;  ///< measure
  std::int64_t threads = 0;
  std::int64_t mappings = 0;
  std::int64_t heap = 0;
};

class replaceable_ranks {
public:
  using clock = std::chrono::steady_clock;
  struct process {
    pid_t pid = -1;
    file_descriptor orders{};
  };

  /// `kind`: a name of `process_rendezvous_kinds`. Must be constructed while this process has no
  /// other thread. Starts nothing.
  replaceable_ranks(const std::string& kind, std::int32_t world);
  /// Kills and reaps the processes.
  ~replaceable_ranks();
  replaceable_ranks(const replaceable_ranks&) = delete;
  replaceable_ranks& operator=(const replaceable_ranks&) = delete;

  std::int32_t world() const { return static_cast<std::int32_t>(processes_.size()); }
  const rendezvous& place() const { return *place_; }
  /// A process for the rank. The one before, if any, is killed and reaped.
  void start(std::int32_t rank);
  void start_all();
  pid_t pid(std::int32_t rank) const { return at(rank).pid; }
  void signal(std::int32_t rank, int number);
  /// The rank's process, which is not its process any more: it is not killed by `start`.
  process take(std::int32_t rank);
  void reap(process& which);
  void reap(std::int32_t rank) { reap(at(rank)); }

  void order(std::int32_t rank, const rank_order& what) { order(at(rank), what); }
  static void order(const process& whom, const rank_order& what);
  /// The next report; waits for at most a minute.
  rank_report next_report(std::int32_t rank) { return next_report(at(rank)); }
  static rank_report next_report(const process& whom);
  /// All ranks but `without` do it and report `wanted`.
  void all(const rank_order& what, const std::string& wanted, std::int32_t without = -1);

private:
  process& at(std::int32_t rank) { return processes_.at(static_cast<std::size_t>(rank)); }
  const process& at(std::int32_t rank) const {
    return processes_.at(static_cast<std::size_t>(rank));
  }

  std::shared_ptr<rendezvous_kind> kind_;
  std::shared_ptr<rendezvous> place_;
  std::vector<process> processes_;  // by rank
};

}  // namespace troupe::testing
