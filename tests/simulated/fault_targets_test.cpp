// Goal: faults are applied to hosts, to the supervisor's process and to a test's own processes as
// well as to ranks, and each one affects its target.
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "apps/testing/explore.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using ms = std::chrono::milliseconds;

// Sends each step of rank 0 to an actor on another host, and requests a stop when it answers.
class stop_asker final : public extension {
public:
  explicit stop_asker(std::int64_t behind) : behind_(behind) {}

  void begins(simulation& in, simulated_job& sim_job) override {
    leave();
    actor_ = in.system().spawn([behind = behind_](caf::event_based_actor* self) {
      self->set_down_handler([](const caf::down_msg&) {});
      return caf::behavior{[=](const caf::actor& to) {
                             self->monitor(to);
                             self->become([=](std::int64_t step) {
                               if (step == behind)
                                 self->send(to, caller_request{request_stop{stop_reason::caller}});
                             });
                           },
                           [](std::int64_t) {}};
    });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(actor_), in.add_node(50, "asker"));
    caf::anon_send(actor_,
                   caf::actor_cast<caf::actor>(sim_job.linked(actor_, sim_job.supervisor())));
  }
  void stepped(const finished_step& what, const complain_fn&) override {
    if (what.rank == 0) caf::anon_send(actor_, what.step);
  }
  void ended(const job_outcome&, const complain_fn&) override { leave(); }

private:
  void leave() {
    if (actor_) caf::anon_send_exit(actor_, caf::exit_reason::user_shutdown);
    actor_ = nullptr;
  }
  const std::int64_t behind_;
  caf::actor actor_;
};

constexpr std::uint64_t at_time = 400'000'000;  // of the only fault
constexpr std::uint64_t whom_of[]{0, 4, 5, 7};  // draws of: rank, host, program, test node

run_report run_with(fault what, target whom, std::uint64_t amount, bool with_extension) {
  const job_spec job{.ranks = 4, .steps = 30};
  run_plan plan;
  plan.simulation.schedule = scheduling::fifo;
  plan.simulation.record = true;
  plan.cluster.ranks_per_host = 2;
  plan.faults.may.add(what);
  plan.faults.swarm = false;
  plan.faults.per_attempt = 1;
  if (with_extension) plan.extensions = {[] { return std::make_unique<stop_asker>(1000); }};
  const std::vector<choice> list{{site::fault, 0, 0, 1},
                                 {site::detail, 256, 2, at_time},
                                 {site::detail, 256, 3, 2},
                                 {site::detail, 256, 4, amount},
                                 {site::detail, 256, 6, whom_of[static_cast<std::size_t>(whom)]}};
  auto reference = reference_of(job);
  return run_job(job, plan, choices::of_list(1, list), reference);
}

// Number of events on the named node in a time span after the fault.
std::size_t events_in(const run_report& r, const std::string& node, ms from, ms to) {
  const auto applied = std::ranges::find_if(
      r.notes, [](const trace_note& n) { return n.what.starts_with("fault: "); });
  REQUIRE(applied != r.notes.end());
  const auto since = [&](const event_hashes& f) {
    return std::chrono::nanoseconds{f.at - applied->at};
  };
  return static_cast<std::size_t>(std::ranges::count_if(r.trail, [&](const event_hashes& f) {
    return r.nodes[static_cast<std::size_t>(f.node)] == node && since(f) > from && since(f) < to;
  }));
}

}  // namespace

TEST_CASE("a pause stops a rank, its host, the program or a test's node", "[simulated][targets]") {
  constexpr std::uint64_t amount = 3;  // 500 ms * 10 / 24
  const std::map<target, std::vector<std::string>> silent{{target::rank, {"rank 2"}},
                                                          {target::host, {"rank 2", "rank 3"}},
                                                          {target::program, {"supervisor"}},
                                                          {target::test_node, {"asker"}}};
  for (const auto& [whom, nodes] : silent) {
    INFO(to_string(whom));
    const auto r = run_with(fault::pause, whom, amount, true);
    CHECK(r.violations.empty());
    CHECK(r.finished);
    CHECK(r.attempts == 1);
    CHECK(r.faults[static_cast<std::size_t>(fault::pause)] == 1);
    for (const auto* node : {"supervisor", "rank 0", "rank 2", "rank 3", "asker"}) {
      INFO(node);
      const bool stands = std::ranges::find(nodes, node) != nodes.end();
      CHECK((events_in(r, node, ms{0}, ms{200}) == 0) == stands);
      CHECK(events_in(r, node, ms{200}, ms{400}) > 0);
    }
  }
}

TEST_CASE("a fault whose target does not exist is applied to the rank", "[simulated][targets]") {
  const auto applied_to = [](const run_report& r) {
    const auto applied = std::ranges::find_if(
        r.notes, [](const trace_note& n) { return n.what.starts_with("fault: "); });
    return applied == r.notes.end() ? std::string{}
                                    : r.nodes[static_cast<std::size_t>(applied->to)];
  };
  CHECK(applied_to(run_with(fault::data_cut, target::program, 1, true)) == "rank 2");
  CHECK(applied_to(run_with(fault::cut, target::program, 1, true)) == "rank 2");
  CHECK(applied_to(run_with(fault::pause, target::test_node, 1, false)) == "rank 2");
  CHECK(applied_to(run_with(fault::pause, target::test_node, 1, true)) == "asker");
  CHECK(applied_to(run_with(fault::cut, target::test_node, 1, true)) == "asker");
  CHECK(applied_to(run_with(fault::crash_rank, target::test_node, 1, true)) == "asker");
  for (const auto what : {fault::pause, fault::slow, fault::skew, fault::late_timers})
    CHECK(applied_to(run_with(what, target::program, 1, true)) == "supervisor");
}

TEST_CASE("program paused beyond the detection time: ranks are lost and the job is resumed",
          "[simulated][targets]") {
  const auto r = run_with(fault::pause, target::program, 8, false);
  CHECK(r.violations.empty());
  CHECK(r.finished);
  CHECK(r.attempts == 2);
  CHECK(r.product[static_cast<std::size_t>(coverage_point::link_silent)] >= 4);
}

TEST_CASE("crash of a test's node: no rank fails, and its request never arrives",
          "[simulated][targets]") {
  const auto r = run_with(fault::crash_rank, target::test_node, 1, true);
  CHECK(r.violations.empty());
  CHECK(r.finished);
  CHECK(r.attempts == 1);
  CHECK(events_in(r, "asker", ms{0}, ms{10'000}) == 0);
}

TEST_CASE("swarms of faults on hosts, programs and test nodes violate no oracle",
          "[simulated][targets]") {
  run_plan plan;
  plan.faults.may =
      fault_set::parse("pause, slow, cut, one_way_cut, disconnect, skew, late_timers, crash_rank");
  plan.extensions = {[] { return std::make_unique<stop_asker>(7); }};
  std::uint64_t stopped = 0;
  const auto r = explore({.ranks = 4, .steps = 12}, plan, {.runs = 300});
  for (const auto& bad : r.violating) FAIL(bad.violations.front() << " of seed " << bad.seed);
  stopped += r.marks.at("stopped at a step");
  CHECK(r.clean());
  CHECK(stopped > 100);
  CHECK(r.met("a link is lost by silence"));
}

TEST_CASE("a test's function makes no extension: a user_error names it", "[simulated][targets]") {
  run_plan plan;
  plan.extensions.push_back([] { return std::unique_ptr<extension>{}; });
  CHECK_THROWS_WITH(explore({.ranks = 2, .steps = 2}, plan, {.first_seed = 1, .runs = 1}),
                    Catch::Contains("run_plan::extensions"));
}
