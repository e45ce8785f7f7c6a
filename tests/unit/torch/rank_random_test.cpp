// Goal: inside a random scope every random operator of LibTorch draws from the rank's generator,
// which follows from seed and key only. The host's generator is not touched.
#include "backends/torch/rank_random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "backends/torch/lane_thread.hpp"
#include "tests/support/catch.hpp"

namespace troupe {
namespace {

using tensors = std::vector<at::Tensor>;

bool same(const tensors& a, const tensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

at::Tensor default_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

/// A few draws of every random operator.
tensors draw_a_round() {
  const auto half = at::full({64}, 0.5);
  tensors drawn{at::dropout(at::ones({100}), 0.5, true),
                at::randperm(50),
                at::rand({20}),
                at::randn({21}),
                at::randint(1000, {20}),
                at::multinomial(half, 10, true),
                at::bernoulli(half),
                at::normal(0.0, 1.0, {33}),
                at::poisson(half),
                at::binomial(half * 10, half),
                at::rrelu(at::randn({20}), 0.1, 0.3, true),
                at::empty({10}).exponential_(),
                at::empty({10}).cauchy_(),
                at::empty({10}).geometric_(0.3),
                at::empty({10}).log_normal_(),
                at::empty({10}).random_(),
                at::alpha_dropout(at::ones({50}), 0.3, true),
                at::feature_dropout(at::ones({4, 8}), 0.3, true),
                at::rand_like(half),
                at::randn_like(half),
                at::randint_like(half, 9),
                at::scaled_dot_product_attention(at::ones({1, 2, 4, 8}), at::ones({1, 2, 4, 8}),
                                                 at::ones({1, 2, 4, 8}), {}, 0.5)};
  drawn.push_back(at::empty({20, 30}).uniform_(-0.2, 0.2));  // as layers are initialised
  return drawn;
}

tensors draw(rank_random& random, int rounds) {
  const random_scope scope{random};
  tensors all;
  for (int i = 0; i < rounds; ++i)
    for (auto& tensor : draw_a_round()) all.push_back(tensor);
  return all;
}

TEST_CASE("ranks with equal seeds draw equal numbers at the same time in several threads") {
  const auto host = default_state();
  std::vector<tensors> drawn(3);
  std::barrier together{3};
  const auto body = [&](std::size_t who) {
    rank_random random{7};
    together.arrive_and_wait();
    drawn[who] = draw(random, 100);
  };
  std::jthread first{body, 1}, second{body, 2};
  body(0);
  first.join();
  second.join();
  CHECK(same(drawn[0], drawn[1]));
  CHECK(same(drawn[0], drawn[2]));
  CHECK(at::equal(host, default_state()));
  rank_random other{8};
  CHECK_FALSE(same(drawn[0], draw(other, 100)));
}

TEST_CASE("every random operator draws from the rank's generator") {
  const auto host = default_state();
  rank_random random{1};
  const auto size = draw(random, 1).size();
  for (std::size_t i = 0; i < size; ++i) {
    random.reset({.purpose = "a"});
    const auto a = draw(random, 1)[i];
    random.reset({.purpose = "b"});
    const auto b = draw(random, 1)[i];
    INFO("draw " << i);
    CHECK_FALSE(at::equal(a, b));
  }
  CHECK(at::equal(host, default_state()));
}

TEST_CASE("every random operator of this LibTorch can be redirected to the rank's generator") {
  for (const auto& name : random_operators_out_of_reach()) FAIL_CHECK(name);
}

TEST_CASE("outside a scope operators draw from the host's generator") {
  rank_random random{3};
  draw(random, 1);
  const auto host = default_state();
  at::rand({3});
  CHECK_FALSE(at::equal(host, default_state()));
}

TEST_CASE("a scope affects its own thread only") {
  rank_random random{3};
  const random_scope scope{random};
  const auto host = default_state();
  const auto mine = random.generator().get_state();
  std::jthread{[] { at::rand({3}); }}.join();
  CHECK_FALSE(at::equal(host, default_state()));
  CHECK(at::equal(mine, random.generator().get_state()));
}

TEST_CASE("scopes nest and an explicitly passed generator is used unchanged") {
  rank_random outer{1}, inner{2}, own{3};
  const random_scope first{outer};
  {
    const random_scope second{inner};
    const auto before = outer.generator().get_state();
    const auto untouched = inner.generator().get_state();
    at::rand({3}, own.generator());
    CHECK(at::equal(untouched, inner.generator().get_state()));
    at::rand({3});
    CHECK_FALSE(at::equal(untouched, inner.generator().get_state()));
    CHECK(at::equal(before, outer.generator().get_state()));
  }
  const auto before = outer.generator().get_state();
  at::rand({3});
  CHECK_FALSE(at::equal(before, outer.generator().get_state()));
}

TEST_CASE("equal keys give equal draws independent of earlier draws") {
  const random_key here{.epoch = 1, .batch = 2, .shard = 3, .purpose = "training_step"};
  rank_random random{5};
  random.reset(here);
  const auto once = draw(random, 1);
  random.reset(here);
  CHECK(same(once, draw(random, 1)));
  for (auto elsewhere : {random_key{2, 2, 3, "training_step"}, random_key{1, 3, 3, "training_step"},
                         random_key{1, 2, 4, "training_step"}, random_key{1, 2, 3, "test_step"}}) {
    random.reset(elsewhere);
    CHECK_FALSE(same(once, draw(random, 1)));
  }
  rank_random other{6};
  other.reset(here);
  CHECK_FALSE(same(once, draw(other, 1)));
  random.reset_for_initialisation();
  rank_random fresh{5};
  CHECK(same(draw(random, 1), draw(fresh, 1)));
}

TEST_CASE("a reset discards a half-used pair of normal numbers") {
  rank_random random{5};
  const random_scope scope{random};
  const auto three = [&] {
    random.reset({.purpose = "x"});
    return at::randn({3});
  };
  const auto first = three();
  CHECK(at::equal(first, three()));
}

TEST_CASE("a rank starts with the numbers of torch.manual_seed") {
  rank_random random{0};
  const random_scope scope{random};
  // python: torch.manual_seed(0); torch.rand(3).double().tolist()
  CHECK(at::allclose(at::rand({3}),
                     at::tensor({0.4962565899, 0.7682217956, 0.0884774327}, at::kFloat), 1e-7));
}

TEST_CASE("a lane thread computes with one thread and leaves the host's setting unchanged") {
  const auto before = at::get_num_threads();
  int inside = 0, after = 0, started_later = 0;
  float denormal = 1;
  std::jthread{[&] {
    {
      const lane_thread setup;
      inside = at::get_num_threads();
      at::mm(at::ones({200, 200}), at::ones({200, 200}));
      std::jthread{[&] { started_later = at::get_num_threads(); }}.join();
      denormal = at::full({8}, std::numeric_limits<float>::min()).mul(0.5).min().item<float>();
      CHECK(at::get_num_threads() == 1);
    }
    after = at::get_num_threads();
  }}.join();
  CHECK(inside == 1);
  CHECK(after == before);
  CHECK(started_later == before);
  CHECK(at::get_num_threads() == before);
  CHECK(denormal == std::numeric_limits<float>::min() / 2);
}

}  // namespace
}  // namespace troupe
