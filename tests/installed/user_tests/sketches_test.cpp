// Goal: the examples of docs/testing.md work in a user's project, against the installed package.
#include <utility>
#include <vector>

#include <troupe/testing.hpp>
#include <troupe/testing/exhaustive.hpp>

#include <catch2/catch.hpp>

namespace sim = troupe::testing;
using namespace std::chrono_literals;

// (a) A whole job under random sets of faults ends in the same bits.
TEST_CASE("training survives any crash schedule", "[sim]") {
  const sim::job_spec job{.ranks = 8, .steps = 60, .checkpoint_every = 10};
  const auto faults = sim::swarm_of(
      "crash_rank, crash_supervisor, power_loss, pause, cut, one_way_cut, slow, disconnect, "
      "storage_torn");
  const auto r = sim::explore(job, faults, {.runs = 80, .seconds = 20});

  INFO(sim::report(r));  // empty when nothing is wrong
  CHECK(r.held("the end equals the fault-free one"));
  CHECK(r.held("each sample once"));
  CHECK(r.held("a healed job finishes"));
  CHECK(r.met("resumed from a checkpoint"));  // a test that never meets its fault proves nothing
  REQUIRE(r.clean());
}

// (b) One interleaving, scripted by hand: a message of a dead rank is refused.
TEST_CASE("a late message of a dead incarnation is ignored", "[sim][scripted]") {
  sim::scripted_simulation s{{.seed = 7}};
  s.train({.ranks = 3, .steps = 20, .checkpoint_every = 2});

  const auto late =
      s.hold<troupe::step_done>(2, [](const auto& m) { return m.at.step.value() == 7; });
  REQUIRE(s.run_until([&] { return late->caught(); }));  // it is on the wire
  s.crash(2);
  CHECK(s.run().failed_with->record.rank == 2);

  s.train_again();  // as an operator would: a new supervisor, new incarnations
  REQUIRE(s.run_until([&] { return s.steps_of(2) == 8; }));
  const auto refused = s.marks_hit(troupe::coverage_point::fence_refused);
  s.release_to(late, s.supervisor());
  const auto& end = s.run();
  CHECK(s.marks_hit(troupe::coverage_point::fence_refused) == refused + 1);
  CHECK(end.status == troupe::job_outcome::ending::finished);
  CHECK(end.loop.steps == 20);
  CHECK(s.weights() == s.reference_weights());
}

// (c) Every interleaving of three ranks, with an exception at every point.
TEST_CASE("an exception reaches the caller exactly once", "[sim][exhaustive]") {
  sim::exhaustive_options small{.ranks = 3, .steps = 2, .faults = {sim::small_fault::throws}};
  std::uint64_t failed = 0;
  small.end_must = [&](const troupe::supervision::complete& end) -> std::string {
    if (end.status != troupe::job_outcome::ending::failed) return {};
    ++failed;
    if (!end.first) return "it failed without a first cause";
    return end.survivors.empty() ? "" : "a rank is left";
  };
  const auto r = sim::exhaust(small);
  INFO(r.summary() << (r.violation ? r.violation->what + '\n' + r.violation->chart : ""));
  CHECK(failed > 0);
  REQUIRE(r.complete);
}

// (d) The cost of a slow node, and which node caused it.
TEST_CASE("one slow node costs what the model says", "[sim][scale]") {
  const auto job = sim::null_payload_job(512, 40);
  auto plan = sim::null_payload_plan(job, 1'400'000'000);  // bytes of gradients
  plan.cluster.ranks_per_host = 8;
  plan.cluster.network = sim::hosts_of(8, {2us, 400}, {8us, 45});  // inside, between: alpha, GB/s
  plan.cluster.compute = 210ms;
  plan.cluster.compute_spread = 5;  // lognormal, in thousandths
  const auto healthy = sim::run(job, plan);
  plan.cluster.slow_hosts = {{17, 130}};  // per cent
  const auto slow = sim::run(job, plan);

  // So many steps of ... each; host 17 (most often its rank 142) kept the others waiting ...
  INFO(slow.stragglers.text());
  CHECK((slow.stragglers.step_time() - healthy.stragglers.step_time()) / 1.0ms ==
        Approx(0.3 * 210).margin(3));
  CHECK(slow.stragglers.blame().front().host == 17);
  CHECK(slow.violations.empty());
}

// (e) Coverage points in a user's code: a rare path, a path that some run must take, an invariant.
constexpr troupe::user_coverage late{troupe::coverage_kind::rare, "a loss is late"};
constexpr troupe::user_coverage kept{troupe::coverage_kind::sometimes,
                                     "losses wait for the next one"};
constexpr troupe::user_coverage in_order{troupe::coverage_kind::always,
                                         "losses are reported in order"};

class reporting final : public troupe::learner {
public:
  explicit reporting(std::unique_ptr<troupe::learner> inner) : inner_(std::move(inner)) {}

  void bind(std::shared_ptr<troupe::communicator> world, troupe::generation_id g) override {
    inner_->bind(std::move(world), g);
  }
  troupe::hook_outcome on(const troupe::hook& h, const troupe::closure& inner) override {
    if (const auto* x = h.get_if<troupe::hooks::on_train_batch_end>()) report(x->at.step);
    return inner_->on(h, inner);
  }
  troupe::value result() override { return inner_->result(); }

private:
  void report(std::int64_t step) {
    waiting_.push_back(step);
    if (troupe::rare(late)) return;  // false in production
    troupe::sometimes(waiting_.size() > 1, kept);
    for (const auto s : std::exchange(waiting_, {})) {
      troupe::always(s >= last_, in_order);
      last_ = s;
    }
  }
  std::unique_ptr<troupe::learner> inner_;
  std::vector<std::int64_t> waiting_;
  std::int64_t last_ = 0;
};

struct reporting_recipe final : troupe::learner_recipe {
  explicit reporting_recipe(troupe::recipe_ptr of) : inner(std::move(of)) {}
  std::unique_ptr<troupe::learner> make(const troupe::learner_context& who) const override {
    return std::make_unique<reporting>(inner->make(who));
  }
  troupe::recipe_ptr inner;
};

TEST_CASE("a loss that is late is reported with the next one", "[sim][marks]") {
  auto plan = sim::swarm_of("rare_paths, crash_rank");
  plan.extensions = {
      sim::trains([](auto inner) { return std::make_shared<reporting_recipe>(inner); })};
  plan.marks = {late, kept, in_order};
  const auto r = sim::explore({.ranks = 3, .steps = 10}, plan, {.runs = 120});
  INFO(sim::report(r) << r.marks_text());  // what was hit how often, and what never was
  CHECK(r.met(late));
  CHECK(r.met(kept));
  CHECK(r.clean());  // "invariants of one's own hold" among the rest
}
