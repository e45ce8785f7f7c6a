// The slot protocol as a pure function: which chunk a member copies in, reduces and copies out at
// which step. Executed by channel.cpp, searched exhaustively by a test.
//
// The members of a channel go in steps. A member publishes "step s is done" when its work of step s
// is done, and begins the work of step s + 1 when all have published step s: one barrier per step,
// and no member is ever more than one step ahead. The chunk that is copied in at step s lies in
// slot set s % slot_sets; it is reduced at step s + 1 and copied out at step s + 2, while the next
// two chunks follow in the other sets. Two sets are too few: a fast member would copy chunk k + 2
// in while a slow one still copies chunk k out.
#pragma once

#include <cstdint>
#include <optional>

namespace troupe::shm {

inline constexpr std::uint64_t slot_sets = 3;

/// How an operation is carried out. Decided by all members alike, from what all of them published.
enum class form : std::uint8_t {
  together,  ///< small: each member copies in on arrival, then reads the input of all
  direct,    ///< in chunks: copied in, then each member reads what it needs from all slots
  slices,    ///< in chunks: copied in, each member reduces its slice, copied out
  in_place,  ///< between registered buffers: nothing is copied; the ranks that are here do the work
};

/// What a member does at one step. Chunks count from 0.
struct stage {
  std::optional<std::uint64_t> fill;    ///< copies this chunk into its slot
  std::optional<std::uint64_t> reduce;  ///< reduces its slice of this chunk
  std::optional<std::uint64_t> drain;   ///< copies (direct: reduces) this chunk out of the slots
  friend bool operator==(const stage&, const stage&) = default;
};

/// One operation's steps, counted from its first (the arrival).
struct schedule {
  form how = form::together;
  std::uint64_t chunks = 1;

  /// Steps that a member publishes. The work at step `steps()`, after the last barrier, ends the
  /// operation; it is not published but goes before the first step of the next operation.
  constexpr std::uint64_t steps() const {
    switch (how) {
      case form::direct: return 1 + chunks;
      case form::slices: return 2 + chunks;
      case form::together:
      case form::in_place: break;
    }
    return 1;
  }
  constexpr stage at(std::uint64_t step) const {
    switch (how) {
      case form::together: return step == 0 ? stage{0, {}, {}} : stage{{}, {}, 0};
      case form::direct: return {chunk(step, 1), {}, chunk(step, 2)};
      case form::slices: return {chunk(step, 1), chunk(step, 2), chunk(step, 3)};
      case form::in_place: break;
    }
    return {};
  }
  /// The step at which a chunk is copied in; modulo `slot_sets`, from the channel's first step on,
  /// it is the set where the chunk lies.
  constexpr std::uint64_t filled_at(std::uint64_t of_chunk) const {
    return how == form::together ? 0 : of_chunk + 1;
  }

  friend bool operator==(const schedule&, const schedule&) = default;

private:
  constexpr std::optional<std::uint64_t> chunk(std::uint64_t step, std::uint64_t later) const {
    if (step < later || step - later >= chunks) return std::nullopt;
    return step - later;
  }
};

}  // namespace troupe::shm
