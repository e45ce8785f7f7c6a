// Goal: batch norm over the ranks of a job equals batch norm of one process over the joined batch.
#include "tests/support/rank_threads.hpp"
#include "tests/unit/torch_replicated/norm_models.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct rank_result {
  at::Tensor output, input_grad;
  named_tensors state;
};

at::Tensor targets_of(const at::Tensor& x) {
  return torch::linspace(-1, 1, x.numel(), at::kDouble).view(x.sizes());
}

rank_result one_step(norm_net& net, const at::Tensor& x, const at::Tensor& target) {
  auto mine = x.clone().requires_grad_();
  const auto y = net.forward(mine);
  loss_of(y, target).backward();
  return {y.detach(), mine.grad(), tensors_of(net)};
}

struct split {
  std::vector<std::int64_t> rows;  ///< by rank
  std::vector<subgroup> groups;    ///< by rank; empty: one group
};

/// Two steps of every rank with its part of `x`; the results of the second.
std::vector<rank_result> on_parts(std::int64_t dims, const split& how, const at::Tensor& x,
                                  bool members_only = false) {
  const auto world = static_cast<std::int32_t>(how.rows.size());
  const auto target = targets_of(x);
  std::vector<rank_result> results(how.rows.size());
  const auto errors = on_ranks(world, [&](std::int32_t rank, const auto& group) {
    std::int64_t first = 0;
    subgroup with_samples;
    for (std::int32_t r = 0; r < world; ++r) {
      if (r < rank) first += how.rows[r];
      if (how.rows[r] > 0) with_samples.ranks.push_back(r);
    }
    if (members_only && how.rows[rank] == 0) return;
    norm_net net{dims, torch::nn::BatchNormOptions(4)};
    net.to(at::kDouble);
    convert_sync_batch_norm(net, {.among = how.groups.empty() ? subgroup{} : how.groups.at(rank)});
    const sync_batch_norm_scope scope{net, group, members_only ? with_samples : subgroup{}};
    const auto mine = x.narrow(0, first, how.rows[rank]);
    const auto wanted = target.narrow(0, first, how.rows[rank]);
    one_step(net, mine, wanted);
    net.zero_grad();
    results[rank] = one_step(net, mine, wanted);
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  return results;
}

rank_result by_one_process(std::int64_t dims, const at::Tensor& x, const at::Tensor& target) {
  norm_net net{dims, torch::nn::BatchNormOptions(4)};
  net.to(at::kDouble);
  one_step(net, x, target);
  net.zero_grad();
  return one_step(net, x, target);
}

/// Empty if the ranks' results, joined, are those of one process.
std::string joined_difference(const std::vector<rank_result>& ranks, const rank_result& whole) {
  std::vector<at::Tensor> outputs, gradients;
  named_tensors sums;
  for (const auto& one : ranks) {
    outputs.push_back(one.output);
    gradients.push_back(one.input_grad);
    for (const auto& [name, tensor] : one.state) {
      const bool gradient = name.ends_with(".grad");
      const auto [known, fresh] = sums.try_emplace(name, tensor.clone());
      if (fresh) continue;
      if (gradient)
        known->second.add_(tensor);
      else if (!known->second.equal(tensor))
        return name + " is not the same on all ranks";
    }
  }
  auto expected = whole.state;
  expected["output"] = whole.output, sums["output"] = torch::cat(outputs);
  expected["input.grad"] = whole.input_grad, sums["input.grad"] = torch::cat(gradients);
  return difference(sums, expected, 1e-9);
}

}  // namespace

TEST_CASE("synchronised batch norm of ranks equals one process over the joined batch") {
  torch::manual_seed(9);
  const auto dims = GENERATE(1, 2, 3);
  const auto rows = GENERATE(std::vector<std::int64_t>{3, 2}, std::vector<std::int64_t>{1, 4, 1},
                             std::vector<std::int64_t>{2, 0, 3}, std::vector<std::int64_t>{0, 4});
  std::int64_t all = 0;
  for (const auto one : rows) all += one;
  const auto x = samples(dims, all);
  CHECK(joined_difference(on_parts(dims, {rows, {}}, x), by_one_process(dims, x, targets_of(x))) ==
        "");
}

TEST_CASE("synchronised batch norm: ranks outside the members take no part") {
  torch::manual_seed(10);
  const auto x = samples(2, 5);
  auto ranks = on_parts(2, {{2, 0, 3}, {}}, x, /*members_only=*/true);
  ranks.erase(ranks.begin() + 1);
  CHECK(joined_difference(ranks, by_one_process(2, x, targets_of(x))) == "");
}

TEST_CASE("synchronised batch norm of sub-groups: each group is a batch of its own") {
  torch::manual_seed(11);
  const auto x = samples(1, 8);
  const subgroup outer{{0, 2}}, inner{{1, 3}};
  const auto ranks = on_parts(1, {{3, 1, 2, 2}, {outer, inner, outer, inner}}, x);
  const auto target = targets_of(x);
  const auto rows = [&](const at::Tensor& t, bool of_outer) {
    const auto parts = t.split_with_sizes({3, 1, 2, 2});
    return of_outer ? torch::cat({parts[0], parts[2]}) : torch::cat({parts[1], parts[3]});
  };
  CHECK(joined_difference({ranks[0], ranks[2]},
                          by_one_process(1, rows(x, true), rows(target, true))) == "");
  CHECK(joined_difference({ranks[1], ranks[3]},
                          by_one_process(1, rows(x, false), rows(target, false))) == "");
}

TEST_CASE("synchronised batch norm: equal runs give equal bits, of ranks and of copies") {
  torch::manual_seed(12);
  const auto x = samples(2, 7).to(at::kFloat).to(at::kDouble);
  const auto first = on_parts(2, {{3, 3, 1}, {}}, x), second = on_parts(2, {{3, 3, 1}, {}}, x);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(first[rank].output.equal(second[rank].output));
    CHECK(first[rank].input_grad.equal(second[rank].input_grad));
    CHECK(difference(first[rank].state, second[rank].state, 0) == "");
  }
  const auto net = std::make_shared<norm_net>(2, torch::nn::BatchNormOptions(4));
  net->to(at::kDouble);
  convert_sync_batch_norm(*net);
  replicated parallel{net, replication_options{.device_ids = {cpu, cpu, cpu}}};
  parallel(x);
  const auto output = parallel(x).detach().split_with_sizes({3, 3, 1});
  for (std::size_t rank = 0; rank < 3; ++rank) CHECK(first[rank].output.equal(output[rank]));
  CHECK(first[0].state.at("norm.running_var").equal(net->two->running_var));
}

TEST_CASE("synchronised batch norm over copies of several ranks joins all of them") {
  torch::manual_seed(13);
  const auto x = samples(1, 9), target = targets_of(x);
  std::vector<rank_result> ranks(2);
  const auto errors = on_ranks(2, [&](std::int32_t rank, const auto& group) {
    const auto net = std::make_shared<norm_net>(1, torch::nn::BatchNormOptions(4));
    net->to(at::kDouble);
    convert_sync_batch_norm(*net);
    const sync_batch_norm_scope scope{*net, group};
    replicated parallel{net, replication_options{.device_ids = {cpu, cpu}}};
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      auto mine = x.narrow(0, rank * 5, 5 - rank).clone().requires_grad_();
      const auto y = parallel(mine);
      loss_of(y, target.narrow(0, rank * 5, 5 - rank)).backward();
      ranks[rank] = {y.detach(), mine.grad(), tensors_of(*net)};
    }
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  CHECK(joined_difference(ranks, by_one_process(1, x, target)) == "");
}

TEST_CASE("synchronised batch norm: one value per channel on all ranks together is an error") {
  const auto errors = on_ranks(2, [](std::int32_t rank, const auto& group) {
    norm_net net{1, torch::nn::BatchNormOptions(4)};
    convert_sync_batch_norm(net);
    const sync_batch_norm_scope scope{net, group};
    net.forward(torch::ones({rank, 4}));
  });
  for (const auto& error : errors)
    CHECK(text_of(error).find("more than one value per channel") != std::string::npos);
}

TEST_CASE("synchronised batch norm: without a scope a converted module is LibTorch's") {
  torch::manual_seed(14);
  const auto x = samples(3, 4), target = targets_of(x);
  norm_net net{3, torch::nn::BatchNormOptions(4)};
  net.to(at::kDouble);
  convert_sync_batch_norm(net);
  {
    const sync_batch_norm_scope scope{net};
    net.eval();
    net.train();
  }
  one_step(net, x, target);
  net.zero_grad();
  const auto got = one_step(net, x, target), expected = by_one_process(3, x, target);
  CHECK(got.output.equal(expected.output));
  CHECK(difference(got.state, expected.state, 0) == "");
}

namespace {

struct synchronised_regression : regression {
  explicit synchronised_regression(choices how) : regression(std::move(how)) {
    convert_sync_batch_norm(*this);
  }
};

}  // namespace

TEST_CASE("a fit with synchronised batch norm has the weights of one process") {
  // Batches of 9, 9 and 2 samples: in the last one two ranks have one sample, the third has none.
  const auto data = std::make_shared<table_data>(20);
  const auto options = quick(3, 3, 9);
  regression_choices how;
  how.batch_norm = true;
  const auto got = trained<synchronised_regression>(options, data, how);
  const auto expected = by_hand<regression>(options, *data, how);
  // A deviation of two samples may be small, and then enlarges the rounding of float32.
  CHECK(distance(got, expected) < 2e-4);
  // Statistics of each rank's own samples would give other weights.
  const auto even = quick(3, 3, 2);
  CHECK(distance(trained<regression>(even, data, how), by_hand<regression>(even, *data, how)) >
        1e-3);
  CHECK(distance(trained<synchronised_regression>(options, data, how), got) == 0);
}

namespace {

/// Changes its batch norm through the Sequential, and freezes it in the second epoch.
template <class Module>
struct freezing : Module {
  explicit freezing(regression_choices how) : Module(std::move(how)) {}
  void on_train_epoch_start(std::int64_t epoch) override {
    const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(this->net->ptr(1));
    norm->options.momentum(0.5).eps(0.1);
    if (epoch == 1) norm->eval();
  }
};

}  // namespace

TEST_CASE("synchronised batch norm follows what its user sets on the batch norm") {
  const auto data = std::make_shared<table_data>(18, 4, 6);
  regression_choices how;
  how.batch_norm = true;
  const auto of = [](std::int32_t ranks) { return quick(ranks, 9 / ranks, 8); };  // 4 epochs
  const auto expected = trained<freezing<regression>>(of(1), data, how);
  CHECK(distance(trained<freezing<synchronised_regression>>(of(3), data, how), expected) < 1e-5);
  CHECK(distance(trained<freezing<synchronised_regression>>(of(1), data, how), expected) < 1e-5);
  CHECK(distance(trained<regression>(of(1), data, how), expected) > 1e-3);
}

TEST_CASE("a fit with unequal counts and synchronised batch norm has one process's weights") {
  // Batches of 9, 9 and 5 samples: the last one is 2, 2 and 1.
  const auto data = std::make_shared<table_data>(23);
  const auto options = quick(3, 3, 6);
  regression_choices how;
  how.batch_norm = true;
  const auto got = trained<synchronised_regression>(options, data, how);
  CHECK(distance(got, by_hand<regression>(options, *data, how)) < 1e-5);
}
