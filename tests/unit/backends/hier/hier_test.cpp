// Goal: with ranks on hosts of any shape, a host reduces only whole subtrees by itself, and the
// result has the same bits for every layout.
#include "backends/hier/hier.hpp"

#include "backends/collective/canonical_reduction.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/tcp/tcp.hpp"
#include "tests/support/reference_reduction.hpp"

#include <thread>

#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using hosts = std::vector<std::int32_t>;

TEST_CASE("a block is the largest power of two of ranks that never spans two hosts") {
  CHECK(block_of({1}, 1) == 1);
  CHECK(block_of({2}, 2) == 2);
  CHECK(block_of({1, 1}, 2) == 1);
  CHECK(block_of({2, 2}, 4) == 2);
  CHECK(block_of({4, 3}, 7) == 4);
  CHECK(block_of({1, 3}, 4) == 1);
  CHECK(block_of({7}, 7) == 8);
  CHECK(block_of({4, 4, 2}, 10) == 4);
  CHECK(block_of({4, 2, 2}, 8) == 2);
  CHECK(block_of({8, 4, 4, 16}, 32) == 4);
  CHECK(block_of({2, 2, 3}, 7) == 2);
  CHECK_THROWS_AS(block_of({2, 2}, 5), std::invalid_argument);
}

TEST_CASE("the bits of all_reduce do not depend on the layout of hosts") {
  using testing::bytes;
  const auto layout =
      GENERATE(hosts{2, 2}, hosts{4, 3}, hosts{1, 3}, hosts{3, 1}, hosts{2, 2, 3}, hosts{2, 1});
  std::int32_t world = 0;
  for (const auto ranks : layout) world += ranks;
  const auto book = std::make_shared<tcp_address_book>();
  std::vector<std::shared_ptr<communicator>> ranks;
  for (const auto on_host : layout) {
    hier_backend host{{.local = std::make_shared<inproc_backend>(),
                       .remote = std::make_shared<tcp_backend>(tcp_options{.rendezvous = book}),
                       .hosts = [layout](const auto&) { return layout; },
                       .local_from = 1000}};
    for (std::int32_t i = 0; i < on_host; ++i)
      ranks.push_back(host.open({.rank = static_cast<std::int32_t>(ranks.size()), .world = world}));
  }
  for (const auto type : testing::all_dtypes)
    for (const auto operation : testing::all_reductions)
      for (const std::size_t count : {3, 1037}) {
        if (!refusal(type, operation).empty()) continue;
        CAPTURE(to_string(type), to_string(operation), count);
        std::vector<bytes> leaves;
        for (std::int32_t rank = 0; rank < world; ++rank)
          leaves.push_back(testing::odd_values(type, count, rank, count));
        auto memory = leaves;
        std::vector<work_ptr> works;
        for (std::size_t rank = 0; rank < ranks.size(); ++rank)
          works.push_back(ranks[rank]->all_reduce({memory[rank].data(), count, type}, operation));
        for (const auto& work : works) work->wait();
        const auto expected = testing::reference_reduction(type, operation, leaves);
        for (const auto& result : memory) REQUIRE(result == expected);
      }
}

}  // namespace
}  // namespace troupe
