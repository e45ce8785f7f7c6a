// How operations and groups end: each once, by the first cause.
#pragma once

#include "backends/collective/collective_call.hpp"

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::collectives {

/// How one operation ends, once. Thread-safe.
class outcome {
public:
  work_status status() const noexcept { return status_.load(std::memory_order_seq_cst); }
  bool pending() const noexcept { return status() == work_status::pending; }
  /// False if another thread has ended it, or is about to.
  bool end(work_result how);
  /// While another thread is about to end the operation, it is still pending.
  work_result result() const;

private:
  std::atomic<bool> claimed_{false};
  work_result result_;  // constant once `status_` is not pending
  std::atomic<work_status> status_{work_status::pending};
};

/// Why a group was aborted. With `timed_out` or `mismatch` an operation is the cause: the one that
/// `channel` and `number` name.
struct end_reason {
  work_status status = work_status::aborted;
  std::string text;
  std::vector<std::int32_t> missing;  ///< timed_out only: the ranks that did not arrive
  std::uint64_t channel = 0;
  std::uint64_t number = 0;
  friend bool operator==(const end_reason&, const end_reason&) = default;

  /// How an operation of the aborted group ends for `rank`. Every rank that calls the operation
  /// gets a mismatch; the ranks that `arrived` and are not missing get a time-out. Any other
  /// operation is aborted.
  work_result result_of(std::uint64_t of_channel, std::uint64_t of_number, std::int32_t rank,
                        bool arrived = true) const;
};

/// The reasons that an operation gives.
end_reason disagreed(std::uint64_t channel, std::uint64_t number, std::span<const called> calls);
end_reason late(std::uint64_t channel, std::uint64_t number, const collective_call& call,
                std::chrono::nanoseconds deadline, std::vector<std::int32_t> missing);

/// The abort of a group whose ranks or threads share this object: the first reason stays.
/// Thread-safe.
class group_end {
public:
  bool aborted() const noexcept { return aborted_.load(std::memory_order_seq_cst); }
  /// For loops that stop when the group is aborted.
  const std::atomic<bool>& flag() const noexcept { return aborted_; }
  /// False if the group was aborted before.
  bool abort(std::string_view why) noexcept;
  bool abort(end_reason why) noexcept;
  /// The text of the reason. Empty before the abort.
  std::string why() const;
  /// See end_reason::result_of. Only once aborted.
  work_result result_of(std::uint64_t channel, std::uint64_t number, std::int32_t rank,
                        bool arrived = true) const;

private:
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  end_reason reason_;
};

}  // namespace troupe::collectives
