// Goal: the reducer sums gradients correctly without a strategy around it: gradients that users
// replaced by views, gradients that stay where autograd put them, and a second generation.
#include "troupe/detail/reducer.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::vector<reducer::parameter> named(const std::vector<at::Tensor>& tensors) {
  std::vector<reducer::parameter> all;
  for (const auto& one : tensors) all.push_back({std::to_string(all.size()), one});
  return all;
}

at::Tensor square(std::int32_t rank, double scale) {
  return torch::arange(1, 5, at::kFloat).view({2, 2}).mul(scale * (1 + 10 * rank));
}

/// Every gradient stays where autograd put it, or none does.
reducer_options with_staying(bool stays) {
  reducer_options options;
  options.stays_from_bytes = stays ? 0 : 1 << 30;
  return options;
}

struct grad_view {
  const char* name;
  at::Tensor (*of)(const at::Tensor&);
};

}  // namespace

TEST_CASE("a .grad replaced by a view of its bucket is summed as the user sees it") {
  const auto view = GENERATE(grad_view{"transposed", [](const at::Tensor& g) { return g.t(); }},
                             grad_view{"its first row twice",
                                       [](const at::Tensor& g) {
                                         return g[0].expand({2, 2});
                                       }},
                             grad_view{"its second row twice", [](const at::Tensor& g) {
                                         return g[1].expand({2, 2});
                                       }});
  const bool stays = GENERATE(false, true);
  CAPTURE(view.name, stays);
  std::vector<at::Tensor> sums(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& world) {
    const auto p = torch::ones({2, 2}).requires_grad_();
    const auto q = torch::ones({2, 2}).requires_grad_();
    reducer gradients{named({p, q}), world, with_staying(stays)};
    gradients.zero(0);
    (p * square(rank, 1)).sum().backward();
    p.mutable_grad() = view.of(p.grad());
    const auto loss = (q * square(rank, 1)).sum();
    gradients.begin({.mine = {}, .loss = loss});
    loss.backward();
    gradients.finish();
    sums[rank] = p.grad().clone();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  for (const auto& sum : sums) CHECK(sum.equal(view.of(square(0, 1)) + view.of(square(1, 1))));
}

TEST_CASE("a new gradient is added to a .grad that the user transposed") {
  const bool stays = GENERATE(false, true);
  std::vector<at::Tensor> sums(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& world) {
    const auto p = torch::ones({2, 2}).requires_grad_();
    reducer gradients{named({p}), world, with_staying(stays)};
    gradients.zero(0);
    (p * square(rank, 1)).sum().backward();
    p.mutable_grad() = p.grad().t();
    const auto loss = (p * square(rank, 100)).sum();
    gradients.begin({.mine = {}, .loss = loss});
    loss.backward();
    gradients.finish();
    sums[rank] = p.grad().clone();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  for (const auto& sum : sums)
    CHECK(sum.equal(square(0, 1).t() + square(0, 100) + square(1, 1).t() + square(1, 100)));
}

namespace {

/// Losses for which autograd lets gradients share memory.
struct sharing_loss {
  const char* name;
  at::Tensor (*of)(const at::Tensor& p, const at::Tensor& q);
};

}  // namespace

TEST_CASE("a large gradient is summed in place where autograd put it") {
  constexpr std::int64_t side = 400;  // 640,000 bytes: large enough by default
  std::vector<at::Tensor> sums(2);
  std::vector<void*> before(2), behind(2);
  std::vector<reducer::figures> seen(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& world) {
    const auto p = torch::ones({side, side}).requires_grad_();
    const auto small = torch::ones({side}).requires_grad_();
    reducer gradients{named({small, p}), world};
    for (int step = 0; step < 3; ++step) {
      gradients.zero(0);
      (p * (rank + 1)).sum().backward();  // a micro-batch that ends no step
      const auto loss = (p.mv(small) * (rank + 10)).sum();
      gradients.begin({.mine = {step == 1 && rank == 1, 2.5}, .loss = loss});
      loss.backward();
      before[rank] = p.grad().data_ptr();
      const auto word = gradients.finish();
      behind[rank] = p.grad().data_ptr();
      if (word.stop != (step == 1) || word.loss != 5)
        throw std::runtime_error("a wrong step result");
    }
    sums[rank] = p.grad().clone();
    seen[rank] = gradients.seen();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  CHECK(before == behind);
  for (const auto& sum : sums) CHECK(sum.equal(torch::full({side, side}, 1 + 2 + 10 + 11)));
  for (const auto& one : seen) {
    CHECK(one.stayed == 3);
    CHECK(one.replaced == 0);
    CHECK(one.buckets == std::vector<std::size_t>{1, 1});
  }
}

TEST_CASE("gradients that share memory are summed separately") {
  const auto loss_of = GENERATE(
      sharing_loss{
          "two views, added",
          [](const at::Tensor& p, const at::Tensor& q) { return p.view({4}) + q.view({4}); }},
      sharing_loss{"side by side",
                   [](const at::Tensor& p, const at::Tensor& q) {
                     return torch::cat({p, q});
                   }},
      sharing_loss{"what backward began at", [](const at::Tensor& p, const at::Tensor& q) {
                     return torch::cat({p.view({4}), q.view({4})});
                   }});
  const bool elsewhere = GENERATE(false, true);  // another pass sums the gradients
  CAPTURE(loss_of.name, elsewhere);
  std::vector<at::Tensor> grads(4);
  std::vector<bool> shared(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& world) {
    const auto p = torch::ones({2, 2}).requires_grad_();
    const auto q = torch::ones({2, 2}).requires_grad_();
    auto options = with_staying(true);
    options.summed_elsewhere = elsewhere ? 1 : 0;
    reducer gradients{named({p, q}), world, options};
    gradients.zero(0);
    const auto y = loss_of.of(p, q);
    const auto slope = torch::full_like(y, rank + 1.0);
    gradients.begin({.mine = {}, .loss = y});
    y.backward(slope);
    gradients.finish();
    shared[rank] = p.grad().is_alias_of(q.grad()) || p.grad().is_alias_of(slope) ||
                   !slope.equal(torch::full_like(y, rank + 1.0));
    grads[2 * rank] = p.grad().clone();
    grads[2 * rank + 1] = q.grad().clone();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  CHECK(shared == std::vector<bool>(2));
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(grads[i].equal(torch::full({2, 2}, elsewhere ? 1.0 + static_cast<double>(i / 2) : 3.0)));
}

TEST_CASE("a rank without a gradient for a parameter contributes zeros") {
  std::vector<at::Tensor> grads(4);
  const auto errors = on_ranks(2, [&](auto rank, const auto& world) {
    const auto p = torch::ones({2, 2}).requires_grad_();
    const auto q = torch::ones({2, 2}).requires_grad_();
    const auto nobodys = torch::ones({2, 2}).requires_grad_();
    reducer_options options;
    options.summed_elsewhere = 1;
    reducer gradients{named({p, q, nobodys}), world, options};
    for (int step = 0; step < 2; ++step) {
      gradients.zero(0);
      const auto loss = (rank == 0 ? p * 3 : p * 4 + q * 5).sum();
      gradients.begin({.mine = {}, .loss = loss});
      loss.backward();
      gradients.finish();
    }
    if (nobodys.grad().defined()) throw std::runtime_error("a gradient that no rank computed");
    if (!gradients.seen().buckets.empty()) throw std::runtime_error("an unneeded bucket");
    grads[2 * rank] = p.grad();
    grads[2 * rank + 1] = q.grad();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  const double wanted[] = {3, 0, 4, 5};
  for (std::size_t i = 0; i < 4; ++i) CHECK(grads[i].equal(torch::full({2, 2}, wanted[i])));
}

namespace {

/// Four parameters with a bucket each. Backward reaches them from the last to the first.
struct chain {
  std::vector<at::Tensor> parameters;
  chain() {
    for (int i = 0; i < 4; ++i) parameters.push_back(torch::full({5}, 1.0).requires_grad_());
  }
  /// The gradient of parameter i is (i + 1) * weight. `middle` is called after the gradients of 3
  /// and 2 and before those of 1 and 0.
  at::Tensor loss(double weight, std::size_t used, const std::function<void()>& middle = {}) const {
    auto y = torch::zeros({5});
    for (std::size_t i = 0; i < used; ++i) {
      y = y + parameters[i] * (weight * (static_cast<double>(i) + 1));
      if (i == 1 && middle) y.register_hook([middle](const at::Tensor&) { middle(); });
    }
    return y.sum();
  }
};

void one_step(reducer& gradients, const at::Tensor& loss) {
  gradients.zero(0);
  gradients.begin({.mine = {}, .loss = loss});
  loss.backward();
  gradients.finish();
}

}  // namespace

TEST_CASE("backward fails: a smaller generation uses no gradient of the failed generation") {
  const auto lost = GENERATE(0, 2);
  const auto steps_before = GENERATE(0, 2);  // 0: in the first step, before the buckets are rebuilt
  const bool stays = GENERATE(false, true);
  CAPTURE(lost, steps_before, stays);
  auto bucket_each = with_staying(stays);
  bucket_each.first_bucket_bytes = 1;
  bucket_each.bucket_bytes = 1;
  std::array<chain, 3> ranks;
  const auto errors = on_ranks(3, [&](auto rank, const auto& world) {
    auto& mine = ranks[static_cast<std::size_t>(rank)];
    reducer gradients{named(mine.parameters), world, bucket_each};
    for (int i = 0; i < steps_before; ++i) one_step(gradients, mine.loss(rank + 1, 4));
    gradients.zero(0);
    const auto loss = mine.loss(1000.0 * (rank + 1), 4, [&] {
      if (rank == lost) throw std::runtime_error("lost");
    });
    gradients.begin({.mine = {}, .loss = loss});
    try {
      loss.backward();
    } catch (...) {
      gradients.abandon();
      throw;
    }
    gradients.finish();
  });
  std::vector<chain*> left;
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(
        text_of(errors[rank])
            .starts_with(rank == lost ? "std::runtime_error: lost" : "troupe::generation_closed"));
    if (rank != lost) left.push_back(&ranks[rank]);
  }
  std::vector<std::vector<at::Tensor>> stale(2), kept(2);
  for (std::size_t i = 0; i < 2; ++i)
    for (const auto& one : left[i]->parameters) {
      stale[i].push_back(one.grad());
      kept[i].push_back(one.grad().defined() ? one.grad().clone() : at::Tensor{});
    }
  REQUIRE(stale[0][3].defined());

  const auto later = on_ranks(2, [&](auto rank, const auto& world) {
    auto& mine = *left[static_cast<std::size_t>(rank)];
    reducer gradients{named(mine.parameters), world, bucket_each};
    for (int step = 0; step < 3; ++step) {
      one_step(gradients, mine.loss(step + 10.0 * (rank + 1), 3));
      for (std::size_t i = 0; i < 3; ++i)
        if (!mine.parameters[i].grad().equal(torch::full({5}, (2.0 * step + 30) * (i + 1.0))))
          throw std::runtime_error("a wrong sum");
      if (mine.parameters[3].grad().defined())
        throw std::runtime_error("a gradient of generation 1");
    }
    if (gradients.seen().replaced != 0) throw std::runtime_error("a gradient outside its bucket");
  });
  for (const auto& error : later) CHECK(text_of(error) == "nothing");
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t p = 0; p < 4; ++p)
      if (stale[i][p].defined()) CHECK(stale[i][p].equal(kept[i][p]));
}
