// The small messages between ranks, besides MPI's collectives: a rank's calls, its abort, its
// departure.
#pragma once

#include "backends/collective/collective_call.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace troupe::mpi {

enum class control_message_kind : std::uint8_t {
  hello,     ///< the first on a group: number is the generation, count the job
  call,      ///< the sender has submitted an operation
  abort,     ///< the sender's group has ended: text says why
  mismatch,  ///< the same, found at operation `number` of `channel`
  bye,       ///< the sender's handle is gone, nothing follows: text says why its group had ended,
             ///< `yes`: by a mismatch, at operation `number` of `channel`
};

/// All messages have one size, so that a receive can be posted before the sender is known. Sent as
/// raw bytes between processes of one program on one kind of machine.
struct control_message {
  control_message_kind kind = control_message_kind::hello;
  collective_kind what = collective_kind::barrier;
  dtype type = dtype::u8;
  reduction operation = reduction::sum;
  std::uint8_t all = 1;
  std::uint8_t yes = 0;
  std::uint16_t text_size = 0;
  std::int32_t root = -1;
  std::int32_t sender = -1;
  std::uint64_t channel = 0;
  std::uint64_t number = 0;
  std::uint64_t count = 0;
  std::array<char, 472> text{};
};
static_assert(std::is_trivially_copyable_v<control_message> && sizeof(control_message) == 512);

/// A text that fits into a control message. A longer text is cut and ends with a hash of the whole,
/// so that different texts stay different.
std::string fitting(std::string_view text);

void put_text(control_message& into, std::string_view text);
std::string text_of(const control_message& from);

/// A call's fingerprint as a control message. The call's label must fit.
control_message control_message_of(const collective_call& call, bool yes);
/// Throws std::invalid_argument for what no rank of this program sends.
collective_call call_of(const control_message& from);

/// Names a list of members; 0 is kept for the whole world. Equal lists have equal names.
std::uint64_t channel_name(std::span<const std::int32_t> members);

}  // namespace troupe::mpi
