// Goal: explore() with modules of a user. Where one cannot train every job, only what the test
// allowed is varied, and an exception of the module in the reference is a violation with its seed
// and its case. Where hooks call collectives, faults change no result, and observers count them.
#include <fmt/format.h>

#include "tests/simulated/branching.hpp"
#include "troupe/data.hpp"
#include "troupe/testing.hpp"
#include "troupe/testing/tensors.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

run_plan plan_of_own(bool vary_samples) {
  run_plan plan;
  auto own = full_batch_module(2, 36);
  own.vary_samples = vary_samples;
  plan.payload = tensors_payload(std::move(own));
  return plan;
}

// 36 samples make six full batches of three ranks; two thirds of them plus one do not.
constexpr job_spec job_of_full_batches{
    .ranks = 3, .steps = 6, .samples = 36, .batch_size = 2, .checkpoint_every = 3};

}  // namespace

TEST_CASE("a user's data keeps its number of samples", "[simulated][tensors]") {
  const auto all = explore(job_of_full_batches, plan_of_own(false), {.first_seed = 1, .runs = 24});
  INFO(report(all));
  CHECK(all.clean());
  CHECK(all.runs == 24);
}

TEST_CASE("module throws in the reference: a violation with its seed and case",
          "[simulated][tensors]") {
  const auto plan = plan_of_own(true);
  const auto all = explore(job_of_full_batches, plan, {.first_seed = 1, .runs = 24});
  REQUIRE(all.violating.size() == 1);
  const auto& found = all.violating.front();
  CHECK(all.variants.front().job.samples == 25);
  CHECK(found.violations.front().oracle == exception_oracle);
  CHECK_THAT(found.violations.front().text,
             Catch::Contains("std::length_error") && Catch::Contains("a batch of another size"));
  CHECK_FALSE(all.held(exception_oracle));
  CHECK_THAT(report(all), Catch::Contains("seed " + std::to_string(found.seed)) &&
                              Catch::Contains("samples=25"));

  const auto text = to_text(case_of(found, all.variants.front()));
  CHECK_THROWS_WITH(parse_case(text), Catch::Contains("unknown payload \"own_tensors\""));
  const auto whole = parse_case(text, plan);
  auto reference = reference_of(whole.what.job);
  CHECK(replay(whole, reference).violations == found.violations);
}

TEST_CASE("an mlp with options of one's own is replayed only with them", "[simulated][tensors]") {
  run_case c;
  c.what.job = job_of_full_batches;
  c.what.plan.payload = tensors_payload({.optimizer = "adam"});
  const auto text = to_text(c);
  CHECK_THROWS_WITH(parse_case(text), Catch::Contains("unknown payload \"own_tensors\""));
  run_plan usual;
  usual.payload = tensors_payload();
  CHECK_THROWS_WITH(parse_case(text, usual), Catch::Contains("unknown payload"));
  CHECK(parse_case(text, c.what.plan).what.plan.payload == c.what.plan.payload);
  CHECK(c.what.plan.payload->varies_samples());
}

namespace {

/// Gives each attempt an observer that counts collectives.
class counting final : public extension {
public:
  explicit counting(called_collectives& to) : to_(to) {}
  void prepares(simulation&, simulated_job&, job& what) override {
    what.observers.push_back([to = &to_] { return std::make_unique<counter>(*to); });
  }

private:
  struct counter final : observer {
    explicit counter(called_collectives& to) : to_(to) {}
    bool wants_hooks() const override { return true; }
    void on(const observation& what) override {
      if (const auto* x = std::get_if<seen::collective>(&what); x && !x->failed)
        ++to_[fmt::format("{} {} {}", to_string(x->kind), x->bytes, x->label)];
    }
    called_collectives& to_;
  };
  called_collectives& to_;
};

struct conferred {
  run_report report;
  called_collectives called, observed;
};

void confer(conferred& into, bool calls, std::uint64_t seed, std::int64_t steps) {
  run_plan plan;
  plan.payload = tensors_payload(conferring_module(calls ? &into.called : nullptr));
  plan.extensions.push_back([&] { return std::make_unique<counting>(into.observed); });
  const job_spec what{.ranks = 3, .steps = steps, .samples = 34};
  auto expected = reference_of(what);
  into.report = run_job(what, plan, choices::of_seed(seed), expected);
}

}  // namespace

TEST_CASE("the collectives of a module's hooks are what an observer counts in a simulated run",
          "[simulated][tensors]") {
  for (std::uint64_t seed = 1; seed < 7; ++seed) {
    conferred with, without;
    confer(with, true, seed, 8);
    confer(without, false, seed, 8);
    INFO("seed " << seed);
    CHECK(with.report.violations == std::vector<violation>{});
    CHECK(with.report.weights_digest == without.report.weights_digest);
    CHECK(without.called.empty());
    auto own = with.observed;
    for (const auto& [operation, count] : without.observed) own[operation] -= count;
    for (const auto& [operation, count] : with.called) {
      INFO(operation);
      CHECK(count >= 3);
      CHECK(own[operation] >= count);
      if (operation != "broadcast 8 ") CHECK(own[operation] == count);
    }
  }
}

TEST_CASE("a module's hooks call collectives under faults: the bits are the reference's",
          "[simulated][tensors]") {
  called_collectives calls;
  run_plan plan;
  plan.payload = tensors_payload(conferring_module(&calls));
  plan.faults.may = fault_set::all();
  const auto restarts = GENERATE(0, 2);
  const job_spec what{.ranks = 3, .steps = 8, .samples = 34, .max_restarts = restarts};
  const auto all = explore(what, plan, {.first_seed = 1, .runs = 30});
  INFO(report(all));
  CHECK(all.clean());
  CHECK(calls.size() == 5);
}

TEST_CASE("a module with manual optimization: its ranks are compared with each other",
          "[simulated][tensors]") {
  run_plan plan;
  plan.payload = tensors_payload(adversarial_module(false));
  const auto restarts = GENERATE(0, 2);
  const job_spec what{.ranks = 3, .steps = 8, .samples = 34, .max_restarts = restarts};
  plan.faults.may = GENERATE(fault_set::none(), fault_set::all());
  const auto all = explore(what, plan, {.first_seed = 1, .runs = 20});
  INFO(report(all));
  CHECK(all.clean());
}

TEST_CASE("manual optimization that differs between ranks is a violation", "[simulated][tensors]") {
  run_plan plan;
  plan.payload = tensors_payload(adversarial_module(true));
  const auto all = explore({.ranks = 3, .steps = 8, .samples = 34}, plan, {.runs = 1});
  REQUIRE(all.violating.size() == 1);
  CHECK(all.violating.front().violations.front().step == 4);
}

TEST_CASE("data with an order or a batch size of their own: a run refuses them",
          "[simulated][tensors]") {
  struct own_order final : data_module {
    explicit own_order(data_loading how) : how_(std::move(how)) {}
    dataset_ptr train() override { return all_->train(); }
    data_loading loading(stage, std::int32_t) override { return how_; }
    void setup(stage purpose) override { all_->setup(purpose); }
    data_ptr all_ = synthetic({.samples = 36, .evaluation = 1, .shape = {6}, .classes = 3});
    data_loading how_;
  };
  const auto payload = [](data_loading how) {
    return tensors_payload({.data = std::make_shared<own_order>(std::move(how))});
  };
  CHECK_NOTHROW(payload({.num_workers = 2})->of(job_of_full_batches));
  for (const auto& how : {data_loading{.batch_size = 3}, data_loading{.shuffle = false},
                          data_loading{.drop_last = true}})
    CHECK_THROWS_WITH(payload(how)->of(job_of_full_batches), Catch::Contains("of its own"));
}
