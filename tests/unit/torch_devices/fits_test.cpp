// Goal: whole fits on a device that computes late end in the bits of fits on the CPU. A wait that
// Troupe forgets, or memory of the device that it reads as if it were the host's, fails here.
#include "backends/torch/classifier.hpp"
#include "backends/torch/lane_thread.hpp"
#include "tests/support/late_device.hpp"
#include "tests/unit/torch_replicated/norm_models.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/replicated.hpp"
#include "troupe/synthetic.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Holds one checkpoint in memory.
struct kept_checkpoint : checkpoint_io {
  explicit kept_checkpoint(snapshot_ptr what) : kept(std::move(what)) {}
  std::vector<checkpoint_file> encode(const snapshot&) const override { return {}; }
  std::string commit_file() const override { return "none"; }
  checkpoint_facts facts(std::span<const std::byte>, const std::string&) const override {
    return {};
  }
  snapshot read(const std::string&) const override { return *kept; }
  void remove(const std::string&) const override {}
  found_checkpoint latest(const std::string&) const override { return {}; }
  snapshot_ptr kept;
};

torch_plugins with_late() {
  torch_plugins plugins;
  plugins.accelerators["late"] = late_accelerator;
  return plugins;
}

trainer_options fit_options(std::int32_t ranks, std::int64_t steps) {
  auto options = quick(ranks, 8, steps);
  options.limit_val_batches = std::int64_t{2};
  return options;
}

trainer_options on_late(trainer_options options, std::vector<std::int32_t> indices) {
  options.accelerator = own_name{"late"};
  options.devices.indices = std::move(indices);
  return options;
}

struct choices {
  std::string model = "mlp";
  std::string optimizer = "sgd";
  double dropout = 0;
};

recipe_ptr classifying(const choices& how, const snapshot_ptr& from = nullptr) {
  auto plugins = with_late();
  if (from) plugins.checkpoints = std::make_shared<kept_checkpoint>(from);
  classifier_options options;
  options.model = how.model;
  options.optimizer = how.optimizer;
  options.layers.hidden = {32, 16};
  options.layers.dropout = how.dropout;
  return recipe_for<classifier>(plugins, synthetic({.samples = 200, .evaluation = 40}), options);
}

rank_end fitted(const recipe_ptr& recipe, const trainer_options& options,
                const std::string& resume = {}) {
  late_accelerator();  // LibTorch's autograd counts the devices at the first backward of a process
  return run_good_job({.recipe = recipe, .options = options, .resume = resume})[0];
}

}  // namespace

TEST_CASE("late device: forward and backward have the bits of the CPU") {
  late_accelerator();
  const lane_thread alone;
  rank_random draws{5};
  const random_scope scope{draws};
  namespace nn = torch::nn;
  nn::Sequential net{nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)),
                     nn::ReLU(),
                     nn::MaxPool2d(2),
                     nn::Flatten(),
                     nn::Linear(4 * 4 * 4, 8),
                     nn::Tanh(),
                     nn::Linear(8, 3)};
  const auto x = torch::randn({6, 1, 8, 8});
  const auto labels = torch::tensor({0, 1, 2, 0, 1, 2});
  const auto run = [&](c10::Device device) {
    net->to(device);
    net->zero_grad();
    const auto loss = nn::functional::cross_entropy(net->forward(x.to(device)), labels.to(device));
    loss.backward();
    std::vector<at::Tensor> all{loss.to(at::kCPU)};
    for (const auto& one : net->parameters()) all.push_back(one.grad().to(at::kCPU));
    return all;
  };
  const auto expected = run(at::kCPU);
  const auto got = run(late_device(1));
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(at::equal(got[i], expected[i]));
}

TEST_CASE("fits on two late devices end in the bits of the CPU") {
  const auto how = GENERATE(choices{"mlp", "sgd"}, choices{"mlp", "adamw"}, choices{"cnn", "sgd"});
  CAPTURE(how.model, how.optimizer);
  const auto options = fit_options(2, 6);
  const auto expected = fitted(classifying(how), options);
  const auto got = fitted(classifying(how), on_late(options, {0, 2}));
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
  CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) == 0);
  CHECK(got.loop.samples == expected.loop.samples);
}

TEST_CASE("a fit on one late device, with clipping and accumulation, has the bits of the CPU") {
  auto options = fit_options(1, 4);
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 0.1;
  const auto expected = fitted(classifying({}), options);
  const auto got = fitted(classifying({}), on_late(options, {1}));
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
}

TEST_CASE("batches that a loader copies to a late device ahead have the bits of the CPU") {
  struct ahead : table_data {
    using table_data::table_data;
    data_loading loading(stage, std::int32_t) override { return {.device_prefetch = 2}; }
  };
  auto options = quick(2, 4, 12);
  options.num_sanity_val_steps = 1;
  const auto expected =
      fitted(recipe_for<regression>(std::make_shared<table_data>(40, 4, 12)), options);
  const auto recipe = recipe_for<regression>(with_late(), std::make_shared<ahead>(40, 4, 12));
  const auto got = fitted(recipe, on_late(options, {0, 1}));
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
}

TEST_CASE("buckets of a late device: any exchange has the bits of the CPU") {
  auto options = fit_options(2, 4);
  const auto vary = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(vary);
  if (vary == 0) options.gradients.overlap = false;
  if (vary == 1) options.gradients.bucket_cap_mb = 0.001;
  if (vary == 2) options.gradients.comm_hook = "bf16_compress";
  if (vary == 3) {
    options.gradients.comm_hook = "powersgd";
    options.gradients.powersgd.start_step = 1;
  }
  if (vary == 4) options.gradients.find_unused_parameters = true;
  const auto expected = fitted(classifying({}), options);
  const auto got = fitted(classifying({}), on_late(options, {0, 1}));
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
}

TEST_CASE("a checkpoint of one accelerator is resumed on the other, to the same bits") {
  const auto options = fit_options(2, 6);
  const auto late = on_late(options, {0, 1});
  const choices how{"mlp", "adamw"};
  const auto whole = fitted(classifying(how), options);
  auto half = options;
  half.max_steps = 3;
  const auto of_cpu = fitted(classifying(how), half).snapshot;
  const auto of_late = fitted(classifying(how), on_late(half, {0, 1})).snapshot;
  CHECK(of_cpu->weights_digest == of_late->weights_digest);
  const auto here = fitted(classifying(how, of_late), options, "here").snapshot;
  const auto there = fitted(classifying(how, of_cpu), late, "here").snapshot;
  CHECK(here->weights_digest == whole.snapshot->weights_digest);
  CHECK(there->weights_digest == whole.snapshot->weights_digest);
}

TEST_CASE("dropout on late devices: the same fit draws the same numbers") {
  const auto options = on_late(fit_options(2, 3), {0, 1});
  const auto once = fitted(classifying({.dropout = 0.5}), options).snapshot->weights_digest;
  CHECK(fitted(classifying({.dropout = 0.5}), options).snapshot->weights_digest == once);
  CHECK(fitted(classifying({}), options).snapshot->weights_digest != once);
}

TEST_CASE("true precisions and predictions on a late device are those of the CPU") {
  auto options = fit_options(2, 2);
  options.precision = precision_kind::f64_true;
  const auto expected = fitted(classifying({}), options);
  CHECK(fitted(classifying({}), on_late(options, {0, 1})).snapshot->weights_digest ==
        expected.snapshot->weights_digest);
  const auto predicted = [&](const trainer_options& how) {
    return run_good_job({.recipe = classifying({}), .options = how, .purpose = stage::predict})[0]
        .result;
  };
  const auto here = tensors_of(predicted(options)),
             there = tensors_of(predicted(on_late(options, {1, 2})));
  REQUIRE(here.size() == there.size());
  REQUIRE_FALSE(here.empty());
  for (std::size_t i = 0; i < here.size(); ++i) CHECK(at::equal(here[i], there[i]));
}

TEST_CASE("collectives of a strategy on late devices return what they return on the CPU") {
  struct asking : regression {
    void on_train_start() override {
      auto& how = *strategy_in_use();
      const auto device = how.root_device();
      const auto mine = at::full({3}, how.rank() + 1.0).to(device);
      const auto sum = unboxed(how.reduce(boxed(mine), "sum"));
      expect(sum.device() == device && sum.sum().item<double>() == 9);
      const auto all = unboxed(how.all_gather(boxed(mine)));
      expect(all.device() == device && all.sum().item<double>() == 9);
      const auto sent = unboxed(how.broadcast(boxed(mine), 1));
      expect(sent.sum().item<double>() == 6);
    }
  };
  auto plugins = with_late();
  const auto recipe = recipe_for<asking>(plugins, std::make_shared<table_data>(40));
  CHECK_NOTHROW(run_good_job({.recipe = recipe, .options = on_late(fit_options(2, 1), {0, 1})}));
}

TEST_CASE("batch norms on late devices have the statistics of the CPU") {
  const regression_choices how{.batch_norm = true};
  const auto data = std::make_shared<table_data>(64);
  const auto recipe = recipe_for<regression>(with_late(), data, how);
  const auto options = fit_options(2, 4);
  const auto expected = fitted(recipe, options).snapshot;
  const auto got = fitted(recipe, on_late(options, {0, 1})).snapshot;
  CHECK(distance(weights_of(got), weights_of(expected)) < 1e-7);  // 0 was not reached: 1.5e-8
}

TEST_CASE("copies on two late devices equal the module on the CPU, batch norms joined") {
  late_accelerator();
  const lane_thread alone;
  rank_random draws{6};
  const random_scope scope{draws};
  const auto dims = GENERATE(1, 2);
  const auto how = torch::nn::BatchNormOptions(4);
  const auto whole = std::make_shared<norm_net>(dims, how);
  const auto parts = std::make_shared<norm_net>(dims, how);
  whole->to(at::kDouble);
  parts->to(at::kDouble);
  parts->to(late_device(0));
  REQUIRE(convert_sync_batch_norm(*parts) == 2);
  replicated<norm_net> parallel{parts, {.device_ids = {late_device(0), late_device(1)}}};
  const auto on_cpu = [](named_tensors all) {
    for (auto& [name, tensor] : all) tensor = tensor.to(at::kCPU);
    return all;
  };
  for (const std::int64_t rows : {7, 4}) {
    const auto x = samples(dims, rows);
    const auto target = torch::linspace(-1, 1, x.numel(), at::kDouble).view(x.sizes());
    whole->zero_grad();
    parts->zero_grad();
    const auto expected = whole->forward(x);
    const auto got = parallel(x.to(late_device(0)));
    CHECK(got.device() == late_device(0));
    loss_of(expected, target).backward();
    loss_of(got, target.to(late_device(0))).backward();
    auto a = state_of(*whole), b = on_cpu(state_of(*parts));
    a["output"] = expected, b["output"] = got.to(at::kCPU);
    CHECK(difference(b, a, 1e-9) == "");
  }
}
