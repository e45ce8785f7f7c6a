// Goal: batch norm over copies of a module equals batch norm over the whole batch.
#include "backends/torch/lane_thread.hpp"
#include "tests/unit/torch_replicated/norm_models.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const user_error& e) {
    return e.what();
  }
  return "nothing";
}

/// One of LibTorch's batch norms that is not converted, and a copied and converted one.
struct pair_of_nets {
  pair_of_nets(std::int64_t dims, const torch::nn::BatchNormOptions& how, std::size_t copies)
      : whole(std::make_shared<norm_net>(dims, how)),
        parts(std::make_shared<norm_net>(dims, how)),
        parallel(parts, {.device_ids = std::vector<c10::Device>(copies, cpu)}) {
    whole->to(at::kDouble);
    parts->to(at::kDouble);
    if (convert_sync_batch_norm(*parts) != 2) throw std::logic_error("two batch norms");
  }

  /// Empty if one step with `x` gives the same outputs, gradients and state.
  std::string differ(const at::Tensor& x, double most = 1e-9) {
    auto mine = x.clone().requires_grad_(), other = x.clone().requires_grad_();
    whole->zero_grad();
    parts->zero_grad();
    const auto expected = whole->forward(mine), got = parallel(other);
    const auto target = torch::linspace(-1, 1, x.numel(), at::kDouble).view(x.sizes());
    loss_of(expected, target).backward();
    loss_of(got, target).backward();
    auto a = tensors_of(*whole), b = tensors_of(*parts);
    a["output"] = expected, b["output"] = got;
    a["input.grad"] = mine.grad(), b["input.grad"] = other.grad();
    return difference(b, a, most);
  }

  std::shared_ptr<norm_net> whole, parts;
  replicated<norm_net> parallel;
};

}  // namespace

TEST_CASE("synchronised batch norm of copies equals batch norm over the whole batch") {
  // LibTorch's threads wait actively for each other, which takes minutes on a loaded machine.
  const lane_thread one_thread;
  torch::manual_seed(5);
  const auto dims = GENERATE(1, 2, 3);
  const auto copies = GENERATE(2, 3);
  const auto momentum = GENERATE(std::optional<double>{0.1}, std::optional<double>{});
  const bool affine = GENERATE(true, false), tracked = GENERATE(true, false);
  const auto how =
      torch::nn::BatchNormOptions(4).momentum(momentum).affine(affine).track_running_stats(tracked);
  pair_of_nets nets{dims, how, static_cast<std::size_t>(copies)};
  CAPTURE(dims, copies, affine, tracked, momentum.has_value());
  // Uneven chunks; one sample in the last chunk; as many as copies; fewer chunks than copies.
  for (const std::int64_t rows : {7, 5, 3, 2, 4, 6}) CHECK(nets.differ(samples(dims, rows)) == "");
  nets.whole->eval();
  nets.parts->eval();
  if (tracked) {
    CHECK(nets.differ(samples(dims, 5)) == "");
    CHECK(nets.differ(samples(dims, 1)) == "");
  }
  // An evaluation, then a training batch with fewer chunks.
  nets.whole->train();
  nets.parts->train();
  CHECK(nets.differ(samples(dims, 2)) == "");
}

TEST_CASE("synchronised batch norm: a batch of one value per channel is an error in every copy") {
  pair_of_nets nets{1, torch::nn::BatchNormOptions(4), 2};
  CHECK_THROWS(nets.whole->forward(samples(1, 1)));
  CHECK_THROWS(nets.parallel(samples(1, 1)));
  // Two empty chunks.
  CHECK(error_of([&] { nets.parallel(samples(1, 0)); }).find("more than one value") !=
        std::string::npos);
  CHECK(nets.parallel(samples(1, 2)).isfinite().all().item<bool>());
}

TEST_CASE("synchronised batch norm: a mean that is large against the deviation keeps its digits") {
  torch::manual_seed(6);
  sync_batch_norm layer{sync_batch_norm_options{.norm = torch::nn::BatchNormOptions(2)}};
  replicated parallel{layer.ptr(), replication_options{.device_ids = {cpu, cpu, cpu}}};
  const auto x = torch::randn({300, 2}) + 4096;
  const auto y = parallel(x).to(at::kDouble);
  const auto wide = x.to(at::kDouble);
  const auto expected = (wide - wide.mean(0)) / (wide.var(0, false) + 1e-5).sqrt();
  CHECK((y - expected).abs().max().item<double>() < 2e-3);
  CHECK(layer->running_var.allclose(0.9 + 0.1 * wide.var(0, true).to(at::kFloat), 1e-5));
}

TEST_CASE("synchronised batch norm with clamp takes the larger of variance and eps") {
  torch::manual_seed(7);
  const auto options = sync_batch_norm_options{.norm = torch::nn::BatchNormOptions(3).eps(0.5),
                                               .dims = 1,
                                               .eps_mode = batch_norm_eps::clamp};
  sync_batch_norm layer{options};
  layer->to(at::kDouble);
  replicated parallel{layer.ptr(), replication_options{.device_ids = {cpu, cpu}}};
  auto x = torch::randn({5, 3}, at::kDouble).mul_(torch::tensor({0.1, 1.0, 4.0}));
  x.requires_grad_();
  const auto expected = (x - x.mean(0)) * x.var(0, false).clamp_min(0.5).rsqrt();
  const auto target = torch::linspace(0, 2, 15, at::kDouble).view({5, 3});
  const auto wanted = torch::autograd::grad({loss_of(expected, target)}, {x})[0];
  const auto got = parallel(x);
  CHECK(got.allclose(expected));
  CHECK(torch::autograd::grad({loss_of(got, target)}, {x})[0].allclose(wanted));
  CHECK_THROWS_AS(parallel(torch::zeros({4, 3, 2, 2}, at::kDouble)), user_error);
  CHECK_THROWS_AS(parallel(torch::zeros({4, 2}, at::kDouble)), user_error);
}

TEST_CASE("synchronised batch norm: a copy that fails ends the others' wait") {
  struct failing : torch::nn::Cloneable<failing> {
    failing() { failing::reset(); }
    void reset() override {
      norm = register_module(
          "norm", sync_batch_norm(sync_batch_norm_options{torch::nn::BatchNormOptions(1)}));
    }
    at::Tensor forward(const at::Tensor& x) {
      if (x[0].item<float>() < 0) throw std::runtime_error("negative");
      return norm->forward(x);
    }
    sync_batch_norm norm{nullptr};
  };
  replicated parallel{std::make_shared<failing>(), replication_options{.device_ids = {cpu, cpu}}};
  const auto x = torch::tensor({{1.F}, {-1.F}});
  try {
    parallel(x);
    FAIL("no exception");
  } catch (const copy_failed& e) {
    CHECK(std::string{e.what()} == "copy 1 of 2 on cpu: negative");
  }
  CHECK(parallel(-x.abs().neg()).defined());
}

TEST_CASE("a converted module keeps names, state and modes, and its clone is not converted") {
  norm_net net{2, torch::nn::BatchNormOptions(4)};
  const auto before = tensors_of(net);
  const auto parameters = net.parameters();
  CHECK(convert_sync_batch_norm(net) == 2);
  CHECK(convert_sync_batch_norm(net) == 0);
  CHECK(difference(tensors_of(net), before, 0) == "");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    CHECK(net.parameters()[i].is_same(parameters[i]));
  net.eval();
  CHECK_FALSE(net.two->is_training());
  CHECK(std::dynamic_pointer_cast<sync_batch_norm_impl>(net.named_children()["norm"]));
  const auto copy = std::dynamic_pointer_cast<norm_net>(net.clone());
  CHECK(difference(tensors_of(*copy), before, 0) == "");
  CHECK(std::dynamic_pointer_cast<torch::nn::BatchNorm2dImpl>(copy->named_children()["norm"]));
  torch::nn::BatchNorm1d alone{4};
  CHECK_THROWS_AS(convert_sync_batch_norm(*alone), user_error);
}
