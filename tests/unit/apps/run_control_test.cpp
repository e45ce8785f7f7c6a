// Goal: what is said of a fit and of the test after it stays within the bounds of a job_status. A
// request that can have no effect is refused.
#include "apps/troupe/run_control.hpp"
#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"

#include <fmt/format.h>
#include <boost/asio/system_executor.hpp>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::program;
using namespace troupe::testing;

namespace {

job_status status_with(const std::string& name, std::size_t metrics, std::size_t failures) {
  job_status status;
  for (std::size_t i = 0; i < metrics; ++i) status.last[fmt::format("{}/{}", name, i)] = 1;
  for (std::size_t i = 0; i < failures; ++i) {
    failure one;
    one.what = fmt::format("{} {}", name, i);
    status.newest_failures.push_back(one);
  }
  status.failures = failures;
  return status;
}

}  // namespace

TEST_CASE("the test after a fit: its status has the figures of both", "[run_control]") {
  auto fit = status_with("fit", 2, 1);
  fit.step = 40;
  fit.last["both"] = 1;
  auto test = status_with("test", 2, 1);
  test.last["both"] = 2;
  const auto all = together(fit, test);
  CHECK(all.step == 40);
  CHECK(all.failures == 2);
  CHECK(all.last.size() == 5);
  CHECK(all.last.at("both") == 2);
  REQUIRE(all.newest_failures.size() == 2);
  CHECK(all.newest_failures[0].what == "fit 0");
}

TEST_CASE("a fit and its test with many metrics and failures: the newest stay", "[run_control]") {
  const auto all = together(status_with("fit", 512, 16), status_with("test", 12, 3));
  CHECK(all.last.size() == 512);
  CHECK(all.last.contains("test/11"));
  CHECK(all.failures == 19);
  REQUIRE(all.newest_failures.size() == 16);
  CHECK(all.newest_failures.front().what == "fit 3");
  CHECK(all.newest_failures.back().what == "test 2");
}

TEST_CASE("a request to scale between a fit and its test is refused", "[run_control]") {
  session front{boost::asio::system_executor{}};
  job_handle held;
  integer_options on_threads;
  on_threads.can_wait = true;
  job fit;
  fit.options.ranks = 2;
  fit.options.batch_size = 2;
  fit.options.max_epochs = 1;
  fit.recipe = std::make_shared<integer_recipe>(on_threads);
  REQUIRE(front.run(with_handle(std::move(fit), held)).ok());
  request_rules rules;
  rules.options.placement = placement_kind::processes;
  rules.options.elastic.max_restarts = 1;
  live_status live{rules.options, 0};
  job_runner runner{local_ports(), [](int, int) {}};
  std::string noted;
  const auto answer = [&] {
    return answer_request(R"({"command":"scale","ranks":1})", runner, live, rules,
                          [&](const std::string& note) { noted = note; });
  };
  CHECK(answer() == R"({"ok":true})");  // before the fit is there
  CHECK(noted == "asked to go on with 1 rank");
  noted.clear();
  live.hold(held);
  CHECK_THAT(answer(), Catch::Contains("cannot go on with 1 rank: the fit has ended"));
  CHECK(noted.empty());
}
