// Goal: behaviour that depends on the host is found by running twice in different hosts, and the
// first event that differs is shown from both sides. The product's runs are equal.
#include "apps/testing/determinism_check.hpp"

#include <atomic>
#include <set>
#include <thread>

#include "troupe/testing.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using planted_fn = std::function<void(simulation&, simulation::node_id)>;

// Ten plain events, one in which `planted` runs, ten more.
repeatable_run run_with(planted_fn planted) {
  return [planted = std::move(planted)](bool recorded) {
    simulation_options options;
    options.schedule = scheduling::fifo;
    options.record = recorded;
    simulation in{choices::of_seed(1), options};
    const auto quiet = in.add_node(1, "quiet");
    const auto odd = in.add_node(2, "odd");
    for (int i = 1; i <= 21; ++i) {
      if (i == 11)
        in.at(odd, std::chrono::microseconds{i}, [&] { planted(in, odd); });
      else
        in.at(quiet, std::chrono::microseconds{i}, [&in] { in.delivered(1, 2); });
    }
    while (in.step()) continue;
    run_report report;
    report.hashes = in.hashes();
    report.events = in.events();
    report.trail = in.trail();
    report.notes = in.notes();
    for (simulation::node_id p = 0; p < in.nodes(); ++p) report.nodes.push_back(in.name_of(p));
    return report;
  };
}

// Order of addresses, as in a container of pointers.
void by_address(simulation& in, simulation::node_id) {
  std::vector<std::unique_ptr<std::uint64_t>> all;
  std::set<std::uint64_t*> ordered;
  for (std::uint64_t i = 0; i < 12; ++i) {
    all.push_back(std::make_unique<std::uint64_t>(i));
    ordered.insert(all.back().get());
  }
  for (const auto* x : ordered) in.delivered(3, *x);
}

[[gnu::noinline]] std::uint64_t sum_of(const volatile unsigned char* from, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum = sum * 257 + from[i];
  return sum;
}

void uninitialised(simulation& in, simulation::node_id) {
  constexpr std::size_t size = 200;
  const std::unique_ptr<unsigned char[]> block{new unsigned char[size]};
  in.delivered(4, sum_of(block.get() + 64, 64));
}

void count_of_process(simulation& in, simulation::node_id) {
  static std::atomic<std::uint64_t> count{0};
  in.state_is(++count);
}

void by_thread(simulation& in, simulation::node_id) {
  in.draws().draw(site::detail, 1,
                  2 + std::hash<std::thread::id>{}(std::this_thread::get_id()) % (1 << 20));
}

std::optional<run_difference> found_in(const planted_fn& planted, std::uint64_t seed) {
  const auto run = run_with(planted);
  return check_determinism(run(false), run, seed);
}

}  // namespace

TEST_CASE("a dependence on the host is found and reported with event and layer",
          "[simulated][determinism]") {
  struct expected {
    const char* name;
    planted_fn planted;
    const char* layer;
  };
  for (const auto& [name, planted, layer] :
       {expected{"order of addresses", by_address, "deliveries"},
        expected{"memory that was not set", uninitialised, "deliveries"},
        expected{"a static counter", count_of_process, "state"},
        expected{"the thread", by_thread, "choices"}})
    for (const std::uint64_t seed : {4, 7}) {
      INFO(name << ", seed " << seed);
      const auto found = found_in(planted, seed);
      REQUIRE(found);
      INFO(found->text);
      CHECK(found->layer == layer);
      CHECK(found->event == 11);
      CHECK(found->text.find("one:   event 11") != std::string::npos);
      CHECK(found->text.find("other: event 11") != std::string::npos);
      CHECK(found->text.find("in odd") != std::string::npos);
    }
}

TEST_CASE("a run that uses only ports is identical in every host", "[simulated][determinism]") {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    CHECK_FALSE(found_in([](simulation& in, simulation::node_id) { in.delivered(5, 6); }, seed));
}

TEST_CASE("runs with different ends are reported as different", "[simulated][determinism]") {
  run_report one;
  run_report other;
  CHECK_FALSE(first_difference(one, other));
  other.events = 3;
  const auto found = first_difference(one, other);
  REQUIRE(found);
  CHECK(found->layer == "end");
}

TEST_CASE("jobs under swarms of faults run identically in a disturbed host",
          "[simulated][determinism][campaign]") {
  job_spec what;
  what.ranks = 4;
  run_plan plan;
  plan.faults.may = fault_set::all();
  budget of;
  of.first_seed = 1;
  of.runs = 24;
  of.determinism_checks = true;
  const auto all = explore(what, plan, of);
  for (const auto& r : all.violating)
    for (const auto& v : r.violations) UNSCOPED_INFO("seed " << r.seed << ": " << v);
  CHECK(all.clean());
  CHECK(all.determinism_checks == 24);
}

namespace {

// Finds something wrong in the first of its runs only.
exploration once_wrong(bool determinism_checks) {
  std::atomic<std::uint64_t> runs{0};
  struct counting final : extension {
    explicit counting(bool wrong) : wrong_(wrong) {}
    void stepped(const finished_step& what, const complain_fn& complain) override {
      if (wrong_ && what.step == 3) complain({"each sample once", "seen once", what.step});
    }
    const bool wrong_;
  };
  run_plan plan;
  plan.extensions = {[&] { return std::make_unique<counting>(runs++ == 0); }};
  return explore({.ranks = 2, .steps = 5}, plan,
                 {.runs = 1, .determinism_checks = determinism_checks});
}

}  // namespace

TEST_CASE("a violation that its repetition lacks is kept, and the report has it",
          "[simulated][determinism][campaign]") {
  const auto checked = GENERATE(false, true);
  const auto all = once_wrong(checked);
  REQUIRE(all.violating.size() == 1);
  CHECK_FALSE(all.held("each sample once"));
  CHECK_FALSE(all.held(determinism_oracle));
  const auto text = report(all);
  INFO(text);
  CHECK_THAT(text, Catch::StartsWith("violated  each sample once") && Catch::Contains("seen once"));
  CHECK_THAT(text, Catch::Contains(determinism_oracle));
  CHECK_THAT(text, Catch::Contains("troupe-case/2"));
}

TEST_CASE("a difference between two hosts is in the report of its exploration",
          "[simulated][determinism][campaign]") {
  struct by_count final : extension {
    void begins(simulation& in, simulated_job&) override {
      static std::atomic<std::uint64_t> runs{0};
      in.state_is(++runs);
    }
  };
  run_plan plan;
  plan.extensions = {[] { return std::make_unique<by_count>(); }};
  const auto all = explore({.ranks = 2, .steps = 5}, plan, {.runs = 1, .determinism_checks = true});
  CHECK_FALSE(all.held(determinism_oracle));
  CHECK_THAT(report(all), Catch::StartsWith(std::string{"violated  "} + determinism_oracle) &&
                              Catch::Contains("one:   event"));
}
