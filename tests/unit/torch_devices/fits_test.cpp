// Goal: whole fits on a device that computes late end in the bits of fits on the CPU. A wait that
// Troupe forgets, or memory of the device that it reads as if it were the host's, fails here. Sums
// of gradients that the device computes need no waiting thread, and one that failed is noticed.
#include <nlohmann/json.hpp>

#include "backends/torch/classifier.hpp"
#include "backends/torch/lane_thread.hpp"
#include "tests/support/late_collectives.hpp"
#include "tests/support/late_device.hpp"
#include "tests/support/one_checkpoint.hpp"
#include "tests/unit/torch_replicated/norm_models.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data.hpp"
#include "troupe/detail/reducer.hpp"
#include "troupe/replicated.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

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
  if (from) plugins.checkpoints = std::make_shared<one_checkpoint>(from);
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

/// The same, with sums on the devices.
rank_end fitted_on_devices(const recipe_ptr& recipe, const trainer_options& options,
                           late_rendezvous& rendezvous) {
  late_accelerator();
  return run_good_job({.recipe = recipe, .options = options, .around = [&](const auto& host) {
                         return rendezvous.join(host);
                       }})[0];
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

TEST_CASE("late device: each kind of gradient exchange gives the bits of the CPU") {
  auto options = fit_options(2, 4);
  const auto vary = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(vary);
  if (vary == 0) options.gradients.overlap = false;
  if (vary == 1) options.gradients.bucket_cap_mb = 0.001;
  if (vary == 2) options.gradients.comm_hook = comm_hook_kind::bf16_compress;
  if (vary == 3) {
    options.gradients.comm_hook = comm_hook_kind::powersgd;
    options.gradients.powersgd.start_step = 1;
  }
  if (vary == 4) options.gradients.find_unused_parameters = true;
  const auto expected = fitted(classifying({}), options);
  const auto got = fitted(classifying({}), on_late(options, {0, 1}));
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
}

TEST_CASE("sums on late devices that no thread waits for have the bits of the CPU") {
  auto options = fit_options(2, 6);
  const auto vary = GENERATE(range(0, 5));
  CAPTURE(vary);
  if (vary == 1) options.gradients.bucket_cap_mb = 0.001;
  if (vary == 2) options.gradients.overlap = false;
  if (vary == 3) {
    options.accumulate_grad_batches = 2;
    options.gradient_clip_val = 0.1;
  }
  if (vary == 4) options.elastic.max_restarts = 1;
  const auto expected = fitted(classifying({}), options);
  late_rendezvous rendezvous{2};
  const auto got = fitted_on_devices(classifying({}), on_late(options, {0, 2}), rendezvous);
  CHECK(got.snapshot->weights_digest == expected.snapshot->weights_digest);
  CHECK(rendezvous.ran() >= 6);
}

TEST_CASE("sums on late devices: without their events a fit is wrong") {
  const auto options = fit_options(2, 6);
  const auto expected = fitted(classifying({}), options);
  late_rendezvous rendezvous{2};
  const without_event_waits off;
  const auto got = fitted_on_devices(classifying({}), on_late(options, {0, 2}), rendezvous);
  CHECK(got.snapshot->weights_digest != expected.snapshot->weights_digest);
}

TEST_CASE("a checkpoint of one accelerator is resumed on the other, to the same bits") {
  auto options = fit_options(2, 6);
  options.precision = GENERATE(precision_kind::f32_true, precision_kind::f16_mixed);
  CAPTURE(options.precision.name);
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

// --- mixed precision -----------------------------------------------------------------------------

TEST_CASE("mixed precisions on late devices end in the bits of the CPU") {
  const choices how{GENERATE("mlp", "cnn")};
  auto options = fit_options(2, 4);
  options.gradient_clip_val = 0.1;
  const auto full = fitted(classifying(how), options).snapshot;
  options.precision = GENERATE(precision_kind::bf16_mixed, precision_kind::f16_mixed);
  CAPTURE(how.model, options.precision.name);
  const auto expected = fitted(classifying(how), options).snapshot;
  CHECK(expected->weights_digest != full->weights_digest);
  const auto got = fitted(classifying(how), on_late(options, {0, 2})).snapshot;
  CHECK(got->weights_digest == expected->weights_digest);
  late_rendezvous shared{2};
  const auto summed =
      fitted_on_devices(classifying(how), on_late(options, {0, 2}), shared).snapshot;
  CHECK(summed->weights_digest == expected->weights_digest);
  CHECK(shared.ran() >= 4);
}

namespace {

/// In its third step rank 1 has infinite gradients.
struct overflowing : regression {
  void backward(const at::Tensor& loss, const value& arguments) override {
    const bool due = rank() == 1 && at().step == 2;
    regression::backward(due ? loss * INFINITY : loss, arguments);
  }
};

/// The weights, and the numbers of the scaler.
std::pair<std::string, std::string> end_of(const snapshot_ptr& taken) {
  return {taken->weights_digest, nlohmann::json::parse(taken->state).at("precision").dump()};
}

}  // namespace

TEST_CASE("16-mixed on late devices: an infinite gradient of one rank skips the step of all") {
  const auto data = std::make_shared<table_data>(64);
  auto options = quick(2, 4, 6);
  options.precision = precision_kind::f16_mixed;
  options.gradients.comm_hook =
      GENERATE(comm_hook_kind::allreduce, comm_hook_kind::noop);  // the latter: one rank sees it
  CAPTURE(to_string(options.gradients.comm_hook));
  const auto recipe = recipe_for<overflowing>(with_late(), data);
  const auto expected = end_of(fitted(recipe, options).snapshot);
  CHECK(expected.second.find("32768") != std::string::npos);
  const auto late = on_late(options, {0, 1});
  CHECK(end_of(fitted(recipe, late).snapshot) == expected);
  late_rendezvous shared{2};
  CHECK(end_of(fitted_on_devices(recipe, late, shared).snapshot) == expected);
}

TEST_CASE("16-mixed on late devices: a fit that does not wait for the sums is wrong") {
  const auto data = std::make_shared<table_data>(64);
  auto options = quick(2, 4, 6);
  options.precision = precision_kind::f16_mixed;
  const auto recipe = recipe_for<overflowing>(with_late(), data);
  const auto expected = end_of(fitted(recipe, options).snapshot);
  late_rendezvous shared{2};
  const without_event_waits off;
  const auto got = fitted_on_devices(recipe, on_late(options, {0, 1}), shared);
  CHECK(end_of(got.snapshot) != expected);
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

TEST_CASE("copies on two devices with joined batch norms compute what the module does on the CPU") {
  late_accelerator();
  const lane_thread alone;
  rank_random draws{6};
  const random_scope scope{draws};
  const auto dims = GENERATE(1, 2, 3);
  const auto momentum = GENERATE(std::optional{0.1}, std::optional<double>{});
  const c10::DeviceIndex first = GENERATE(0, 1);  // the order of the devices is free
  const auto home = late_device(first), other = late_device(1 - first);
  CAPTURE(dims, momentum.has_value(), first);
  const auto how = torch::nn::BatchNormOptions(4).momentum(momentum);
  const auto whole = std::make_shared<norm_net>(dims, how);
  const auto parts = std::make_shared<norm_net>(dims, how);
  whole->to(at::kDouble);
  parts->to(at::kDouble);
  parts->to(home);
  REQUIRE(convert_sync_batch_norm(*parts) == 2);
  replicated<norm_net> parallel{parts, {.device_ids = {home, other}}};
  const auto on_cpu = [](named_tensors all) {
    for (auto& [name, tensor] : all) tensor = tensor.to(at::kCPU);
    return all;
  };
  // The last batch is an evaluation, by the running statistics of those before.
  for (const std::int64_t rows : {7, 4, 5}) {
    whole->train(rows != 5);
    parts->train(rows != 5);
    const auto x = samples(dims, rows);
    const auto target = torch::linspace(-1, 1, x.numel(), at::kDouble).view(x.sizes());
    whole->zero_grad();
    parts->zero_grad();
    const auto expected = whole->forward(x);
    const auto got = parallel(x.to(home));
    CHECK(got.device() == home);
    loss_of(expected, target).backward();
    loss_of(got, target.to(home)).backward();
    auto a = tensors_of(*whole), b = on_cpu(tensors_of(*parts));
    a["output"] = expected, b["output"] = got.to(at::kCPU);
    CHECK(difference(b, a, 1e-9) == "");
  }
}

TEST_CASE("replicated: results and gradients go to an output device other than the first") {
  late_accelerator();
  const lane_thread alone;
  rank_random draws{8};
  const random_scope scope{draws};
  const auto home = late_device(0), other = late_device(1);
  const auto net = std::make_shared<norm_net>(1, torch::nn::BatchNormOptions(4));
  net->to(at::kDouble);
  net->eval();
  const auto x = samples(1, 5);
  const auto expected = net->forward(x);
  const auto wanted = torch::autograd::grad({expected.sum()}, {net->scale})[0];
  net->to(home);
  const auto out = GENERATE_COPY(as<c10::Device>{}, other, at::kCPU);
  const std::vector<c10::Device> used = GENERATE_COPY(std::vector{home, other}, std::vector{home});
  replicated<norm_net> parallel{net, {.device_ids = used, .output_device = out}};
  const auto got = parallel(x.to(home));
  CHECK(got.device() == expected.to(out).device());
  CHECK(at::allclose(got.to(at::kCPU), expected));
  got.sum().backward();
  CHECK(net->scale.grad().device() == home);
  CHECK(at::allclose(net->scale.grad().to(at::kCPU), wanted));
}

// --- sums on devices -----------------------------------------------------------------------------

namespace {

/// A rank with one parameter on a late device, whose operators are in a stream of its own.
struct late_rank {
  late_rank(std::int32_t rank, const std::shared_ptr<communicator>& world)
      : kind(late_accelerator()),
        device(late_device(static_cast<c10::DeviceIndex>(rank))),
        here(kind->make_current(device)),
        in_stream(kind->use(kind->new_stream(device))),
        scale(rank + 1),
        weight(torch::ones({3}).to(device).requires_grad_()),
        gradients({{"weight", weight}}, world, {.devices = kind}) {}

  /// One step, up to the sum of the gradients.
  void step() {
    gradients.zero(0);
    const auto loss = (weight * scale).sum();
    gradients.begin({.mine = {}, .loss = loss});
    loss.backward();
    gradients.finish();
  }

  accelerator_ptr kind;
  c10::Device device;
  std::unique_ptr<accelerator::scope> here, in_stream;
  double scale;
  at::Tensor weight;
  reducer gradients;
};

}  // namespace

TEST_CASE("sums of late devices: finish returns before they run, and a reader gets them") {
  late_accelerator();
  late_rendezvous rendezvous{2};
  std::vector<std::int64_t> ran(2);
  std::vector<at::Tensor> sums(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& host) {
    late_rank one{rank, rendezvous.join(host)};
    one.step();
    ran[rank] = rendezvous.ran();
    host->barrier("both have looked")->wait();
    sums[rank] = one.weight.grad().to(at::kCPU);
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  CHECK(ran == std::vector<std::int64_t>{0, 0});
  CHECK(rendezvous.ran() == 1);
  for (const auto& sum : sums) CHECK(at::equal(sum, at::full({3}, 3.0F)));
}

TEST_CASE("sums of late devices: the host is at most one step ahead") {
  late_accelerator();
  late_rendezvous rendezvous{2};
  std::vector<std::int64_t> ran(2);
  const auto errors = on_ranks(2, [&](auto rank, const auto& host) {
    late_rank one{rank, rendezvous.join(host)};
    for (int i = 0; i < 4; ++i) one.step();
    ran[rank] = rendezvous.ran();
    host->barrier("both have looked")->wait();
    one.gradients.settle();
  });
  for (const auto& error : errors) REQUIRE(text_of(error) == "nothing");
  CHECK(ran == std::vector<std::int64_t>{3, 3});
  CHECK(rendezvous.ran() == 4);
}

TEST_CASE("sums of late devices: one whose group was aborted is an error, not a gradient") {
  late_accelerator();
  late_rendezvous rendezvous{2};
  const auto errors = on_ranks(2, [&](auto rank, const auto& host) {
    late_rank one{rank, rendezvous.join(host)};
    one.step();
    host->abort("another rank failed");
    one.gradients.settle();
  });
  for (const auto& error : errors) CHECK(text_of(error).starts_with("troupe::generation_closed"));
}

TEST_CASE("sums of late devices are there after each step of a job that can restart") {
  static std::shared_ptr<late_rendezvous> rendezvous;
  static std::vector<std::int64_t> seen;
  struct counting : regression {
    void on_before_optimizer_step(torch::optim::Optimizer&) override {
      barrier("reached");
      if (rank() == 0) seen.push_back(rendezvous->ran());
      barrier("seen");
    }
  };
  const bool restarts = GENERATE(false, true);
  CAPTURE(restarts);
  rendezvous = std::make_shared<late_rendezvous>(2);
  seen.clear();
  torch_plugins plugins;
  plugins.accelerators["late"] = late_accelerator;
  auto options = quick(2, 4, 4);
  options.accelerator = own_name{"late"};
  options.elastic.max_restarts = restarts ? 1 : 0;
  late_accelerator();
  run_good_job({.recipe = recipe_for<counting>(plugins, std::make_shared<table_data>(40)),
                .options = options,
                .around = [](const auto& host) { return rendezvous->join(host); }});
  REQUIRE(seen.size() == 4);
  for (std::size_t step = 0; step < seen.size(); ++step)
    CHECK(seen[step] == static_cast<std::int64_t>(restarts ? step + 1 : step));
}

// --- GPUs ----------------------------------------------------------------------------------------
// These cases say that they are skipped where there are too few GPUs.

namespace {

/// Empty if this machine has so many GPUs that LibTorch can use; else why the case is skipped.
std::string too_few_gpus(std::int32_t wanted) {
  const auto kind = default_accelerators().at("cuda")();
  if (auto why = kind->unusable(); !why.empty()) return why;
  if (kind->count() >= wanted) return {};
  return "needs " + std::to_string(wanted) + " GPUs, and there are " +
         std::to_string(kind->count());
}

trainer_options on_gpus(trainer_options options) {
  options.accelerator = accelerator_kind::cuda;
  return options;
}

}  // namespace

TEST_CASE("GPU: a fit of one rank ends near the weights of the CPU", "[gpu]") {
  if (const auto why = too_few_gpus(1); !why.empty()) {
    WARN("SKIPPED: " << why);
    return;
  }
  const auto how = GENERATE(choices{"mlp", "sgd"}, choices{"mlp", "adamw"}, choices{"cnn", "sgd"});
  CAPTURE(how.model, how.optimizer);
  const auto options = fit_options(1, 6);
  const auto expected = fitted(classifying(how), options);
  const auto got = fitted(classifying(how), on_gpus(options));
  CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) < 1e-3);
  CHECK(got.loop.samples == expected.loop.samples);
  CHECK(fitted(classifying(how), on_gpus(options)).loop.samples == got.loop.samples);
}

TEST_CASE("GPU: a checkpoint is resumed on the CPU, and one of the CPU on the GPU", "[gpu]") {
  if (const auto why = too_few_gpus(1); !why.empty()) {
    WARN("SKIPPED: " << why);
    return;
  }
  const auto options = fit_options(1, 6);
  auto half = options;
  half.max_steps = 3;
  const choices how{"mlp", "adamw"};
  const auto whole = weights_of(fitted(classifying(how), options).snapshot);
  const auto of_cpu = fitted(classifying(how), half).snapshot;
  const auto of_gpu = fitted(classifying(how), on_gpus(half)).snapshot;
  const auto here = fitted(classifying(how, of_gpu), options, "here").snapshot;
  const auto there = fitted(classifying(how, of_cpu), on_gpus(options), "here").snapshot;
  CHECK(distance(weights_of(here), whole) < 1e-3);
  CHECK(distance(weights_of(there), whole) < 1e-3);
}

TEST_CASE("GPU: two streams are ordered by an event", "[gpu]") {
  if (const auto why = too_few_gpus(1); !why.empty()) {
    WARN("SKIPPED: " << why);
    return;
  }
  const auto kind = default_accelerators().at("cuda")();
  const auto device = kind->parse({}, 1)[0];
  const auto here = kind->make_current(device);
  const auto producer = kind->new_stream(device), consumer = kind->new_stream(device);
  const auto x = at::ones({4096, 1024}, at::TensorOptions{}.device(device));
  kind->synchronize(device);
  at::Tensor made;
  {
    const auto in = kind->use(producer);
    made = x;
    for (int i = 0; i < 50; ++i) made = made + 1;
  }
  const auto point = kind->record(producer);
  kind->block(consumer, *point);
  {
    const auto in = kind->use(consumer);
    CHECK(made.sum().item<double>() == 51.0 * 4096 * 1024);
  }
  CHECK(point->done());
  CHECK(kind->memory(device).allocated > 0);
}

TEST_CASE("GPU: two ranks end near the weights of two on the CPU", "[gpu]") {
  if (const auto why = too_few_gpus(2); !why.empty()) {
    WARN("SKIPPED: " << why);
    return;
  }
  const auto options = fit_options(2, 6);
  const auto expected = fitted(classifying({}), options);
  const auto got = fitted(classifying({}), on_gpus(options));
  CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) < 1e-3);
}
