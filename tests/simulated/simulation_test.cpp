// Goal: the production actors in a simulation, with virtual time, links and one stream of choices.
// Whole jobs end with the reference's weights under every schedule, and equal seeds give equal
// runs.
#include "apps/testing/simulated_job.hpp"
#include "backends/simulated/modular_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

job small_job(const std::shared_ptr<modular_recipe>& recipe, std::int32_t ranks,
              std::int64_t steps) {
  job what;
  what.options.ranks = ranks;
  what.options.batch_size = 2;
  what.options.max_epochs = 100;
  what.options.max_steps = steps;
  what.recipe = recipe;
  return what;
}

struct run_facts {
  job_outcome outcome;
  trace_hashes hashes;
  std::uint64_t events = 0;
  std::size_t actors = 0;
  std::vector<std::string> troubles;
};

run_facts run(std::uint64_t seed, scheduling how, const job& what, cluster_model cluster = {}) {
  simulation_options options;
  options.schedule = how;
  simulation in{choices::of_seed(seed), options};
  simulated_job r{in, cluster};
  r.begin(what);
  for (std::uint64_t limit = 0; in.step() && limit < 1'000'000; ++limit) continue;
  run_facts facts;
  REQUIRE(r.ended());
  facts.outcome = *r.outcome();
  facts.hashes = in.hashes();
  facts.events = in.events();
  facts.actors = in.actors();
  facts.troubles = in.troubles();
  return facts;
}

std::vector<std::uint64_t> weights_of(const job_outcome& outcome) {
  std::vector<std::uint64_t> out;
  for (const auto& item : outcome.result.get_if<value_list>()->items)
    out.push_back(static_cast<std::uint64_t>(*item.get_if<std::int64_t>()));
  return out;
}

}  // namespace

TEST_CASE("a job ends with the reference's weights under every schedule", "[simulated]") {
  for (const auto how : {scheduling::fifo, scheduling::random, scheduling::pct})
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      INFO(to_string(how) << " seed " << seed);
      modular_options payload;
      payload.samples = 37;
      payload.buffers = seed % 2 == 1;
      const auto recipe = std::make_shared<modular_recipe>(payload);
      auto what = small_job(recipe, 3, 20);
      what.options.accumulate_grad_batches = 1 + static_cast<std::int64_t>(seed % 3);
      cluster_model cluster;
      cluster.ranks_per_host = static_cast<std::uint32_t>(seed % 3);
      cluster.lanes_in_spans = seed % 4 != 0;
      const auto facts = run(seed, how, what, cluster);
      if (!facts.outcome.ok()) FAIL(render(facts.outcome.failed_with->record));
      modular_reference reference{payload, what.options};
      CHECK(weights_of(facts.outcome) == reference.after(20).weights);
      CHECK(facts.outcome.survivors.empty());
      CHECK(facts.troubles.empty());
      REQUIRE(facts.actors == 0);
    }
}

TEST_CASE("equal seeds give equal runs, other seeds other runs", "[simulated]") {
  const auto recipe = std::make_shared<modular_recipe>(modular_options{});
  const auto what = small_job(recipe, 4, 10);
  const auto first = run(7, scheduling::random, what);
  CHECK(run(7, scheduling::random, what).hashes == first.hashes);
  CHECK(run(8, scheduling::random, what).hashes.deliveries != first.hashes.deliveries);
}
