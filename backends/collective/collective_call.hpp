// What a rank asked of its communicator: checked before it is submitted, compared with what the
// others asked, put into words. Shared by all adapters, so that users read the same texts.
#pragma once

#include "troupe/communicator.hpp"
#include "troupe/observer.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The fingerprint of one operation. What an operation has no use for keeps its default.
struct collective_call {
  collective_kind what = collective_kind::barrier;
  dtype type = dtype::u8;
  reduction operation = reduction::sum;
  bool all = true;          ///< decide only: all must say yes, else any
  std::int32_t root = -1;   ///< broadcast only
  std::uint64_t count = 0;  ///< elements; of one piece in all_gather and reduce_scatter;
                            ///< the pieces of work_together
  std::string label;        ///< barrier and work_together only

  friend bool operator==(const collective_call&, const collective_call&) = default;
};

/// `all_reduce(sum, float32, 10)`, `broadcast(float32, 10 from 0)`, `all_gather(float32, 10 each)`,
/// `barrier "x"`, `decide(all)`, `work_together "x" (10 pieces)`.
std::string describe(const collective_call& call);

/// One rank's call in a text about several.
struct called {
  std::int32_t rank = 0;
  collective_call call;
};
/// `rank 0: all_reduce(sum, float32, 10), rank 1: broadcast(float32, 10 from 0)`; equal calls
/// share an entry (`ranks 0, 2: ...`). `operation` counts those of the group before it.
std::string disagreement(std::uint64_t operation, std::span<const called> calls);
/// `barrier "x": waited 0.5 s for ranks 1, 3`.
std::string missed(const collective_call& call, std::chrono::nanoseconds deadline,
                   std::span<const std::int32_t> missing);
/// `rank 2` or `ranks 1, 3`.
std::string rank_list(std::span<const std::int32_t> ranks);

/// The members of `among` in a world of `world` ranks: its ranks, or all ranks if it is empty.
/// Throws std::invalid_argument unless they are ascending, each once, within the world, and include
/// `self`.
std::vector<std::int32_t> members_of(const subgroup& among, std::int32_t world, std::int32_t self);
/// The place of `rank` among ascending members that include it.
std::size_t place_among(std::span<const std::int32_t> members, std::int32_t rank);

/// Each checks one submission and returns its fingerprint; throws std::invalid_argument that names
/// what is wrong: no memory or misaligned, no such reduction for the dtype, counts that do not fit,
/// `root` that is no member, `in` and `out` that overlap in another way than the port allows.
/// `member` is this rank's place among the members.
collective_call all_reduce_call(const buffer& data, reduction operation);
collective_call broadcast_call(const buffer& data, std::int32_t root,
                               std::span<const std::int32_t> members);
collective_call all_gather_call(const buffer& in, const buffer& out, std::size_t members,
                                std::size_t member);
collective_call reduce_scatter_call(const buffer& in, const buffer& out, reduction operation,
                                    std::size_t members, std::size_t member);

/// Throws std::invalid_argument if `memory` is a device's, which `communicator` does not carry.
void check_on_host(const collective_call& call, const buffer& memory,
                   std::string_view communicator);

/// For `work::wait`: throws what the port says for an end that is not ok.
[[noreturn]] void raise(const work_result& result);
/// A work that has ended with `result`.
work_ptr ended(work_result result);

}  // namespace troupe
