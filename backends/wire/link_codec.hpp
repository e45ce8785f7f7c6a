// Control messages as bytes. Large memory (tensors of a snapshot, values) is not copied: it follows
// the head as attachments.
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

/// One message ready to travel.
struct packed_message {
  std::vector<std::byte> head;
  std::vector<shared_bytes> attachments;
};

/// What no message of ours looks like. The link that brought it is lost.
class damaged_message : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `tensors` may be null where values hold none. Throws user_error (job_failed) when a value can
/// not travel. Exceptions stay behind: only their records cross, and for a user_error and an
/// internal_error what is needed to make them anew.
packed_message pack(const link_message& what, const tensor_bytes* tensors);
/// The message again. Every byte is checked: enumerations, counts, nesting, left-overs, unused
/// attachments. Throws damaged_message; costs no more memory than a small multiple of its input.
link_message unpack(std::span<const std::byte> head, std::span<const shared_bytes> attachments,
                    const tensor_bytes* tensors);

}  // namespace troupe
