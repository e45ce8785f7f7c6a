// Goal: ten thousand ranks on hosts of eight, with costs: a slow host costs what the model says and
// is named. Not under sanitizers: it takes seconds without them.
#include "troupe/testing.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

TEST_CASE("a slow host among ten thousand ranks costs what the model says", "[simulated][scale]") {
  const auto job = null_payload_job(10'000, 30);
  auto plan = null_payload_plan(job, 1'400'000'000);
  plan.cluster.ranks_per_host = 8;
  plan.cluster.network = hosts_of(8, {2us, 400}, {8us, 45});
  plan.cluster.compute = 210ms;
  plan.cluster.compute_spread = 30;
  const auto healthy = run(job, plan);
  plan.cluster.slow_hosts = {{17, 130}};
  const auto slow = run(job, plan);
  for (const auto* r : {&healthy, &slow}) {
    INFO(render(*r));
    CHECK(r->finished);
    CHECK(r->violations.empty());
    CHECK(r->stragglers.steps() == 29);
  }
  // The largest of 10,000 draws lies about 3.6 standard deviations (of 3 %) above the median, the
  // largest of eight about 1.4, times 1.3 for the slow host. Other hooks take microseconds.
  const auto reduced = plan.payload->of(job)->exchange_of_step(plan.cluster.network);
  const auto most = [](double times, double deviations) {
    return times * 210 * std::exp(0.03 * deviations);
  };
  CHECK((healthy.stragglers.step_time() - reduced) / 1.0ms == Approx(most(1, 3.6)).epsilon(0.01));
  CHECK((slow.stragglers.step_time() - reduced) / 1.0ms == Approx(most(1.3, 1.4)).epsilon(0.02));
  const auto blame = slow.stragglers.blame();
  REQUIRE_FALSE(blame.empty());
  CHECK(blame.front().host == 17);
  CHECK(blame.front().rank / 8 == 17);
  CHECK(blame.front().times == 30);
  CHECK(healthy.stragglers.blame().front().waited < blame.front().waited / 10);
}
