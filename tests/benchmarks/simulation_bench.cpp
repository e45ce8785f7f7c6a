// Measures the speed of the simulator on one core: complete small jobs with faults, and deliveries
// in a job of many ranks without a payload. The limit for the latter is measured too: as many
// messages between plain actors on the same scheduler. Figures are per second of processor time, so
// that other work on the machine matters little. Asserts nothing.
// Arguments: number of small jobs (0: none), ranks of the large job (0: none), and its steps.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>

#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "apps/testing/explore.hpp"
#include "apps/testing/null_payload.hpp"

using namespace troupe::testing;

namespace {

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct figures {
  std::uint64_t deliveries = 0;
  double per_second = 0;
};

figures report(const char* what, const job_spec& job, const run_plan& plan, const budget& of) {
  const auto before = processor_seconds();
  const auto all = explore(job, plan, of);
  const auto seconds = processor_seconds() - before;
  const auto rate = [&](std::uint64_t count) { return static_cast<double>(count) / seconds; };
  std::printf(
      "%-34s %6llu runs %8.0f runs/s %10.0f deliveries/s %10.0f events/s %6.1f s processor "
      "(%.1f s wall) %zu violations\n",
      what, static_cast<unsigned long long>(all.runs), rate(all.runs), rate(all.deliveries),
      rate(all.events), seconds, all.seconds, all.violating.size());
  std::fflush(stdout);
  return {all.deliveries, rate(all.deliveries)};
}

// Runs what is runnable, in order: without time, nodes, hashes or faults.
class bare_host final : public virtual_host {
public:
  void runnable(caf::resumable* job) override { jobs.push_back(job); }
  void timer(std::int64_t, caf::strong_actor_ptr, caf::mailbox_element_ptr) override {
    throw std::logic_error("plain actors set no timers");
  }
  std::int64_t now() const override { return 0; }
  std::deque<caf::resumable*> take_jobs() override { return std::exchange(jobs, {}); }
  std::deque<caf::resumable*> jobs;
};

// Messages between actors on a ring, as many in transit as there are actors. Each actor sends to
// one other, and neighbours in memory do not follow each other on the ring.
double report_bare(int actors, std::uint64_t deliveries) {
  bare_host host;
  virtual_system plain{host};
  std::vector<caf::actor> all;
  for (int i = 0; i < actors; ++i)
    all.push_back(plain.system().spawn([&all, i, actors](caf::event_based_actor* self) {
      return caf::behavior{[=, &all](std::int64_t hops) {
        self->send(all[static_cast<std::size_t>((i * std::int64_t{7919} + 1) % actors)], hops + 1);
      }};
    }));
  for (const auto& a : all) caf::anon_send(a, std::int64_t{0});
  const auto before = processor_seconds();
  for (std::uint64_t n = 0; n < deliveries; ++n) {
    if (host.jobs.empty()) throw std::logic_error("nothing is runnable on the ring");
    auto* job = host.jobs.front();
    host.jobs.pop_front();
    plain.run_one(job);
  }
  const auto seconds = processor_seconds() - before;
  for (auto* job : host.take_jobs()) virtual_system::drop(job);
  for (const auto& a : all) virtual_system::destroy(caf::actor_cast<caf::strong_actor_ptr>(a));
  const auto rate = static_cast<double>(deliveries) / seconds;
  std::printf("%-34s %6d actors %25.0f deliveries/s %32.1f s processor\n", "bare CAF, no simulator",
              actors, rate, seconds);
  std::fflush(stdout);
  return rate;
}

}  // namespace

int main(int count, char** arguments) {
  const auto runs = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2000;
  const auto wide = count > 2 ? std::atoi(arguments[2]) : 10'000;
  job_spec small;
  run_plan plan;
  budget of;
  of.runs = runs;
  of.violations = 1'000'000;
  of.vary_job = false;
  if (runs > 0) report("8 ranks, 20 steps, no faults", small, plan, of);
  plan.faults.may = fault_set::all();
  if (runs > 0) report("8 ranks, 20 steps, swarms of faults", small, plan, of);
  if (wide < 1) return 0;
  const auto steps = count > 3 ? std::atoi(arguments[3]) : 100;
  const auto large = null_payload_job(wide, steps);
  plan = null_payload_plan(large);
  plan.simulation.schedule = scheduling::fifo;
  of.portfolio = false;
  of.runs = 1;
  const auto null_payloads = report("one large job without payload", large, plan, of);
  const auto bare = report_bare(wide, null_payloads.deliveries);
  std::printf("%-34s %.2f of bare CAF's deliveries/s\n", "the large job reaches",
              null_payloads.per_second / bare);
  return 0;
}
