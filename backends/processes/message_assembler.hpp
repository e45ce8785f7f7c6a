// The receiving side of a link's byte stream, without a socket: bytes in, messages out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "backends/wire/link_codec.hpp"
#include "troupe/detail/ids.hpp"

namespace troupe {

/// The job and the incarnation of a link. Both ends send it first; the link is lost if they differ.
struct link_identity {
  job_id job;
  incarnation_id incarnation;
  friend bool operator==(const link_identity&, const link_identity&) = default;
};

/// Bounds of one message. Memory grows with what has arrived, never with what is announced.
struct message_bounds {
  std::uint64_t head = std::uint64_t{64} << 20;
  std::uint32_t attachments = 1 << 16;
  std::uint64_t attachment = std::uint64_t{1} << 40;
};

/// The first bytes of a stream. The other end is lost when it is silent for `patience`, and is to
/// send heartbeats accordingly; 0: it is not lost.
std::vector<std::byte> link_greeting(const link_identity& who,
                                     std::chrono::nanoseconds patience = {});
/// A message without content, which the other end drops.
std::vector<std::byte> heartbeat();
/// The prefix of a message, before its head and attachments.
std::vector<std::byte> message_prefix(const packed_message& what);

/// Assembles messages. Large attachments are read directly into their final memory.
class message_assembler {
public:
  explicit message_assembler(link_identity expected, message_bounds bounds = {});

  /// The memory for the next bytes; never empty.
  std::span<std::byte> room();
  /// The caller has filled the first `size` bytes of room(). After it has thrown damaged_message,
  /// the assembler must not be used any more.
  void filled(std::size_t size);
  /// What the greeting said; 0 before it has arrived.
  std::chrono::nanoseconds patience() const { return patience_; }
  /// The next bytes are of an attachment: of a snapshot, or of tensors in a value.
  bool in_attachment() const { return now_ == part::attachment; }
  /// The next whole message.
  std::optional<packed_message> next();

private:
  enum class part : std::uint8_t { greeting, prefix, sizes, head, attachment };

  bool direct() const;
  void grow();
  void begin(part what, std::uint64_t size);
  void take(std::span<const std::byte> bytes);
  void finish_part();
  void finish_greeting();
  void finish_prefix();
  void finish_sizes();
  void go_on();

  link_identity expected_;
  std::chrono::nanoseconds patience_{0};
  message_bounds bounds_;
  part now_ = part::greeting;
  std::uint64_t wanted_ = 0;
  std::size_t have_ = 0;
  std::vector<std::byte> bytes_;  // of the part; the first have_ are valid
  std::vector<std::byte> staging_;
  std::uint64_t head_size_ = 0;
  std::vector<std::uint64_t> sizes_;
  packed_message building_;
  std::deque<packed_message> whole_;
};

}  // namespace troupe
