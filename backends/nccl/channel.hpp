// One NCCL communicator: the ranks of a (sub)group, and their operations in order.
#pragma once

#include "backends/collective/group_end.hpp"
#include "backends/collective/submission.hpp"
#include "backends/nccl/library.hpp"
#include "backends/running_clock.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::nccl {

/// A CUDA event, destroyed with the last owner.
using event_ptr = std::shared_ptr<CUevent_st>;

using collectives::submission;

/// One operation of this rank.
struct operation {
  submission what;
  work_ptr control;  ///< ends when all ranks have submitted it alike
  event_ptr ready;   ///< of the default stream at submission; null: `what` has the events
  std::chrono::nanoseconds deadline{0};  ///< 0: none
  event_ptr done;  ///< null until it runs on the GPU; the watcher's, the lane's once `launched`
  bool launching = false;
  std::atomic<bool> launched{false};
  collectives::outcome how;
};

/// What a rank sends to the others about its GPU.
struct gpu_name {
  std::array<char, 64> host{};
  std::array<char, 32> bus{};
};

/// Driven by the watcher's thread; `push` from the lane.
class channel {
public:
  /// `control` is used for the two operations that connect; by the lane, so construct it there.
  channel(std::shared_ptr<const library> functions, communicator& control, subgroup among,
          std::vector<std::int32_t> members, int device, const gpu_name& own);
  ~channel();
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  const std::vector<std::int32_t>& members() const { return members_; }
  void push(std::shared_ptr<operation> what);

  /// Moves everything on without waiting. Returns why the group has to end, or nothing.
  std::string step();
  /// True while something is under way.
  bool busy() const;
  /// Ends the kernels that run on the GPU. Call once.
  void abort();
  /// After `abort`: nothing runs any more.
  bool idle();
  /// Destroys NCCL's communicator after a successful end. True when done.
  bool close();

private:
  enum class phase : std::uint8_t { facts, unique_id, connecting, ready, finalizing, gone };

  std::string connect();
  std::string begin_connecting();
  std::string shared_gpu() const;
  std::string launch(operation& what);
  std::string late(const operation& first);
  cudaError_t await_memory(const operation& what);
  ncclResult_t call(const operation& what);
  /// True when NCCL has accepted the last call. Sets `why` if NCCL refused it.
  bool settled(std::string& why);
  std::string nccl_says(ncclResult_t error) const;

  const std::shared_ptr<const library> functions_;
  const std::vector<std::int32_t> members_;
  const int rank_;  // among the members
  const int device_;
  phase phase_ = phase::facts;
  gpu_name own_;
  std::vector<gpu_name> facts_;
  work_ptr gathered_;
  ncclUniqueId id_{};
  work_ptr sent_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  mutable std::mutex mutex_;  // of the queue
  std::deque<std::shared_ptr<operation>> queue_;
  // The first operation in the queue that all ranks have called, and since when it is the first.
  const operation* first_ = nullptr;
  running_clock::time_point since_;
};

/// Why NCCL does not do it, in words for users; empty when it does.
std::string lacks(const collective_call& call);

}  // namespace troupe::nccl
