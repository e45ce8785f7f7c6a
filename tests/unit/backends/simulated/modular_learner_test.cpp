// Goal: arithmetic modulo 2^61 - 1 is correct, and the reference consumes each sample once per
// epoch.
#include "backends/simulated/modular_arithmetic.hpp"

#include <algorithm>

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
