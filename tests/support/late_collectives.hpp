// Sums of memory of late devices, as NCCL makes them of memory of GPUs: each rank has a stream of
// its own for them, in which a sum begins after the event of its buffer, on all ranks. Like every
// stream of the device it runs a sum only when a thread waits for it.
#pragma once

#include "troupe/communicator.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace troupe::testing {

struct late_sum;

/// What the ranks of one group share. Thread-safe.
class late_rendezvous {
public:
  explicit late_rendezvous(std::int32_t world) : world_(world) {}

  /// The rank's communicator. `host` carries what is in memory of the host, and the agreement of
  /// the ranks on each sum.
  std::shared_ptr<communicator> join(const std::shared_ptr<communicator>& host);
  /// Sums that have run on the devices.
  std::int64_t ran() const { return ran_; }

private:
  friend class late_world;
  std::shared_ptr<late_sum> sum(std::uint64_t number);

  const std::int32_t world_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<late_sum>> sums_;
  std::atomic<std::int64_t> ran_{0};
};

}  // namespace troupe::testing
