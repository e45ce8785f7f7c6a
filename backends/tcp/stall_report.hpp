// Finds the ranks that hold an operation up, as opposed to ranks that wait for others themselves.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace troupe::tcp {

/// By rank: the ranks for which it waits, by its own answer. A rank whose lane has not called names
/// itself. No entry: the rank has not answered.
using waits_of = std::map<std::int32_t, std::vector<std::int32_t>>;

/// The ranks at the ends of all chains of waiting that begin at `me` with `first`: silent, or
/// waiting for themselves. Ascending; empty if everyone waits for someone else (bytes are on their
/// way).
std::vector<std::int32_t> holding_up(std::int32_t me, std::span<const std::int32_t> first,
                                     const waits_of& answers);

}  // namespace troupe::tcp
