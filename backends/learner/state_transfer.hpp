// Sends a replica's state from ranks that hold it to ranks that lack it: what hooks::restore_state
// does on the communicator. No LibTorch.
//
// 0. All ranks meet in a barrier, which waits longer than other collectives: the donors are there
//    while the receivers run their set-up hooks one after the other.
// 1. The first donor broadcasts a header: text, digest, and for each tensor its name, dtype, shape
//    and size.
// 2. All ranks exchange which chunks the receivers lack. The tensors, one after the other, are cut
//    into chunks of 4 MiB, so a chunk may hold many small tensors.
// 3. Chunk i is broadcast from donor i modulo their number to all receivers. Its last 8 bytes are
//    the XXH3-64 of its other bytes, with the number of the chunk as the seed.
#pragma once

#include "troupe/communicator.hpp"
#include "troupe/value.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// A replica's state as it is sent.
struct replica_state {
  std::string digest;  ///< the same on all donors
  std::string text;    ///< the receivers get the first donor's
  std::vector<tensor_blob> tensors;
  /// Donors with the same digest may have tensors with other bytes: only the first one sends.
  bool one_donor = false;
};

/// The verified chunks of a transfer that was aborted. The next transfer of a state with the same
/// digest asks for the others only, and for all of them with `one_donor`. Belongs to one rank, and
/// outlives its learners.
struct partial_state {
  std::string digest;
  std::size_t chunk_bytes = 0;
  std::vector<std::shared_ptr<std::vector<std::byte>>> tensors;
  std::vector<std::uint8_t> lacks;  ///< by chunk, 1: not here yet
  void clear() { *this = {}; }
};

/// One transfer. Collective: every rank of `world` makes one with the same donors and calls `go_on`
/// until it returns true.
class state_transfer {
public:
  static constexpr std::size_t default_chunk_bytes = std::size_t{4} << 20;

  /// `donors` ascend; there is at least one. A donor passes its state. `kept` is used by receivers,
  /// null: nothing survives an aborted transfer.
  state_transfer(std::shared_ptr<communicator> world, std::vector<std::int32_t> donors,
                 std::optional<replica_state> mine, std::shared_ptr<partial_state> kept,
                 std::size_t chunk_bytes = default_chunk_bytes);

  /// False: an operation is pending, to be called again; only if `may_wait` is false. Throws what
  /// `work::wait` throws. Throws user_error if a chunk is damaged, with the names of its tensors,
  /// and internal_error if donors hold different states.
  bool go_on(bool may_wait);
  /// The state, the first donor's text included. After `go_on` returned true, once.
  replica_state take() { return std::move(state_); }
  /// How many chunks of the state this transfer sent.
  std::size_t chunks_sent() const { return sent_; }

private:
  enum class stage : std::uint8_t { arrival, size, header, lacking, chunks, done };
  struct staged {
    std::size_t chunk = 0;
    bool member = false;
    std::vector<std::byte> bytes;
  };

  bool gives() const { return gives_; }
  std::int32_t rank() const { return world_->group().rank; }
  std::int32_t donor_of(std::size_t chunk) const;
  std::size_t size_of_chunk(std::size_t chunk) const;
  void submit();
  void submit_chunks();
  void advance();
  void read_header();
  void prepare_to_receive();
  void plan_chunks();
  void take_chunks();
  void finish();
  subgroup concerned(std::size_t chunk) const;
  std::string names_in(std::size_t chunk) const;
  template <class F>
  void each_part(std::size_t chunk, F&& use) const;

  std::shared_ptr<communicator> world_;
  std::vector<std::int32_t> donors_;
  std::vector<std::int32_t> receivers_;
  std::shared_ptr<partial_state> kept_;
  replica_state state_;
  bool gives_ = false;
  std::size_t chunk_bytes_;
  stage stage_ = stage::arrival;
  std::deque<work_ptr> flying_;
  std::int64_t header_bytes_ = 0;
  std::vector<std::byte> header_;
  std::vector<std::uint64_t> sizes_;    // of the tensors, in bytes
  std::vector<std::uint64_t> offsets_;  // of the tensors, and their total
  std::vector<std::uint8_t> lacking_;   // by chunk, on any receiver
  std::vector<std::size_t> due_;        // chunks to send
  std::size_t next_ = 0;                // in due_
  std::vector<staged> round_;
  std::size_t sent_ = 0;
};

}  // namespace troupe
