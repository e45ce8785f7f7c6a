// One rank's part in one generation: the state that its channels share.
#pragma once

#include "backends/collective/scopes.hpp"
#include "backends/shm/channel.hpp"
#include "backends/shm/control_segment.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace troupe::shm {

/// Thread-safe.
class member : public std::enable_shared_from_this<member> {
public:
  /// `spin`: there is a core for each rank.
  member(const group_description& who, std::shared_ptr<region> in, bool spin);

  const group_description& who() const { return who_; }
  const region& memory() const { return *region_; }
  std::int32_t rank() const { return who_.rank; }
  /// The number of a rank of this group in texts.
  std::int32_t name_of(std::int32_t rank) const { return who_.named_from + rank; }
  /// True if ranks may spin, and no other rank of `members` was last seen on this rank's core.
  bool may_spin(const std::vector<std::int32_t>& members) const noexcept;
  shared_bell& bell() const { return region_->rank(who_.rank).bell; }
  /// Where registered memory of this rank lies in the region.
  std::optional<std::size_t> place(const void* data, std::size_t bytes) const {
    return registered_.place(data, bytes);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) { return registered_.allocate(bytes); }

  /// Throws user_error if memory is refused or there are too many.
  std::shared_ptr<channel> among(const std::vector<std::int32_t>& members);
  /// Once the group is aborted: closes the posts, so that no member can publish another step.
  void close_words(std::size_t channel) const noexcept;

  /// The first reason stays.
  void abort(std::string_view why) noexcept;
  void abort(const collectives::end_reason& why) noexcept { abort(why, why.text); }
  bool aborted() const noexcept {
    return region_->abort().state.load(std::memory_order_seq_cst) != abort_state::none;
  }
  /// Once aborted.
  collectives::end_reason why() const;

  /// Wakes the members of a channel that sleep.
  void wake(const std::vector<std::int32_t>& ranks) const noexcept;

  /// Marks this rank as departed. Aborts the group if an operation is in flight or needs this rank.
  void depart() noexcept;
  collectives::touching::count& touched() const { return region_->rank(who_.rank).touching; }
  bool departed(std::int32_t rank) const noexcept {
    return region_->rank(rank).departed.load(std::memory_order_seq_cst) != 0;
  }
  /// See communicator::quiescent. `over(rank)`: the rank's process has ended.
  bool quiescent(const std::function<bool(std::int32_t)>& over) noexcept;

  /// Drives operations for which no thread waits. True if some of them are left.
  bool attend() noexcept;
  /// Nothing is in flight.
  bool idle() const;
  /// The ranks that operations in flight may wait for; may include this one.
  rank_set late() const;
  /// Rings when something was submitted that its submission did not end.
  std::function<void()> call_progress_thread;
  /// Threads of this rank that are inside of wait().
  collectives::lane_waits::count waiting{0};

private:
  std::size_t find_or_open(const rank_set& members);
  /// Replaces the reason's own text by `text`, so that an abort allocates no memory.
  void abort(const collectives::end_reason& why, std::string_view text) noexcept;

  const group_description who_;
  const std::shared_ptr<region> region_;
  const bool spin_;
  registered_memory registered_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<channel>> channels_;
  std::vector<channel*> all() const;
};

}  // namespace troupe::shm
