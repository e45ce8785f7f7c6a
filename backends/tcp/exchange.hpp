// One collective of one (sub)group as one member sees it: the calls of all members, the bytes that
// may be sent to each member now, and the memory for incoming bytes. Uses no socket, thread or
// clock.
//
// Small operations: every member sends all that another needs in one payload. Others: every member
// sends slice j to member j in chunks (contributions), j reduces them in canonical order and sends
// the result back. A chunk is contributed only when the result of the `window`th before it is here,
// so that memory is bounded whatever the size.
#pragma once

#include "backends/collective/collective_call.hpp"
#include "backends/tcp/frame.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::tcp {

/// Bytes of one chunk. Members must agree on it: part of the wire version, as are the next two
/// and what is wide.
inline constexpr std::size_t chunk_bytes = body_max;
/// Chunks of a slice on their way at a time.
inline constexpr std::uint64_t window = 4;
/// Most that one member sends at once in a small operation.
inline constexpr std::size_t payload_max = 64u << 10;

/// Memory of chunk_bytes each, used again and again. Not thread-safe.
class chunk_pool {
public:
  using chunk = std::unique_ptr<std::byte[]>;
  chunk take();
  void give(chunk used) { free_.push_back(std::move(used)); }

private:
  std::vector<chunk> free_;
};

/// Bytes for one member.
struct parcel {
  part what = part::payload;
  std::uint64_t offset = 0;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Not thread-safe. Members are places in the (sub)group. An impossible call from the wire throws
/// wire_error; any other impossible call throws internal_error or is ignored.
class exchange {
public:
  exchange(std::size_t members, std::size_t me, chunk_pool& pool);

  /// Records the call of `member` (`me`: this rank). `yes`: its vote in decide; in broadcast,
  /// whether it is the root. False if the call differs from that of another member.
  bool call(std::size_t member, collective_call what, bool yes);
  bool called(std::size_t member) const { return sides_[member].called; }
  bool is_ready(std::size_t member) const { return sides_[member].ready; }
  const collective_call& call_of(std::size_t member) const { return sides_[member].call; }
  /// `member` has finished all operations before this one.
  void ready(std::size_t member);
  /// This rank has finished all operations before this one, and passes its memory. After call(me).
  void start(const void* in, void* out, const std::atomic<bool>& stop);
  bool started() const { return started_; }
  /// After `start`: all that one member needs of another goes in one payload.
  bool small() const { return small_; }
  /// After `start`: some slice fills a window, so that it pays to spread chunks over connections.
  bool wide() const { return wide_; }
  /// All members have submitted the same call and are ready.
  bool met() const { return missing_ == 0; }

  /// The bytes that may be sent to `member` now, if any. The caller calls `sent` once per parcel.
  std::optional<parcel> next(std::size_t member);
  void sent(std::size_t member) { --sides_[member].queued; }

  /// Where bytes from `member` belong. Valid until `landed`, which must follow.
  std::byte* place(std::size_t member, part what, std::uint64_t offset, std::size_t bytes);
  /// The bytes are in place. Reduces what is complete; looks at `stop` before each chunk.
  void landed(std::size_t member, part what, std::uint64_t offset, const std::atomic<bool>& stop);

  /// All bytes are received and sent: call `finish`, and the operation is over.
  bool done() const;
  void finish();
  /// The agreement of decide, after `finish`.
  bool verdict() const { return verdict_; }
  /// Members for which this rank waits, for `expire`. `blocks`: the member itself has not sent or
  /// received bytes. `owes`: the member may only be waiting for others.
  bool blocks(std::size_t member) const;
  bool owes(std::size_t member) const;

private:
  /// A contribution that waits for those of others.
  struct slot {
    chunk_pool::chunk memory;
    bool taken = false;
    bool landed = false;
  };
  struct side {
    bool called = false;
    bool ready = false;
    bool yes = false;
    bool payload_in = false;
    bool payload_out = false;
    collective_call call;
    std::vector<std::byte> payload;
    std::array<slot, window> slots;
    std::uint64_t contributions_out = 0;  // in chunks, as the next two
    std::uint64_t results_in = 0;
    std::uint64_t results_out = 0;
    std::vector<bool> results_placed;  // of those that may come
    unsigned queued = 0;               // parcels not yet sent
  };
  struct range {
    std::size_t first = 0;
    std::size_t bytes = 0;
    std::uint64_t chunks() const { return bytes / chunk_bytes + (bytes % chunk_bytes != 0); }
    std::size_t chunk(std::uint64_t index) const {
      return std::min<std::size_t>(chunk_bytes, bytes - index * chunk_bytes);
    }
  };

  bool reduces() const;
  /// Members only agree that they all called it; its data goes another way.
  static bool bare(const collective_call& call) {
    return call.what != collective_kind::barrier && !call.label.empty();
  }
  bool small(const collective_call& call) const;
  /// Bytes that `from` sends in a small operation to each of the others.
  std::size_t payload_bytes(const collective_call& call, std::size_t from) const;
  range slice(std::size_t member) const;
  std::uint64_t results_from(std::size_t member) const;
  std::uint64_t results_now() const;
  bool finished_with(std::size_t member) const;
  std::byte* place_chunk(side& from, std::size_t member, part what, std::uint64_t offset,
                         std::size_t bytes);
  void reduce_complete(const std::atomic<bool>& stop);
  void reduce_payloads();
  void copy_payloads();

  std::size_t me_;
  chunk_pool* pool_;
  std::vector<side> sides_;
  std::size_t missing_;  // members that are not ready
  bool started_ = false;
  bool verdict_ = false;
  bool small_ = true;
  bool wide_ = false;
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::uint64_t reduced_ = 0;  // chunks of my slice
};

}  // namespace troupe::tcp
