#include "backends/collective/group_end.hpp"

#include "backends/collective/submission.hpp"

#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace troupe::collectives {
namespace {

collective_call named(std::string label) {
  collective_call call;
  call.label = std::move(label);
  return call;
}

TEST_CASE("an operation ends once: of several threads one decides how", "[collective]") {
  for (int round = 0; round < 200; ++round) {
    outcome how;
    std::atomic<int> ended{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&, i] {
        if (how.end({work_status::aborted, std::to_string(i), {i}})) ++ended;
      });
    for (auto& one : threads) one.join();
    REQUIRE(ended == 1);
    const auto result = how.result();
    REQUIRE(result.status == work_status::aborted);
    REQUIRE(result.missing == std::vector<std::int32_t>{std::stoi(result.text)});
  }
}

TEST_CASE("an operation that has not ended has no result yet", "[collective]") {
  outcome how;
  CHECK(how.pending());
  CHECK(how.result().status == work_status::pending);
  CHECK(how.end({work_status::ok, {}, {}}));
  CHECK_FALSE(how.end({work_status::aborted, "later", {}}));
  CHECK(how.result().status == work_status::ok);
}

TEST_CASE("a group keeps the first reason of its abort", "[collective]") {
  group_end end;
  CHECK_FALSE(end.aborted());
  CHECK(end.why().empty());
  CHECK(end.abort("first"));
  CHECK(end.flag().load());
  CHECK_FALSE(end.abort(late(0, 7, named("x"), std::chrono::seconds{1}, {2})));
  CHECK(end.why() == "first");
  CHECK(end.result_of(0, 7, 1).status == work_status::aborted);
}

TEST_CASE("a mismatch ends its operation for every rank, other operations are aborted",
          "[collective]") {
  const std::vector<called> calls{{0, named("x")}, {1, named("y")}};
  group_end end;
  REQUIRE(end.abort(disagreed(3, 5, calls)));
  const auto text = R"(ranks disagree on collective 5: rank 0: barrier "x", rank 1: barrier "y")";
  for (const bool arrived : {true, false}) {
    const auto result = end.result_of(3, 5, 0, arrived);
    CHECK(result.status == work_status::mismatch);
    CHECK(result.text == text);
  }
  CHECK(end.result_of(3, 6, 0).status == work_status::aborted);
  CHECK(end.result_of(2, 5, 0).status == work_status::aborted);
  CHECK(end.result_of(2, 5, 0).text == text);
}

TEST_CASE("a time-out ends its operation for the ranks that waited, not for the missing ones",
          "[collective]") {
  const auto reason = late(3, 5, named("x"), std::chrono::milliseconds{500}, {1, 3});
  const auto waited = reason.result_of(3, 5, 0);
  CHECK(waited.status == work_status::timed_out);
  CHECK(waited.missing == std::vector<std::int32_t>{1, 3});
  CHECK(waited.text == R"(barrier "x": waited 0.5 s for ranks 1, 3)");
  for (const std::int32_t missing : {1, 3}) {
    const auto result = reason.result_of(3, 5, missing);
    CHECK(result.status == work_status::aborted);
    CHECK(result.missing.empty());
  }
  CHECK(reason.result_of(3, 5, 2, false).status == work_status::aborted);
  CHECK(reason.result_of(3, 4, 0).status == work_status::aborted);
}

TEST_CASE("4095 operations in flight leave room for one more, 4096 do not", "[collective]") {
  CHECK_NOTHROW(check_in_flight(named("x"), operations_max - 1));
  CHECK_THROWS_MATCHES(check_in_flight(named("x"), operations_max), user_error,
                       Catch::Message("barrier \"x\": 4096 operations in flight already, the most "
                                      "there may be: wait for some of them first; if they are "
                                      "buckets of gradients, raise bucket_cap_mb"));
}

TEST_CASE("a rank outside of its world is refused with the generation's name", "[collective]") {
  group_description who;
  who.generation = generation_id{3};
  for (const std::int32_t rank : {-1, 2}) {
    who.rank = rank;
    who.world = 2;
    CHECK_THROWS_AS(check_rank(who), std::invalid_argument);
    CHECK_THROWS_WITH(check_rank(who),
                      Catch::Contains("generation 3 of job") && Catch::Contains("in a world of 2"));
  }
  who.rank = 1;
  CHECK_NOTHROW(check_rank(who));
  who.world = 0;
  CHECK_THROWS_AS(check_rank(who), std::invalid_argument);
}

}  // namespace
}  // namespace troupe::collectives
