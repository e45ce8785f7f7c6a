// Goal: with the slot protocol of shared memory no rank reads a slot that is being written or holds
// other data than expected, in every interleaving of two and three ranks.
// Method: exhaustive search over the schedule that channel.cpp executes.
#include "backends/shm/schedule.hpp"
#include "tests/unit/backends/shm/search.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe::shm {
namespace {

constexpr std::size_t ranks_max = 3;
constexpr std::size_t sets_max = 3;

// A part of a slot: slice `region` of the data of member `owner` in slot set `set`.
struct access {
  std::size_t set;
  std::size_t owner;
  std::size_t region;
  std::uint8_t mark;  // the content written or expected: which chunk, and whether it is reduced
};

struct job {
  std::vector<access> reads;
  std::vector<access> writes;
};

// The actions of a rank, in order.
struct move {
  enum kind : std::uint8_t { meet, begin, end, publish } what = meet;
  std::uint64_t step = 0;
  job work;
};
using program = std::vector<move>;

struct setting {
  std::size_t ranks = 2;
  std::size_t sets = slot_sets;
  std::vector<schedule> operations;
  bool copies_own = false;  // the simpler way: a rank also copies its own slice into its slot
};

std::uint8_t mark_of(std::uint64_t filled_at, bool reduced) {
  return static_cast<std::uint8_t>(1 + 2 * filled_at + (reduced ? 1 : 0));
}

// How channel.cpp carries out a stage. With `slices` a rank does not copy its own slice into its
// slot.
void add_stage(program& to, const setting& in, std::size_t self, const schedule& how,
               std::uint64_t base, const stage& what) {
  const bool sliced = how.how == form::slices;
  const auto each = [&](std::uint64_t chunk, auto&& body) {
    const auto filled = base + how.filled_at(chunk);
    for (std::size_t m = 0; m < in.ranks; ++m) body(m, filled % in.sets, filled);
  };
  const auto add = [&](job work) {
    to.push_back({move::begin, 0, work});
    to.push_back({move::end, 0, std::move(work)});
  };
  if (what.fill) {
    job work;
    each(*what.fill, [&](std::size_t m, std::size_t set, std::uint64_t filled) {
      if (!sliced || m != self || in.copies_own)
        work.writes.push_back({set, self, m, mark_of(filled, false)});
    });
    add(std::move(work));
  }
  if (what.reduce) {
    job work;
    each(*what.reduce, [&](std::size_t m, std::size_t set, std::uint64_t filled) {
      if (m != self)
        work.reads.push_back({set, m, self, mark_of(filled, false)});
      else
        work.writes.push_back({set, self, self, mark_of(filled, true)});
    });
    add(std::move(work));
  }
  if (what.drain) {
    job work;
    each(*what.drain, [&](std::size_t m, std::size_t set, std::uint64_t filled) {
      if (sliced && m != self) work.reads.push_back({set, m, m, mark_of(filled, true)});
      for (std::size_t region = 0; !sliced && region < in.ranks; ++region)
        work.reads.push_back({set, m, region, mark_of(filled, false)});
    });
    add(std::move(work));
  }
}

program program_of(const setting& in, std::size_t self) {
  program result;
  std::uint64_t base = 0;
  for (const auto& how : in.operations) {
    for (std::uint64_t step = 0; step <= how.steps(); ++step) {
      result.push_back({move::meet, base + step, {}});
      add_stage(result, in, self, how, base, how.at(step));
      if (step != how.steps()) result.push_back({move::publish, base + step + 1, {}});
    }
    base += how.steps();
  }
  return result;
}

struct world {
  static inline std::vector<program> programs;

  std::array<std::uint16_t, ranks_max> at{};
  std::array<std::uint64_t, ranks_max> published{};
  std::array<std::array<std::array<std::uint8_t, ranks_max>, ranks_max>, sets_max> memory{};
  std::string wrong;

  friend auto operator<=>(const world&, const world&) = default;

  const move* next_of(std::size_t rank) const {
    return at[rank] < programs[rank].size() ? &programs[rank][at[rank]] : nullptr;
  }

  std::vector<world> successors() const {
    std::vector<world> result;
    for (std::size_t rank = 0; wrong.empty() && rank < programs.size(); ++rank) {
      const auto* next = next_of(rank);
      if (!next) continue;
      bool may = true;
      for (std::size_t other = 0; next->what == move::meet && other < programs.size(); ++other)
        may = may && published[other] >= next->step;
      if (!may) continue;
      auto after = *this;
      ++after.at[rank];
      after.apply(*next, rank);
      result.push_back(std::move(after));
    }
    return result;
  }

  // True if another rank is in the middle of a job that uses this part.
  bool used(const access& part, std::size_t by, bool also_reads) const {
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      const auto* next = next_of(rank);
      if (rank == by || !next || next->what != move::end) continue;
      const auto here = [&](const access& other) {
        return other.set == part.set && other.owner == part.owner && other.region == part.region;
      };
      for (const auto& other : next->work.writes)
        if (here(other)) return true;
      for (const auto& other : next->work.reads)
        if (also_reads && here(other)) return true;
    }
    return false;
  }

  void apply(const move& what, std::size_t rank) {
    if (what.what == move::publish) published[rank] = what.step;
    for (const auto& part : what.work.reads) {
      if (memory[part.set][part.owner][part.region] != part.mark) wrong = "another chunk is read";
      if (used(part, rank, false)) wrong = "a chunk is read while it is written";
    }
    for (const auto& part : what.work.writes) {
      if (used(part, rank, true)) wrong = "a chunk is overwritten while it is used";
      // From the start of the write the old chunk is gone; at its end the new chunk is there.
      memory[part.set][part.owner][part.region] = what.what == move::end ? part.mark : 0;
    }
  }

  std::string violation(bool last) const {
    if (!wrong.empty() || !last) return wrong;
    for (std::size_t rank = 0; rank < programs.size(); ++rank)
      if (next_of(rank)) return "ranks wait for each other";
    return {};
  }
};

testing::search_result check(const setting& in) {
  world::programs.clear();
  for (std::size_t rank = 0; rank < in.ranks; ++rank)
    world::programs.push_back(program_of(in, rank));
  return testing::search(world{});
}

const std::vector<std::vector<schedule>> operation_lists = {
    {{form::slices, 4}},
    {{form::direct, 4}},
    {{form::together}, {form::together}, {form::together}, {form::together}},
    {{form::slices, 1}, {form::together}, {form::slices, 2}, {form::direct, 1}},
    {{form::direct, 2}, {form::in_place}, {form::together}, {form::slices, 1}},
    {{form::slices, 2}, {form::slices, 2}, {form::together}, {form::together}},
};

TEST_CASE("three slot sets are enough in every interleaving of two and three ranks") {
  for (const std::size_t ranks : {2, 3})
    for (const auto& operations : operation_lists) {
      const auto found = check({ranks, slot_sets, operations});
      CAPTURE(ranks, operations.front().chunks, found.states);
      CHECK(found.violation.empty());
      CHECK(found.endings == 1);
      CHECK(found.states > 100);
    }
}

TEST_CASE("two slot sets are too few and the search detects it") {
  for (const std::size_t ranks : {2, 3}) {
    // A fast rank copies chunk k + 2 in while a slow rank copies chunk k out.
    CHECK(check({ranks, 2, {{form::slices, 3}}, true}).violation ==
          "a chunk is overwritten while it is used");
    CHECK(check({ranks, 3, {{form::slices, 3}}, true}).violation.empty());
    // Without copying its own slice two sets suffice, but only until the next operation.
    CHECK(check({ranks, 2, {{form::slices, 3}}}).violation.empty());
    CHECK_THAT(check({ranks, 2, {{form::slices, 1}, {form::together}}}).violation,
               Catch::Contains("while it is"));
    // The small form alone needs only two sets.
    CHECK(check({ranks, 2, {{form::together}, {form::together}, {form::together}}})
              .violation.empty());
    CHECK_FALSE(check({ranks, 1, {{form::together}, {form::together}}}).violation.empty());
  }
}

}  // namespace
}  // namespace troupe::shm
