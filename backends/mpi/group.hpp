// One generation over MPI: its communicator, its control messages, its operations in order.
#pragma once

#include "backends/mpi/arrival_table.hpp"
#include "backends/mpi/control_message.hpp"
#include "backends/mpi/task.hpp"

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::mpi {

/// Lanes submit, abort and close; the engine, whose lock is held, opens and pumps.
class group {
public:
  explicit group(const group_description& who);

  const group_description& who() const { return who_; }

  // Called by lanes, which do not hold the engine's lock.

  /// Throws user_error when too many are in flight. Nothing is done before the next pump.
  std::shared_ptr<task> submit(const std::vector<std::int32_t>& members, submission what,
                               std::chrono::nanoseconds deadline);
  /// Ends the operation if its group has ended.
  void settle(task& what) const;
  /// Keeps deadlines while the other ranks have not opened the group.
  void settle_unopened();
  void abort(std::string_view why) noexcept { end_.abort(why); }
  bool aborted() const noexcept { return end_.aborted(); }
  bool quiescent() const noexcept;
  std::string why() const { return end_.why(); }
  void close();

  // Called by the engine, which holds its lock.

  /// Begins to open the group. Until it is `opened`, a pump does little.
  void open(MPI_Comm world);
  bool opened() const { return open_; }
  /// Does what can be done without waiting.
  void pump(const operations& arithmetic);
  /// True while an operation or a message is in flight.
  bool busy() const {
    return !outgoing_.empty() || (aborted() ? touching_.load() > 0 : in_flight_.load() > 0);
  }
  /// Closed on all ranks; nothing will follow.
  bool over() const;
  /// Frees the MPI communicator. Call only when `over`.
  void free();

private:
  struct channel {
    arrival_table arrived;
    std::deque<std::shared_ptr<task>> queue;  // submitted, not finished, in order
    std::size_t member = 0;
    std::uint64_t begun = 0;  // operations that were started
  };
  struct outgoing {
    control_message content;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  using named = std::pair<std::uint64_t, std::shared_ptr<task>>;

  void need(int result);
  void send(const control_message& what, std::int32_t to);
  void send_others(control_message what);
  void receive();
  void take_message(const control_message& what);
  void take_call(const control_message& what);
  void end_with_mismatch(const control_message& what);
  void take_submissions();
  void take(std::uint64_t name, const std::shared_ptr<task>& what);
  channel& channel_of(std::uint64_t name);
  void arrive(std::uint64_t name, channel& at, std::size_t member, const control_message& what);
  void advance();
  void start_ready(std::uint64_t name, channel& at);
  void finish_started(channel& at);
  void check_deadlines(channel& at);
  void check_departed(channel& at);
  void disagree(std::uint64_t name, std::uint64_t number, std::string text);
  void send_bye();

  const group_description who_;

  mutable std::mutex mutex_;  // submissions, members by name; never held while MPI runs
  std::vector<named> inbox_;
  std::map<std::uint64_t, std::vector<std::int32_t>> members_;
  std::map<std::uint64_t, std::uint64_t> submitted_;  // operations by channel
  collectives::group_end end_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> mismatch_;  // ended it: channel, number
  std::atomic<bool> closed_{false};
  std::atomic<std::int32_t> in_flight_{0};
  std::atomic<std::int32_t> touching_{0};

  const operations* arithmetic_ = nullptr;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Request opening_ = MPI_REQUEST_NULL;
  bool begun_ = false;
  std::atomic<bool> open_{false};
  bool end_sent_ = false;  // the others know of the end
  bool left_ = false;      // and that this rank says nothing more
  control_message incoming_;
  MPI_Request receiving_ = MPI_REQUEST_NULL;
  std::list<outgoing> outgoing_;
  std::map<std::uint64_t, channel> channels_;
  std::map<std::uint64_t, std::vector<control_message>>
      early_;  // of channels this rank has not used yet
  std::vector<std::int32_t> departed_;
  running_clock::time_point checked_;
};

}  // namespace troupe::mpi
