#include "backends/collective/collective_call.hpp"

#include "backends/collective/canonical_reduction.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace troupe {

namespace {

[[noreturn]] void refuse(collective_kind what, std::string_view why) {
  throw std::invalid_argument(fmt::format("{}: {}", to_string(what), why));
}

// Kernels load whole elements; complex ones by component.
std::size_t alignment_of(dtype type) {
  return type == dtype::c64 ? 4 : std::min<std::size_t>(size_of(type), 8);
}

void check_memory(collective_kind what, std::string_view which, const buffer& memory) {
  if (memory.count == 0) return;
  if (!memory.data)
    refuse(what, fmt::format("{} has {} elements and no memory", which, memory.count));
  if (memory.count > std::numeric_limits<std::size_t>::max() / 2 / size_of(memory.type))
    refuse(what, fmt::format("{} has {} elements, more than memory can hold", which, memory.count));
  if (reinterpret_cast<std::uintptr_t>(memory.data) % alignment_of(memory.type) != 0)
    refuse(what,
           fmt::format("{} is not aligned to its elements ({})", which, to_string(memory.type)));
}

void check_reduction(collective_kind what, dtype type, reduction operation) {
  if (auto why = refusal(type, operation); !why.empty()) refuse(what, why);
}

// `whole` must be `members` pieces of `piece`; they may share memory only if the piece lies exactly
// where the member's own piece is.
void check_pieces(collective_kind what, const buffer& piece, const buffer& whole,
                  std::size_t members, std::size_t member) {
  const bool gathers = what == collective_kind::all_gather;
  const std::string_view piece_name = gathers ? "in" : "out";
  const std::string_view whole_name = gathers ? "out" : "in";
  check_memory(what, piece_name, piece);
  check_memory(what, whole_name, whole);
  if (piece.type != whole.type)
    refuse(what, fmt::format("in and out have different types ({} and {})",
                             to_string((gathers ? piece : whole).type),
                             to_string((gathers ? whole : piece).type)));
  if (whole.count % members != 0 || whole.count / members != piece.count)
    refuse(what, fmt::format("{} must have {} times the {} elements of {}, not {}", whole_name,
                             members, piece.count, piece_name, whole.count));
  if (piece.count == 0) return;
  const auto bytes = piece.count * size_of(piece.type);
  const auto begin = reinterpret_cast<std::uintptr_t>(piece.data);
  const auto whole_begin = reinterpret_cast<std::uintptr_t>(whole.data);
  const bool apart = begin + bytes <= whole_begin || whole_begin + members * bytes <= begin;
  if (!apart && begin != whole_begin + member * bytes)
    refuse(what, fmt::format("in and out overlap; {} may lie in {} only at this rank's own piece",
                             piece_name, whole_name));
}

}  // namespace

std::string describe(const collective_call& call) {
  const auto name = to_string(call.what);
  const auto type = to_string(call.type);
  switch (call.what) {
    case collective_kind::all_reduce:
      return fmt::format("{}({}, {}, {})", name, to_string(call.operation), type, call.count);
    case collective_kind::broadcast:
      return fmt::format("{}({}, {} from {})", name, type, call.count, call.root);
    case collective_kind::all_gather: return fmt::format("{}({}, {} each)", name, type, call.count);
    case collective_kind::reduce_scatter:
      return fmt::format("{}({}, {}, {} each)", name, to_string(call.operation), type, call.count);
    case collective_kind::barrier: return fmt::format("{} \"{}\"", name, call.label);
    case collective_kind::decide: return fmt::format("{}({})", name, call.all ? "all" : "any");
    case collective_kind::work_together:
      return fmt::format("{} \"{}\" ({} pieces)", name, call.label, call.count);
  }
  return std::string{name};
}

std::string rank_list(std::span<const std::int32_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string disagreement(std::uint64_t operation, std::span<const called> calls) {
  std::vector<std::pair<std::vector<std::int32_t>, const collective_call*>> entries;
  for (const auto& [rank, call] : calls) {
    auto same = std::find_if(entries.begin(), entries.end(),
                             [&](const auto& entry) { return *entry.second == call; });
    if (same == entries.end()) same = entries.insert(entries.end(), {{}, &call});
    same->first.push_back(rank);
  }
  std::vector<std::string> texts;
  for (const auto& [ranks, call] : entries)
    texts.push_back(fmt::format("{}: {}", rank_list(ranks), describe(*call)));
  return fmt::format("ranks disagree on collective {}: {}", operation, fmt::join(texts, ", "));
}

std::string missed(const collective_call& call, std::chrono::nanoseconds deadline,
                   std::span<const std::int32_t> missing) {
  return fmt::format("{}: waited {:g} s for {}", describe(call),
                     std::chrono::duration<double>(deadline).count(), rank_list(missing));
}

std::vector<std::int32_t> members_of(const subgroup& among, std::int32_t world, std::int32_t self) {
  std::vector<std::int32_t> members = among.ranks;
  if (members.empty())
    for (std::int32_t rank = 0; rank < world; ++rank) members.push_back(rank);
  const auto refuse_list = [&](std::string_view why) {
    throw std::invalid_argument(fmt::format("subgroup [{}]: {}", fmt::join(members, ", "), why));
  };
  if (std::adjacent_find(members.begin(), members.end(), std::greater_equal<>{}) != members.end())
    refuse_list("list its ranks in ascending order, each once");
  if (members.front() < 0 || members.back() >= world)
    refuse_list(fmt::format("ranks of this world are 0 to {}", world - 1));
  if (!std::binary_search(members.begin(), members.end(), self))
    refuse_list(fmt::format("rank {} is not in it and cannot take part", self));
  return members;
}

std::size_t place_among(std::span<const std::int32_t> members, std::int32_t rank) {
  return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), rank) -
                                  members.begin());
}

collective_call all_reduce_call(const buffer& data, reduction operation) {
  check_memory(collective_kind::all_reduce, "data", data);
  check_reduction(collective_kind::all_reduce, data.type, operation);
  return {.what = collective_kind::all_reduce,
          .type = data.type,
          .operation = operation,
          .count = data.count};
}

collective_call broadcast_call(const buffer& data, std::int32_t root,
                               std::span<const std::int32_t> members) {
  check_memory(collective_kind::broadcast, "data", data);
  if (!std::binary_search(members.begin(), members.end(), root))
    refuse(collective_kind::broadcast,
           fmt::format("root {} is not among {}", root, rank_list(members)));
  return {.what = collective_kind::broadcast, .type = data.type, .root = root, .count = data.count};
}

collective_call all_gather_call(const buffer& in, const buffer& out, std::size_t members,
                                std::size_t member) {
  check_pieces(collective_kind::all_gather, in, out, members, member);
  return {.what = collective_kind::all_gather, .type = in.type, .count = in.count};
}

collective_call reduce_scatter_call(const buffer& in, const buffer& out, reduction operation,
                                    std::size_t members, std::size_t member) {
  check_pieces(collective_kind::reduce_scatter, out, in, members, member);
  check_reduction(collective_kind::reduce_scatter, in.type, operation);
  return {.what = collective_kind::reduce_scatter,
          .type = in.type,
          .operation = operation,
          .count = out.count};
}

void check_on_host(const collective_call& call, const buffer& memory,
                   std::string_view communicator) {
  if (memory.device < 0) return;
  refuse(call.what, fmt::format("the memory is device {}'s, and {} carries memory of the host only",
                                memory.device, communicator));
}

void raise(const work_result& result) {
  if (result.status == work_status::timed_out) throw collective_timeout(result.text);
  if (result.status == work_status::mismatch) throw collective_mismatch(result.text);
  throw generation_closed(result.text);
}

namespace {

class ended_work final : public work {
public:
  explicit ended_work(work_result result) : result_(std::move(result)) {}
  work_result poll() override { return result_; }
  void wait() override {
    if (result_.status != work_status::ok) raise(result_);
  }

private:
  const work_result result_;
};

}  // namespace

work_ptr ended(work_result result) { return std::make_shared<ended_work>(std::move(result)); }

}  // namespace troupe
