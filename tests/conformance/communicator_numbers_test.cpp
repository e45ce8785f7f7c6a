// Goal: each operation computes the documented result for every dtype, reduction and size.
#include "backends/collective/canonical_reduction.hpp"
#include "tests/conformance/communicator_suite.hpp"
#include "tests/support/reference_reduction.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

std::vector<bytes> leaves_of(dtype type, std::size_t count, std::int32_t world) {
  std::vector<bytes> leaves;
  for (std::int32_t rank = 0; rank < world; ++rank)
    leaves.push_back(odd_values(type, count, rank, count));
  return leaves;
}

std::span<const std::byte> piece(const bytes& of, std::size_t index, std::size_t pieces) {
  const auto length = of.size() / pieces;
  return std::span{of}.subspan(index * length, length);
}

TEST_CASE("all_reduce gives every rank the bits of the canonical tree") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    for (const auto type : all_dtypes)
      for (const auto operation : all_reductions) {
        if (!refusal(type, operation).empty()) continue;
        CAPTURE(to_string(type), to_string(operation));
        const std::size_t count = 1037;
        const auto leaves = leaves_of(type, count, world);
        auto memory = leaves;
        ranks.run([&](communicator& c) {
          c.all_reduce(whole(memory[c.group().rank], type), operation)->wait();
        });
        const auto expected = reference_reduction(type, operation, leaves);
        for (const auto& result : memory) CHECK(same(result, expected));
      }
  });
}

TEST_CASE("all_reduce is correct at sizes zero and one and around cache lines and slices") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    for (const std::size_t count :
         {0,    1,    2,    3,    5,    15,   16,   17,   63,    64,    65,
          1023, 1024, 1025, 4095, 4097, 8191, 8192, 8193, 16385, 300001}) {
      CAPTURE(count);
      const auto leaves = leaves_of(dtype::f32, count, world);
      auto memory = leaves;
      ranks.run([&](communicator& c) {
        c.all_reduce(whole(memory[c.group().rank], dtype::f32), reduction::sum)->wait();
      });
      const auto expected = reference_reduction(dtype::f32, reduction::sum, leaves);
      for (const auto& result : memory) REQUIRE(same(result, expected));
    }
  });
}

TEST_CASE("broadcast copies the root's bytes to every rank") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    for (std::int32_t root = 0; root < world; ++root)
      for (const std::size_t count : {0, 1, 77, 40000}) {
        CAPTURE(root, count);
        auto memory = leaves_of(dtype::bf16, count, world);
        const auto expected = memory[root];
        ranks.run([&](communicator& c) {
          c.broadcast(whole(memory[c.group().rank], dtype::bf16), root)->wait();
        });
        for (const auto& result : memory) REQUIRE(same(result, expected));
      }
  });
}

TEST_CASE("all_gather concatenates the pieces in rank order") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    for (const bool in_place : {false, true})
      for (const std::size_t count : {0, 1, 77, 40000}) {
        CAPTURE(in_place, count);
        const auto type = dtype::i64;
        auto pieces = leaves_of(type, count, world);
        bytes expected;
        for (const auto& p : pieces) expected.insert(expected.end(), p.begin(), p.end());
        std::vector<bytes> out(world, bytes(expected.size()));
        ranks.run([&](communicator& c) {
          const auto rank = c.group().rank;
          auto in = whole(pieces[rank], type);
          if (in_place) {
            in.data = out[rank].data() + static_cast<std::size_t>(rank) * pieces[rank].size();
            std::copy(pieces[rank].begin(), pieces[rank].end(), static_cast<std::byte*>(in.data));
          }
          c.all_gather(in, whole(out[rank], type))->wait();
        });
        for (const auto& result : out) REQUIRE(same(result, expected));
      }
  });
}

TEST_CASE("reduce_scatter gives each rank its piece and writes nothing else") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    for (const bool in_place : {false, true})
      for (const std::size_t count : {0, 1, 77, 40000}) {
        CAPTURE(in_place, count);
        const auto type = dtype::f32;
        const auto leaves = leaves_of(type, count * world, world);
        auto in = leaves;
        std::vector<bytes> out(world, bytes(count * size_of(type)));
        ranks.run([&](communicator& c) {
          const auto rank = c.group().rank;
          auto to = whole(out[rank], type);
          if (in_place) to.data = in[rank].data() + rank * out[rank].size();
          c.reduce_scatter(whole(in[rank], type), to, reduction::mean)->wait();
        });
        const auto reduced = reference_reduction(type, reduction::mean, leaves);
        for (std::int32_t rank = 0; rank < world; ++rank) {
          const auto expected = piece(reduced, rank, world);
          for (std::int32_t p = 0; p < world; ++p) {
            const bool mine = in_place && p == rank;
            REQUIRE(
                same(piece(in[rank], p, world), mine ? expected : piece(leaves[rank], p, world)));
          }
          if (!in_place) REQUIRE(same(out[rank], expected));
        }
      }
  });
}

TEST_CASE("decide computes AND or OR over the votes of all ranks") {
  for_each_world([](communicator_backend& backend, std::int32_t world) {
    company ranks{backend, world};
    const int masks = 1 << world;
    std::vector<std::vector<bool>> all(world);
    std::vector<std::vector<bool>> any(world);
    ranks.run([&](communicator& c) {
      for (int mask = 0; mask < masks; ++mask) {
        const bool yes = (mask >> c.group().rank & 1) != 0;
        all[c.group().rank].push_back(c.decide(yes, decision::all));
        any[c.group().rank].push_back(c.decide(yes, decision::any));
      }
    });
    for (std::int32_t rank = 0; rank < world; ++rank)
      for (int mask = 0; mask < masks; ++mask) {
        REQUIRE(all[rank][mask] == (mask == masks - 1));
        REQUIRE(any[rank][mask] == (mask != 0));
      }
  });
}

}  // namespace
}  // namespace troupe::testing
