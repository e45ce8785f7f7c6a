// Control messages as bytes. Large memory (tensors of a snapshot, values) is not copied; it is sent
// as attachments after the head.
#pragma once

#include "messages/link.hpp"
#include "troupe/detail/value_bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

namespace troupe {

using shared_bytes = std::shared_ptr<const std::vector<std::byte>>;

/// One encoded message.
struct packed_message {
  std::vector<std::byte> head;
  std::vector<shared_bytes> attachments;
};

/// The bytes are no message of this protocol. The link that received them is lost.
class damaged_message : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Encodes a message. `tensors` may be null if values hold no tensors. Throws user_error
/// (job_failed) when a value cannot be encoded. Of an exception only the record is sent, and of a
/// user_error and an internal_error what is needed to construct it again.
packed_message pack(const link_message& what, const tensor_bytes* tensors);
/// Decodes a message and checks every byte: enumerations, counts, nesting, bytes and attachments
/// that are left over. Throws damaged_message. Needs at most a small multiple of its input as
/// memory.
link_message unpack(std::span<const std::byte> head, std::span<const shared_bytes> attachments,
                    const tensor_bytes* tensors);

}  // namespace troupe
