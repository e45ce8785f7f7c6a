// What a thread shows of itself while it is inside a collective.
#pragma once

#include <atomic>
#include <cstdint>

namespace troupe::collectives {

/// While this lives, a thread may touch the memory of operations: the group is not quiescent. The
/// count may lie in memory that processes share.
class touching {
public:
  using count = std::atomic<std::int32_t>;
  explicit touching(count& of) noexcept : count_(of) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~touching() { count_.fetch_sub(1, std::memory_order_seq_cst); }
  touching(const touching&) = delete;
  touching& operator=(const touching&) = delete;

private:
  count& count_;
};

/// While this lives, a thread of this rank waits for its peers (communicator::waiting).
class lane_waits {
public:
  using count = std::atomic<std::int32_t>;
  explicit lane_waits(count& of) noexcept : count_(of) {
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  ~lane_waits() { count_.fetch_sub(1, std::memory_order_relaxed); }
  lane_waits(const lane_waits&) = delete;
  lane_waits& operator=(const lane_waits&) = delete;

private:
  count& count_;
};

}  // namespace troupe::collectives
