// The types in shared memory: integers of fixed size, the same for all processes of the job. New
// memory is zero, which is a valid initial state of each type.
#pragma once

#include "backends/collective/waiting.hpp"
#include "backends/shm/schedule.hpp"
#include "troupe/communicator.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace troupe::shm {

/// Raised with each change of the types below; processes of different versions refuse each other.
inline constexpr std::uint32_t layout_version = 3;

inline constexpr std::size_t world_max = 256;
inline constexpr std::size_t channels_max = 64;  // subgroups of one generation, with the world
inline constexpr std::size_t line = 64;
inline constexpr std::size_t label_max = 256;  // bytes of a barrier's label that others can read
inline constexpr std::size_t reason_max = 3072;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

using rank_set = std::array<std::uint64_t, world_max / 64>;
inline void insert(rank_set& set, std::int32_t rank) {
  set[static_cast<std::size_t>(rank) / 64] |= std::uint64_t{1} << (rank % 64);
}
inline bool contains(const rank_set& set, std::int32_t rank) {
  return (set[static_cast<std::size_t>(rank) / 64] >> (rank % 64) & 1) != 0;
}

/// An operation's fingerprint, and this member's vote or registered memory.
struct wire_call {
  std::uint8_t what = 0;
  std::uint8_t type = 0;
  std::uint8_t operation = 0;
  std::uint8_t all = 0;
  std::uint8_t yes = 0;         ///< decide: this member's vote
  std::uint8_t registered = 0;  ///< the memory lies in the region, at `place`
  std::uint16_t label_bytes = 0;
  std::int32_t root = -1;
  std::uint32_t label_length = 0;
  std::uint64_t count = 0;
  std::uint64_t label_hash = 0;
  std::uint64_t place = 0;
};

/// Bit that freezes a value: the group was aborted, and no process may change the value any more.
inline constexpr std::uint64_t closed = std::uint64_t{1} << 63;

/// One member's steps in one slot set. Written by the member; any member may set `closed`.
struct alignas(line) post {
  std::atomic<std::uint64_t> published;  ///< number of the next step, or `closed`
  wire_call call;                        ///< of the operation that began at this step
};
static_assert(sizeof(post) == line);

/// One member of one channel.
struct alignas(line) seat_block {
  std::array<post, slot_sets> posts;
  alignas(line) std::atomic<std::uint64_t> submitted;  ///< operations
  alignas(line) std::array<std::array<char, label_max>, slot_sets> labels;
};

/// Work on registered buffers: a number of the operation, and what is claimed or done of it.
struct alignas(line) shared_work {
  std::atomic<std::uint64_t> claimed;  ///< number (16 bits), from the end (24), from the front (24)
  std::atomic<std::uint64_t> done;     ///< closed (1), number (16), slices (47)
};

enum class channel_state : std::uint32_t { free, claimed, open };
struct alignas(line) channel_block {
  std::atomic<channel_state> state;
  rank_set members;
  std::array<shared_work, slot_sets> work;
};

/// One rank of the region.
struct alignas(line) rank_block {
  shared_bell bell;
  alignas(line) std::atomic<std::int32_t> touching;  ///< threads that touch memory in a collective
  alignas(line) std::atomic<std::uint32_t> departed;
  whereabouts core;
};

enum class abort_state : std::uint32_t { none, writing, written };
/// Why the group has ended (collectives::end_reason): written once, by the first caller.
struct alignas(line) abort_block {
  std::atomic<abort_state> state;
  work_status status;
  std::uint32_t channel;  ///< timed_out and mismatch: of which operation
  std::uint32_t length;
  std::uint64_t number;
  rank_set missing;
  std::array<char, reason_max> text;
};

/// Where things lie in one generation's region, in bytes. Slots and registered memory take up
/// addresses; memory comes with use.
class region_layout {
public:
  region_layout() = default;
  region_layout(std::size_t world, std::size_t slot_bytes, std::size_t registered_bytes)
      : world_(world), slot_bytes_(slot_bytes), registered_bytes_(registered_bytes) {}

  std::size_t world() const { return world_; }
  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t registered_bytes() const { return registered_bytes_; }

  std::size_t rank(std::size_t r) const { return sizeof(abort_block) + r * sizeof(rank_block); }
  std::size_t channel(std::size_t c) const { return rank(world_) + c * sizeof(channel_block); }
  std::size_t seat(std::size_t c, std::size_t r) const {
    return channel(channels_max) + (c * world_ + r) * sizeof(seat_block);
  }
  /// The three slots of one member follow each other.
  std::size_t slots(std::size_t c, std::size_t r) const {
    return pages(seat(channels_max, 0)) + (c * world_ + r) * slot_sets * slot_bytes_;
  }
  /// Ranks' areas are not a power of two apart. Otherwise buckets of different ranks would share
  /// the low bits of their addresses and conflict in caches (measured: ten times slower).
  std::size_t registered(std::size_t r) const {
    return huge_pages(slots(channels_max, 0)) + r * (registered_bytes_ + huge_page);
  }
  std::size_t bytes() const { return registered(world_); }
  /// The part that all ranks need from the start, so its memory is reserved at once.
  std::size_t control_bytes() const { return pages(seat(1, 0)); }

  static constexpr std::size_t huge_page = std::size_t{2} << 20;

private:
  static std::size_t pages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  static std::size_t huge_pages(std::size_t bytes) {
    return (bytes + huge_page - 1) / huge_page * huge_page;
  }
  std::size_t world_ = 1;
  std::size_t slot_bytes_ = 0;
  std::size_t registered_bytes_ = 0;
};

}  // namespace troupe::shm
