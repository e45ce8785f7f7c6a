// Goal: every communicator adapter lets the ranks that are left form the next generation with a new
// rank in the place of one that ended, while the old generation is not closed yet.
#include "tests/conformance/communicator_suite.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

constexpr std::size_t count = std::size_t{1} << (sanitized ? 15 : 18);

void check_sums(company& ranks) {
  const auto world = ranks.size();
  auto memory = ones(world, count);
  ranks.run([&](communicator& c) {
    c.all_reduce(floats(memory[c.group().rank]), reduction::sum)->wait();
  });
  for (const auto& result : memory)
    CHECK(std::count(result.begin(), result.end(), static_cast<float>(world)) ==
          static_cast<std::ptrdiff_t>(count));
}

// Reduces on all ranks until `victim` closes its handle, as the destruction of a rank does.
void lose(company& ranks, std::int32_t victim) {
  auto memory = ones(ranks.size(), count);
  const auto thrown = ranks.attempt([&](communicator& c) {
    const auto rank = c.group().rank;
    for (int i = 0; rank != victim || i < 2; ++i)
      c.all_reduce(floats(memory[rank]), reduction::max)->wait();
    ranks.close(victim);
  });
  for (std::int32_t rank = 0; rank < ranks.size(); ++rank)
    if (rank != victim)
      CHECK_THAT(text_of<generation_closed>(thrown[rank]),
                 Catch::Contains("rank " + std::to_string(victim)));
}

TEST_CASE("a rank is lost and replaced three times: each next generation has the right sums") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    auto ranks = std::make_unique<company>(backend, world, 1);
    for (std::uint64_t generation = 1; generation <= 3; ++generation) {
      check_sums(*ranks);
      lose(*ranks, static_cast<std::int32_t>(generation) % world);
      auto next = std::make_unique<company>(backend, world, generation + 1);
      check_sums(*next);
      ranks = std::move(next);  // the old generation is closed while the new one is at work
    }
    check_sums(*ranks);
  });
}

TEST_CASE("a rank that replaces another is lost before its first operation: the others notice") {
  for_each_world_from(2, [](communicator_backend& backend, std::int32_t world) {
    const auto victim = world - 1;
    company old{backend, world, 1};
    lose(old, victim);
    company forming{backend, world, 2};
    const auto thrown = forming.attempt([&](communicator& c) {
      if (c.group().rank != victim) return c.barrier("prepared")->wait();
      forming.close(victim);
    });
    for (std::int32_t rank = 0; rank < victim; ++rank)
      CHECK_THAT(text_of<generation_closed>(thrown[rank]),
                 Catch::Contains("rank " + std::to_string(victim)));
    company young{backend, world, 3};
    check_sums(young);
  });
}

}  // namespace
}  // namespace troupe::testing
