// Goal: step times and stragglers of a run are measured, and costs follow their model: hosts and
// the wires between them, times with a spread, a slow host.
#include "apps/testing/straggler_report.hpp"
#include "apps/testing/case.hpp"
#include "apps/testing/lognormal.hpp"
#include "troupe/testing.hpp"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

collective_call reducing(std::uint64_t floats) {
  collective_call call;
  call.what = collective_kind::all_reduce;
  call.type = dtype::f32;
  call.count = floats;
  return call;
}

}  // namespace

TEST_CASE("the cost of a network of hosts has two levels", "[simulated][stragglers]") {
  const auto hosts = hosts_of(8, {2us, 400}, {8us, 45});
  const auto bytes = std::uint64_t{1} << 30;
  const auto both = hosts.of(reducing(bytes / 4), 64);
  const auto inside = network_cost{{2us, 1.0 / 400}}.of(reducing(bytes / 4), 8);
  const auto between = network_cost{{8us, 1.0 / 45}}.of(reducing(bytes / 4), 8);
  CHECK((both - inside - between) / 1ns == Approx(0).margin(1));
  // Computed by hand as rings: 2 (p - 1) alpha + 2 (p - 1) / p bytes beta.
  CHECK(between / 1ns == Approx(14 * 8e3 + 1.75 * static_cast<double>(bytes) / 45).margin(1));
  // Within one host nothing is sent between hosts; a host that is not full counts as one.
  CHECK(hosts.of(reducing(1024), 8) == network_cost{{2us, 1.0 / 400}}.of(reducing(1024), 8));
  CHECK(hosts.of(reducing(bytes / 4), 57) == both);
  // The pieces of all ranks of a host are sent between hosts.
  collective_call gather;
  gather.what = collective_kind::all_gather;
  gather.type = dtype::f32;
  gather.count = 1 << 20;
  const auto piece = static_cast<double>(4 << 20);
  CHECK(hosts.of(gather, 16) / 1ns ==
        Approx(7 * (2e3 + piece / 400) + 8e3 + 8 * piece / 45).margin(2));
}

TEST_CASE("drawn times have the given median and spread", "[simulated][stragglers]") {
  constexpr double spread = 0.03;
  const lognormal scattered{30};
  CHECK(scattered.of(210ms, 0) == 210ms);
  double sum = 0;
  double squares = 0;
  for (std::uint64_t level = 0; level < lognormal::levels; ++level) {
    const auto far = std::log(scattered.of(210ms, level) / 210.0ms);
    sum += far;
    squares += far * far;
    if (level > 1)
      CHECK(std::abs(far) > std::abs(std::log(scattered.of(210ms, level - 2) / 210.0ms)) - 2e-6);
  }
  const double n = lognormal::levels;
  CHECK(sum / n == Approx(0).margin(0.001));
  CHECK(std::sqrt(squares / n) == Approx(spread).epsilon(0.02));
  CHECK(scattered.most(210ms) > 210ms * 110 / 100);
  CHECK(lognormal{0}.of(210ms, 4095) == 210ms);
}

TEST_CASE("the slowest host is charged with the gap to the second slowest",
          "[simulated][stragglers]") {
  straggler_report p{2};
  using list = std::vector<arrival>;
  p.met(list{{0, 10ms}, {1, 10ms}, {2, 13ms}, {3, 12ms}, {4, 11ms}, {5, 9ms}});
  // rank 5 shares the wait
  p.met(list{{0, 10ms}, {1, 10ms}, {2, 13ms}, {3, 12ms}, {4, 11ms}, {5, 9ms}});
  p.met(list{{0, 20ms}, {1, 21ms}, {2, 20ms}, {3, 20ms}, {4, 20ms}, {5, 20ms}});
  p.met(list{{0, 30ms}, {1, 30ms}, {2, 30ms}, {3, 30ms}, {4, 30ms}, {5, 30ms}});
  p.met(list{{0, 40ms}, {1, 40ms}, {2, 41ms}, {3, 47ms}, {4, 45ms}, {5, 40ms}});
  p.met(list{{0, 50ms}, {1, 50ms}, {2, 51ms}, {3, 52ms}, {4, 45ms}, {5, 40ms}});
  const auto all = p.blame();
  REQUIRE(all.size() == 2);
  CHECK(all[0].host == 1);
  CHECK(all[0].rank == 3);
  CHECK(all[0].times == 3);
  CHECK(all[0].waited == 2ms + 2ms + 2ms);
  CHECK(all[1].host == 0);
  CHECK(all[1].waited == 1ms);
  CHECK(p.text().empty());  // no steps
  for (std::int64_t step = 1; step <= 5; ++step) {
    p.stepped(job_id{1}, 0, step, step * 10ms);
    p.stepped(job_id{1}, 1, step, step * 1000ms);
  }
  p.stepped(job_id{2}, 0, 3, 900ms);  // another attempt: the time in between is no step
  p.stepped(job_id{2}, 0, 4, 920ms);
  CHECK(p.steps() == 5);
  CHECK(p.step_time() == 12ms);
  CHECK(
      p.text() ==
      "5 steps of 12.000 ms each; host 1 (most often its rank 3) kept the others waiting 3 times, "
      "6.000 ms in total");
}

TEST_CASE("the report of a job names its slow rank", "[simulated][stragglers]") {
  const job_spec what{.ranks = 4, .steps = 12};
  run_plan plan;
  plan.simulation.schedule = GENERATE(scheduling::fifo, scheduling::random, scheduling::pct);
  plan.cluster.slow_hosts = {{2, 200}};
  const auto report = run(what, plan);
  INFO(render(report));
  CHECK(report.finished);
  CHECK(report.violations.empty());
  REQUIRE_FALSE(report.stragglers.blame().empty());
  CHECK(report.stragglers.blame().front().rank == 2);
  CHECK(report.stragglers.steps() == 11);
  CHECK_THAT(render(report), Catch::Contains("speed     11 steps of ") &&
                                 Catch::Contains("; rank 2 kept the others waiting"));
}

TEST_CASE("drawn times are choices and are kept in a case", "[simulated][stragglers]") {
  const job_spec what{.ranks = 3, .steps = 8};
  run_plan plan;
  plan.simulation.schedule = scheduling::fifo;
  plan.simulation.record = true;
  plan.cluster.compute_spread = 100;
  plan.cluster.slow_hosts = {{1, 150}};
  const auto first = run(what, plan, 3);
  const auto computes = [](const choice& c) { return c.where == site::compute; };
  CHECK(std::ranges::count_if(first.taken, computes) > 3 * 8 / 2);
  auto kept = case_of(first, {what, plan});
  kept.taken = first.taken;
  auto again = parse_case(to_text(kept), plan);
  again.what.plan.simulation.record = true;
  auto reference = reference_of(what);
  const auto second = replay(again, reference);
  CHECK(second.hashes == first.hashes);
  CHECK(second.virtual_time == first.virtual_time);
  CHECK(second.stragglers.text() == first.stragglers.text());
  again.what.plan.cluster.compute_spread = 0;
  CHECK(replay(again, reference).stragglers.text() != first.stragglers.text());
}
