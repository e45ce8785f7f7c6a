// One operation of this rank: what the lane sees of it, and the requests that MPI works on.
#pragma once

#include "backends/collective/group_end.hpp"
#include "backends/collective/submission.hpp"
#include "backends/mpi/types.hpp"
#include "backends/running_clock.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace troupe::mpi {

using collectives::submission;

/// Where an operation takes place: the group's communicator, its members as ranks of it, and this
/// rank's place among them. `tag` is 0 when the members are the whole world.
struct stage_of {
  MPI_Comm comm = MPI_COMM_NULL;
  const std::vector<std::int32_t>* members = nullptr;
  std::size_t member = 0;
  int tag = 0;
};

/// One operation. All but `how`, `verdict` and `touching` is used under the engine's lock only.
class task {
public:
  task(submission what, std::chrono::nanoseconds deadline)
      : what(std::move(what)), deadline(deadline), submitted(running_clock::now()) {}

  /// Begins the transfer, once all members have submitted the same call. `aside`: with scratch
  /// memory in place of the rank's own, because it has gone back to its owner.
  void start(const stage_of& where, const operations& arithmetic, bool aside);
  bool started() const { return started_; }
  bool aside() const { return aside_; }
  /// This operation must end before `later`, of the same members, begins, because one writes memory
  /// that the other uses.
  bool bars(const task& later, std::size_t members) const;
  /// Tests MPI's requests. True once they are done; then results are in place, unless the operation
  /// has already failed. The caller marks a successful end.
  bool finished();
  /// Once started: why it cannot end well, if MPI or memory has failed.
  const std::string& trouble() const { return trouble_; }
  /// Once finished: a member took part with scratch memory, so the received data is no result.
  /// That member's abort has arrived or is on its way.
  bool empty_participation() const;

  const submission what;
  const std::chrono::nanoseconds deadline;  ///< 0: none
  const running_clock::time_point submitted;
  std::uint64_t channel = 0;  ///< these two name the operation within its group
  std::uint64_t number = 0;
  collectives::outcome how;
  std::atomic<bool> verdict{false};
  std::atomic<bool> touching{false};  ///< MPI may read or write the rank's own memory

private:
  using bytes = std::unique_ptr<std::byte[]>;

  void start_with(const stage_of& where, const operations& arithmetic, bool aside);
  void need(int result);
  void start_all_reduce();
  void start_broadcast();
  void start_all_gather();
  void start_reduce_scatter();
  void start_exchange();
  void conclude();
  void conclude_exchange();
  void start_transfer();
  void start_vows();
  MPI_Request& request();
  std::size_t members() const { return where_.members->size(); }
  std::size_t bytes_each() const { return what.call.count * size_of(what.call.type); }

  stage_of where_;
  const operations* arithmetic_ = nullptr;
  bool started_ = false;
  bool aside_ = false;
  std::vector<MPI_Request> requests_;
  std::string trouble_;            // why it cannot end well
  const std::byte* in_ = nullptr;  // the rank's own memory or `aside_memory_`
  std::byte* out_ = nullptr;
  std::vector<std::uint8_t> own_memory_;  // whose was it: of the world the least of all, else each
  bytes aside_memory_;
  bytes staged_;  // what travels where that is not the rank's own memory
  bytes result_;  // what arrives, likewise
};

}  // namespace troupe::mpi
