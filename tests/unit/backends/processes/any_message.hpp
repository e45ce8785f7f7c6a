// Control messages drawn from a seed: every alternative, with every kind of field filled.
#pragma once

#include "backends/processes/message_assembler.hpp"
#include "messages/link.hpp"

#include <random>

namespace troupe::testing {

/// The alternative `index % count`, its fields drawn from `seed`.
link_message any_message(std::uint64_t seed, std::size_t index);
inline constexpr std::size_t message_kinds = std::variant_size_v<link_message>;

/// A snapshot with tensors of `bytes` bytes in all.
snapshot_ptr any_snapshot(std::mt19937_64& draw, std::size_t bytes);

/// Whose link it is, where that is not what is tested.
inline const link_identity us{job_id{7}, incarnation_id{9}};

}  // namespace troupe::testing
