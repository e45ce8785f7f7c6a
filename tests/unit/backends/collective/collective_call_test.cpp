// Goal: texts about collective calls read as the user wrote the calls, and impossible calls are
// found before they are submitted.
#include "backends/collective/collective_call.hpp"

#include "tests/support/catch.hpp"

namespace troupe::testing {
namespace {

using std::chrono::milliseconds;

const collective_call sum{.what = collective_kind::all_reduce, .type = dtype::f32, .count = 10};
const collective_call send{
    .what = collective_kind::broadcast, .type = dtype::f32, .root = 0, .count = 10};
const collective_call meet{.what = collective_kind::barrier, .label = "x"};

TEST_CASE("a collective call prints as the user wrote it") {
  CHECK(describe(sum) == "all_reduce(sum, float32, 10)");
  CHECK(describe(send) == "broadcast(float32, 10 from 0)");
  CHECK(describe(meet) == "barrier \"x\"");
  CHECK(describe({.what = collective_kind::all_gather, .type = dtype::i64, .count = 3}) ==
        "all_gather(int64, 3 each)");
  CHECK(describe({.what = collective_kind::reduce_scatter,
                  .type = dtype::f64,
                  .operation = reduction::mean,
                  .count = 3}) == "reduce_scatter(mean, float64, 3 each)");
  CHECK(describe({.what = collective_kind::decide, .all = false}) == "decide(any)");
  CHECK(describe({.what = collective_kind::work_together, .count = 3, .label = "x"}) ==
        "work_together \"x\" (3 pieces)");
}

TEST_CASE("a mismatch text groups the ranks that made the same call") {
  const std::vector<called> calls{{0, sum}, {1, send}, {2, sum}, {3, meet}};
  CHECK(disagreement(12, calls) ==
        "ranks disagree on collective 12: ranks 0, 2: all_reduce(sum, float32, 10), "
        "rank 1: broadcast(float32, 10 from 0), rank 3: barrier \"x\"");
}

TEST_CASE("a missed deadline names the missing ranks and the time waited") {
  CHECK(missed(meet, milliseconds{500}, std::vector<std::int32_t>{1, 3}) ==
        "barrier \"x\": waited 0.5 s for ranks 1, 3");
  CHECK(missed(sum, milliseconds{90000}, std::vector<std::int32_t>{2}) ==
        "all_reduce(sum, float32, 10): waited 90 s for rank 2");
}

TEST_CASE("members_of returns the ranks of a subgroup and refuses an invalid one") {
  CHECK(members_of({}, 3, 1) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(members_of({{0, 2}}, 3, 2) == std::vector<std::int32_t>{0, 2});
  CHECK_THROWS_WITH(members_of({{0, 2}}, 3, 1),
                    "subgroup [0, 2]: rank 1 is not in it and cannot take part");
  CHECK_THROWS_WITH(members_of({{2, 0}}, 3, 2),
                    "subgroup [2, 0]: list its ranks in ascending order, each once");
  CHECK_THROWS_WITH(members_of({{0, 3}}, 3, 0), "subgroup [0, 3]: ranks of this world are 0 to 2");
  CHECK_THROWS_AS(members_of({{-1, 0}}, 3, 0), std::invalid_argument);
}

TEST_CASE("pieces may touch without overlapping or lie at the rank's own place") {
  std::vector<float> memory(12);
  const auto part = [&](std::size_t at, std::size_t count) {
    return buffer{memory.data() + at, count, dtype::f32};
  };
  CHECK(all_gather_call(part(0, 4), part(4, 8), 2, 0).count == 4);
  CHECK(all_gather_call(part(8, 4), part(0, 8), 2, 0).count == 4);
  CHECK(all_gather_call(part(4, 4), part(0, 8), 2, 1).count == 4);
  CHECK_THROWS_AS(all_gather_call(part(4, 4), part(0, 8), 2, 0), std::invalid_argument);
  CHECK_THROWS_AS(all_gather_call(part(7, 4), part(0, 8), 2, 0), std::invalid_argument);
  CHECK(reduce_scatter_call(part(0, 8), part(4, 4), reduction::sum, 2, 1).count == 4);
  CHECK_THROWS_AS(reduce_scatter_call(part(0, 8), part(6, 4), reduction::sum, 2, 1),
                  std::invalid_argument);
  CHECK_THROWS_AS(reduce_scatter_call(part(0, 7), part(8, 4), reduction::sum, 2, 1),
                  std::invalid_argument);
}

}  // namespace
}  // namespace troupe::testing
