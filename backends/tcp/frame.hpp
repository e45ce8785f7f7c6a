// The bytes between two ranks over a stream: a handshake of two fixed blocks, then frames.
// Little-endian. Encoding and decoding are pure. For any input, decoding yields a valid value or
// throws wire_error, and never allocates a size that the input gives.
#pragma once

#include "backends/collective/group_end.hpp"
#include "troupe/detail/ids.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::tcp {

/// Raised by each change of the frames or of their order.
inline constexpr std::uint32_t wire_version = 4;
/// Largest world: lists of ranks fit into an extension.
inline constexpr std::int32_t world_max = 4096;
inline constexpr std::size_t label_max = 1024;
inline constexpr std::size_t reason_max = 4096;
inline constexpr std::uint32_t extension_max = 24u << 10;
inline constexpr std::uint32_t body_max = 256u << 10;

/// Known to the ranks of a job only. It keeps strangers out, not eavesdroppers: it is sent without
/// encryption.
using job_secret = std::array<std::uint8_t, 32>;
/// From the kernel's random numbers. Throws internal_error if it has none.
job_secret fresh_secret();
/// Takes equally long for any two secrets.
bool same_secret(const job_secret& a, const job_secret& b);

/// Bytes that no rank of this version sends. The text has no subject: "sent a frame of kind 9".
class wire_error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The first block: sent by the rank that connects. A peer of another version is refused before
/// any field after the version is read.
struct hello {
  std::uint32_t version = wire_version;
  job_secret secret{};
  job_id job;
  generation_id generation;
  std::int32_t world = 0;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::uint16_t stream = 0;   ///< this connection's place among those of the two ranks
  std::uint16_t streams = 1;  ///< how many there are
  friend bool operator==(const hello&, const hello&) = default;
};
inline constexpr std::size_t hello_bytes = 80;
using hello_block = std::array<std::byte, hello_bytes>;
hello_block encode(const hello& what);
/// Of another version only `version` is set. Throws wire_error if the block is not a hello.
hello decode_hello(const hello_block& block);

/// Why a connection is not taken, in the order in which it is checked.
enum class answer_code : std::uint8_t {
  welcome,
  other_version,
  wrong_secret,  ///< nothing else is said to strangers
  not_open,      ///< may be tried again: the generation is not open here yet
  left,          ///< the generation was open here and is not any more, or a later one was: bye
  other_world,
  wrong_rank,     ///< impossible ranks, or the lower rank dialed the higher one
  other_streams,  ///< another number of connections between two ranks
  wrong_stream,   ///< none of that number
  duplicate,      ///< the rank is connected already
  aborted,        ///< as `left`, after an abort: the text is its reason
};
/// The second block: the answer.
struct answer {
  std::uint32_t version = wire_version;
  answer_code code = answer_code::welcome;
  job_secret secret{};  ///< with a welcome only
  std::string text;     ///< for people; cut to answer_text_max
  friend bool operator==(const answer&, const answer&) = default;
};
inline constexpr std::size_t answer_text_max = 180;
inline constexpr std::size_t answer_bytes = 232;
using answer_block = std::array<std::byte, answer_bytes>;
answer_block encode(const answer& what);
answer decode_answer(const answer_block& block);

enum class frame_kind : std::uint8_t {
  channel =
      1,  ///< extension: members of the (sub)group that the sender calls `channel` from now on
  call,   ///< extension: what was called; body: the payload of a small operation, if it may go
  ready,  ///< the sender has finished all operations before this one
  data,   ///< body: a part of an operation's memory
  ask,    ///< asks for which ranks the receiver waits, in this operation or before it
  waits,  ///< the answer; extension: those ranks. Channel and number are those of the `ask`
  abort,  ///< extension: how and why the sender's group ended. The last frame
  bye,    ///< the sender has left and owes nothing. The last frame
};

/// The role of a body in its operation.
enum class part : std::uint8_t {
  payload,       ///< all that a small operation sends to a member
  contribution,  ///< a chunk of the receiver's slice, to be reduced there
  result,        ///< a chunk of what the sender has reduced, or of what it gives to all
};

struct frame_header {
  frame_kind kind = frame_kind::bye;
  part what = part::payload;  ///< data only
  bool ready = false;         ///< call only: as if a `ready` followed it
  bool yes = false;           ///< call of decide only
  std::uint32_t channel = 0;
  std::uint64_t number = 0;  ///< of the operation in its channel
  std::uint64_t offset = 0;  ///< data only: bytes before this body in what is sent
  std::uint32_t extension_bytes = 0;
  std::uint32_t body_bytes = 0;
  friend bool operator==(const frame_header&, const frame_header&) = default;
};
/// The byte that follows each body: whether the body is valid. An aborting sender fills a body that
/// it had begun with zeros, and marks it torn.
enum class trailer : std::uint8_t { whole, torn };

inline constexpr std::size_t header_bytes = 32;
using header_block = std::array<std::byte, header_bytes>;
header_block encode(const frame_header& what);
/// Throws wire_error for unknown kinds, lengths past the limits and fields that the kind has no use
/// for.
frame_header decode_header(std::span<const std::byte, header_bytes> block);

/// Throws wire_error for anything else.
trailer decode_trailer(std::byte what);

using extension = std::vector<std::byte>;

extension encode(const collective_call& what);
collective_call decode_call(std::span<const std::byte> bytes);

extension encode_ranks(std::span<const std::int32_t> ranks);
/// Throws unless they are ascending, each once, within the world.
std::vector<std::int32_t> decode_ranks(std::span<const std::byte> bytes, std::int32_t world);
/// The same, and throws unless they can be members of a (sub)group: two at least.
std::vector<std::int32_t> decode_members(std::span<const std::byte> bytes, std::int32_t world);

/// Why the sender's group ended, without channel and number: the header names the operation. The
/// text is cut to reason_max.
extension encode(const collectives::end_reason& what);
collectives::end_reason decode_end_reason(std::span<const std::byte> bytes, std::int32_t world);

}  // namespace troupe::tcp
