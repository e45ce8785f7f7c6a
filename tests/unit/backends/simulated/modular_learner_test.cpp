// Goal: arithmetic modulo 2^61 - 1 is correct, and the reference consumes each sample once per
// epoch. Simulated learners return to points and restore each other.
#include "backends/simulated/modular_arithmetic.hpp"

#include <algorithm>
#include <array>
#include <thread>

#include "backends/inproc/inproc.hpp"
#include "backends/simulated/null_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("arithmetic modulo 2^61 - 1 holds at its edges", "[field]") {
  using namespace troupe::modular;
  CHECK(add(prime - 1, 1) == 0);
  CHECK(multiply(prime - 1, prime - 1) == 1);
  CHECK(multiply(prime - 1, 2) == prime - 2);
  inverses known;
  for (const std::uint64_t n : {1ull, 2ull, 3ull, 16ull, 1'000'003ull}) {
    CHECK(multiply(n, known.of(n)) == 1);
    CHECK(known.of(n) == known.of(n));
  }
}

TEST_CASE("the sum of many ranks' limbs is the sum of their elements", "[field]") {
  using namespace troupe::modular;
  std::int64_t sum[2] = {0, 0};
  std::uint64_t expected = 0;
  for (std::uint64_t r = 0; r < 1000; ++r) {
    const auto x = prime - 1 - r;
    std::int64_t limbs[2];
    split(x, limbs);
    CHECK(join(limbs) == x);
    sum[0] += limbs[0];
    sum[1] += limbs[1];
    expected = add(expected, x);
  }
  CHECK(join(sum) == expected);
}

TEST_CASE("the reference consumes each epoch once, in consecutive pieces", "[field]") {
  modular_options payload;
  payload.samples = 23;
  trainer_options run;
  run.ranks = 3;
  run.batch_size = 2;
  run.accumulate_grad_batches = 2;
  modular_reference reference{payload, run};
  std::int64_t next = 0;
  std::int64_t epoch = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const auto [at, consumed] = reference.consumed_by(step);
    if (next == payload.samples) {
      next = 0;
      ++epoch;
    }
    CHECK(at == epoch);
    CHECK(consumed.first == next);
    next += consumed.count;
    CHECK(next <= payload.samples);
    CHECK(reference.digest_after(step) != reference.digest_after(step - 1));
  }
  CHECK(epoch >= 2);
}

TEST_CASE("a state converted to a snapshot and back is equal", "[field]") {
  const modular_state state{{1, 2, 3}, {4, 5, 6}, 7};
  CHECK(modular_state_of(snapshot_of(state)) == state);
  CHECK_THROWS(modular_state_of(snapshot{}));
}

namespace {

/// Two ranks of a job of simulated learners, each on a thread when it has to wait for the other.
class two_ranks {
public:
  explicit two_ranks(const learner_recipe& recipe) : recipe_(recipe) {
    for (std::int32_t r = 0; r < 2; ++r) {
      context[r].rank = r;
      context[r].world = 2;
      context[r].job = job_id{1};
      context[r].options.ranks = 2;
      context[r].options.batch_size = 2;
      context[r].options.elastic.max_restarts = 1;
      make(r);
    }
    bind();
  }

  void make(std::int32_t rank) { who[rank] = recipe_.make(context[rank]); }
  void bind() {
    ++generation_;
    inproc_backend backend;
    for (std::int32_t r = 0; r < 2; ++r) {
      groups[r] = backend.open({job_id{1}, generation_id{generation_}, r, 2});
      who[r]->bind(groups[r], generation_id{generation_});
    }
  }

  /// The outcomes by rank.
  std::array<hook_outcome, 2> both(const hook& h, const hook* inside = nullptr) {
    std::array<hook_outcome, 2> out;
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        const closure inner = [&] { who[r]->on(*inside, {}); };
        do out[r] = who[r]->on(h, inside ? inner : closure{});
        while (out[r].verdict == run_verdict::waits);
      });
    for (auto& one : threads) one.join();
    return out;
  }

  void step(std::int64_t number) {
    position at{stage::train, 0, number, number};
    for (auto& one : who) one->on(hook{hooks::optimizer_zero_grad{{at}}}, {});
    const hook inside{hooks::backward::of_window(at, number, number)};
    const auto out = both(hook{hooks::optimizer_step{at, 1}}, &inside);
    CHECK(out[0].samples == 4);
    for (auto& one : who) one->keep_point();
  }

  std::string rewind(std::int32_t rank) {
    return who[rank]->on(hook{hooks::rewind{}}, {}).state_digest;
  }

  std::array<learner_context, 2> context;
  std::array<std::unique_ptr<learner>, 2> who;
  std::array<std::shared_ptr<communicator>, 2> groups;

private:
  const learner_recipe& recipe_;
  std::uint64_t generation_ = 0;
};

hook restored_at(std::int64_t steps) {
  hooks::restore_state h;
  h.at = {stage::train, 0, steps, steps};
  h.cursor = 4 * steps;
  h.donors = {0};
  return hook{h};
}

}  // namespace

TEST_CASE("integer learner: a rank that joins goes on with the donor's exact state", "[recovery]") {
  modular_options payload;
  payload.buffers = GENERATE(false, true);
  const modular_recipe recipe{payload};
  two_ranks ranks{recipe};
  CHECK_THROWS_AS(ranks.rewind(0), user_error);
  ranks.both(hook{hooks::model_to_device{}});
  for (std::int64_t n = 0; n < 3; ++n) ranks.step(n);
  const auto at_three = ranks.rewind(0);
  CHECK(ranks.rewind(1) == at_three);

  // Rank 0 is stopped within its fourth step, and rank 1 is replaced.
  const position at{stage::train, 0, 3, 3};
  ranks.who[0]->on(hook{hooks::optimizer_zero_grad{{at}}}, {});
  const closure inner = [&] { ranks.who[0]->on(hook{hooks::backward::of_window(at, 3, 3)}, {}); };
  CHECK(ranks.who[0]->on(hook{hooks::optimizer_step{at, 1}}, inner).verdict == run_verdict::waits);
  ranks.groups[0]->abort("rank 1 is lost");
  CHECK(ranks.rewind(0) == at_three);
  ranks.make(1);
  ranks.bind();
  for (const auto& out : ranks.both(restored_at(3))) CHECK(out.state_digest == at_three);
  CHECK(ranks.rewind(1) == at_three);
  for (std::int64_t n = 3; n < 6; ++n) ranks.step(n);
  modular_reference reference{payload, ranks.context[0].options};
  CHECK(ranks.rewind(0) == std::to_string(reference.digest_after(6)));
  CHECK(ranks.rewind(1) == ranks.rewind(0));
}

TEST_CASE("null learner: a rank that joins has the donor's number of steps", "[recovery]") {
  const null_recipe recipe{{}};
  two_ranks ranks{recipe};
  CHECK_THROWS_AS(ranks.rewind(0), user_error);
  for (auto& one : ranks.who) one->keep_point();
  CHECK(ranks.rewind(0) == "0");
}
