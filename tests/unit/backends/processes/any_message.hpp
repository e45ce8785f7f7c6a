// Control messages drawn from a seed: every alternative of the variant, with every field filled.
#pragma once

#include "backends/processes/message_assembler.hpp"
#include "messages/link.hpp"

#include <random>

namespace troupe::testing {

/// The alternative `index % count`, with fields drawn from `seed`.
link_message any_message(std::uint64_t seed, std::size_t index);
inline constexpr std::size_t message_kinds = std::variant_size_v<link_message>;

/// A snapshot with tensors of about `bytes` bytes.
snapshot_ptr any_snapshot(std::mt19937_64& draw, std::size_t bytes);

/// The identity of a link in tests that do not test identities.
inline const link_identity us{job_id{7}, incarnation_id{9}};

}  // namespace troupe::testing
