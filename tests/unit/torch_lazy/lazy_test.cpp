// Goal: a fit on LibTorch's lazy tensors has the weights of a fit on the CPU, and its steps are
// graphs of which equal ones are compiled once.
#include "troupe/accelerator.hpp"

#include <fstream>
#include <sstream>

#include "backends/torch/accelerators/host_memory.hpp"
#include "backends/torch/classifier.hpp"
#include "backends/torch/lane_thread.hpp"
#include "tests/support/one_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

trainer_options on_lazy(trainer_options options) {
  options.accelerator = accelerator_kind::lazy;
  return options;
}

accelerator_ptr lazy_devices() { return default_accelerators().at("lazy")(); }

c10::Device lazy_device(std::size_t index = 0) {
  static const auto devices = lazy_devices()->parse({}, 3);
  return devices.at(index);
}

std::unique_ptr<accelerator::scope> created_there(const accelerator& kind) {
  return dynamic_cast<const module_creation&>(kind).create_on(lazy_device());
}

struct choices {
  std::string model = "mlp";
  std::string optimizer = "sgd";
  double dropout = 0;
};

recipe_ptr classifying(const choices& how, const snapshot_ptr& from = nullptr) {
  torch_plugins plugins;
  if (from) plugins.checkpoints = std::make_shared<one_checkpoint>(from);
  classifier_options options;
  options.model = how.model;
  options.optimizer = how.optimizer;
  options.layers.hidden = {32, 16};
  options.layers.dropout = how.dropout;
  return recipe_for<classifier>(plugins, synthetic({.samples = 200, .evaluation = 40}), options);
}

/// Operators on one tensor that LibTorch's graphs cannot hold.
std::vector<c10::OperatorHandle> on_host_only() {
  std::vector<c10::OperatorHandle> found;
  auto& registry = c10::Dispatcher::singleton();
  for (const auto* name : {"special_airy_ai",
                           "special_bessel_j0",
                           "special_bessel_j1",
                           "special_bessel_y0",
                           "special_bessel_y1",
                           "special_i0e",
                           "special_i1",
                           "special_i1e",
                           "special_log_ndtr",
                           "special_modified_bessel_i0",
                           "special_modified_bessel_i1",
                           "special_modified_bessel_k0",
                           "special_modified_bessel_k1",
                           "special_ndtri",
                           "special_spherical_bessel_j0",
                           "special_erfcx",
                           "special_entr",
                           "special_scaled_modified_bessel_k0",
                           "special_scaled_modified_bessel_k1",
                           "angle",
                           "asinh",
                           "acosh",
                           "atanh",
                           "digamma",
                           "erfinv",
                           "i0",
                           "lgamma",
                           "signbit",
                           "sinc"})
    found.push_back(registry.findSchemaOrThrow((std::string{"aten::"} + name).c_str(), ""));
  return found;
}

rank_end fitted(const recipe_ptr& recipe, const trainer_options& options,
                const std::string& resume = {}) {
  return run_good_job({.recipe = recipe, .options = options, .resume = resume})[0];
}

/// Writes down what LibTorch's lazy tensors did until the end of each step of all ranks.
struct counting_graphs : regression {
  using regression::regression;
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    barrier("ended");
    if (rank() == 0) seen.push_back(counts_of_lazy());
    barrier("counted");
  }
  static inline std::vector<lazy_counts> seen;
};

}  // namespace

TEST_CASE("lazy: the weights of a fit are those of the CPU", "[lazy]") {
  const auto how = GENERATE(choices{"mlp", "sgd"}, choices{"mlp", "adamw"},
                            choices{"mlp", "sgd", 0.5}, choices{"cnn", "sgd"});
  CAPTURE(how.model, how.optimizer, how.dropout);
  auto options = quick(1, 8, 10);
  options.limit_val_batches = std::int64_t{2};
  // AdamW divides by the roots of small numbers. In 32 bits the weights were up to 1.2e-4 apart,
  // differently on each kind of processor.
  if (how.optimizer == "adamw") options.precision = precision_kind::f64_true;
  const auto expected = fitted(classifying(how), options);
  const auto before = counts_of_lazy().graphs;
  const auto got = fitted(classifying(how), on_lazy(options));
  CHECK(counts_of_lazy().graphs > before);
  CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) <
        (how.optimizer == "adamw" ? 1e-9 : 1e-6));
  CHECK(got.loop.samples == expected.loop.samples);
}

TEST_CASE("lazy: equal steps are compiled once, and each runs as many graphs", "[lazy]") {
  counting_graphs::seen.clear();
  const auto ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const auto data = std::make_shared<table_data>(80 * ranks);
  fitted(recipe_for<counting_graphs>(data), on_lazy(quick(ranks, 8, 10)));
  const auto& seen = counting_graphs::seen;
  REQUIRE(seen.size() == 10);
  // The first step has no momentum yet.
  for (std::size_t step = 3; step < seen.size(); ++step) {
    CAPTURE(step);
    CHECK(seen[step].compilations == seen[step - 1].compilations);
    // Until the loss, and the rest; mse_loss runs alone between them, which is one more. With
    // several ranks one graph ends where gradients are summed.
    CHECK(seen[step].graphs - seen[step - 1].graphs == (ranks == 1 ? 3 : 4 * ranks));
    CHECK(seen[step].step_marks > seen[step - 1].step_marks);
  }
}

TEST_CASE("lazy: a read by the host runs all collected operators in one graph", "[lazy]") {
  const auto kind = lazy_devices();
  const auto here = kind->make_current(lazy_device());
  const auto x = at::ones({8}).to(lazy_device());
  const auto doubled = x * 2, tripled = x * 3;
  const auto before = counts_of_lazy();
  CHECK(doubled.sum().item<double>() == 16);
  CHECK(at::equal(tripled.to(at::kCPU), at::full({8}, 3.0)));
  const auto after = counts_of_lazy();
  CHECK(after.graphs == before.graphs + 1);
  CHECK(after.step_marks == before.step_marks + 2);
}

TEST_CASE("lazy: a module created on the device has the initial weights of the host", "[lazy]") {
  const auto made = [](bool there) {
    const auto kind = lazy_devices();
    rank_random draws{5};
    const random_scope scope{draws};
    const auto here = there ? created_there(*kind) : nullptr;
    torch::nn::Sequential net{torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4),
                              torch::nn::Linear(6, 3), torch::nn::Embedding(5, 2)};
    net->push_back(torch::nn::LSTM(3, 2));
    return net;
  };
  const auto host = made(false)->named_parameters();
  const auto there = made(true);
  for (const auto& item : there->named_parameters()) {
    CAPTURE(item.key());
    CHECK(item.value().device() == lazy_device());
    CHECK(item.value().requires_grad());
    CHECK(at::equal(item.value().detach().to(at::kCPU), host[item.key()].detach()));
  }
  for (const auto& buffer : there->buffers()) CHECK(buffer.device() == lazy_device());
}

TEST_CASE("lazy: factories that draw or count give the numbers of the host", "[lazy]") {
  const auto make = [] {
    return std::vector<at::Tensor>{torch::randn({3}), torch::arange(4), torch::randperm(5),
                                   torch::full({2}, 7), torch::linspace(0, 1, 5)};
  };
  const auto kind = lazy_devices();
  rank_random first{5}, second{5};
  std::vector<at::Tensor> host, there;
  {
    const random_scope scope{first};
    host = make();
  }
  {
    const random_scope scope{second};
    const auto here = created_there(*kind);
    there = make();
  }
  for (std::size_t i = 0; i < host.size(); ++i) {
    CHECK(there[i].device() == lazy_device());
    CHECK(at::equal(there[i].to(at::kCPU), host[i]));
  }
  CHECK(torch::zeros({1}).device() == c10::Device{at::kCPU});
}

TEST_CASE("lazy: true precisions are those of the CPU, and mixed ones are refused", "[lazy]") {
  auto options = quick(1, 8, 3);
  options.precision = precision_kind::f64_true;
  const auto expected = fitted(classifying({}), options);
  const auto got = fitted(classifying({}), on_lazy(options));
  CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) < 1e-6);
  options.precision = precision_kind::bf16_mixed;
  CHECK_THROWS_WITH(choose_devices(default_accelerators(), on_lazy(options), 1),
                    Catch::Contains("use precision 32-true"));
}

TEST_CASE("lazy: a number and a tensor of one element give the tensor's type", "[lazy]") {
  const auto kind = lazy_devices();
  const auto here = kind->make_current(lazy_device());
  const auto x = at::full({}, 3.0, at::kFloat).to(lazy_device());
  const auto scaled = (2.5 * x + 1.0) / 2.0 - 0.25;
  CHECK(scaled.to(at::kCPU).scalar_type() == at::kFloat);
  CHECK(scaled.item<double>() == 4);
  const auto in_place = x.clone().mul_(0.5);
  CHECK(in_place.to(at::kCPU).scalar_type() == at::kFloat);
}

TEST_CASE("lazy: ranks and shards that would share a device are refused", "[lazy]") {
  auto options = on_lazy(quick(3, 8, 1));
  CHECK(choose_devices(default_accelerators(), options, 3).devices ==
        std::vector{lazy_device(0), lazy_device(1), lazy_device(2)});
  options.devices.count = 2;
  CHECK_THROWS_WITH(choose_devices(default_accelerators(), options, 3),
                    Catch::Contains("use --ranks 2, or name 3 devices of lazy"));
  options.devices = {};
  options.elastic.shards = 4;
  CHECK_THROWS_WITH(
      choose_devices(default_accelerators(), options, 3),
      Catch::Contains("elastic.shards = 4 and ranks = 3") && Catch::Contains("use --ranks 4"));
  // Shards that come from a checkpoint.
  options.elastic.shards = {};
  options.devices.indices = {0};
  const auto ends = run_job({.recipe = classifying({}), .options = options});
  CHECK_THAT(text_of(ends[1].error), Catch::Contains("3 shards and 1 devices of lazy"));
}

namespace {

constexpr double rounding = 1e-12;

/// A fit of several ranks, and the difference that another accelerator makes to its weights. In
/// double, because graphs round in another order: in single precision AdamW, compression and batch
/// norm enlarge such differences to 1e-4.
double difference_to_cpu(const recipe_ptr& recipe, trainer_options options,
                         precision_kind numbers = precision_kind::f64_true) {
  options.precision = numbers;
  const auto expected = fitted(recipe, options);
  const auto before = counts_of_lazy().graphs;
  const auto got = fitted(recipe, on_lazy(options));
  CHECK(counts_of_lazy().graphs > before);
  CHECK(got.loop.samples == expected.loop.samples);
  return distance(weights_of(got.snapshot), weights_of(expected.snapshot));
}

}  // namespace

TEST_CASE("lazy: several ranks end in the weights of as many on the CPU", "[lazy]") {
  const auto ranks = GENERATE(2, 3);
  const auto how = GENERATE(choices{"mlp", "sgd"}, choices{"mlp", "adamw"},
                            choices{"mlp", "sgd", 0.5}, choices{"cnn", "sgd"});
  CAPTURE(ranks, how.model, how.optimizer, how.dropout);
  auto options = quick(ranks, 8, 10);
  options.limit_val_batches = std::int64_t{2};
  CHECK(difference_to_cpu(classifying(how), options) < rounding);
  if (how.optimizer == "sgd")
    CHECK(difference_to_cpu(classifying(how), options, precision_kind::f32_true) < 1e-6);
}

TEST_CASE("lazy: a fit that resumes on lazy devices or on the CPU ends as the whole fit",
          "[lazy]") {
  const auto ranks = GENERATE(1, 2);
  const choices how{"mlp", "adamw", 0.5};
  CAPTURE(ranks);
  auto options = quick(ranks, 8, 6);
  options.precision = precision_kind::f64_true;
  const auto whole = fitted(classifying(how), on_lazy(options));
  auto first = options;
  first.max_steps = 3;
  const auto half = fitted(classifying(how), on_lazy(first)).snapshot;
  CHECK(half->loop.steps == 3);
  const auto there = fitted(classifying(how, half), on_lazy(options), "here");
  CHECK(there.snapshot->weights_digest == whole.snapshot->weights_digest);
  CHECK(there.loop == whole.loop);
  const auto here = fitted(classifying(how, half), options, "here");
  CHECK(distance(weights_of(here.snapshot), weights_of(whole.snapshot)) < rounding);
  // The losses are rounded otherwise, too, on some processors.
  auto loop = here.loop;
  for (auto& [name, number] : loop.last) {
    CHECK(std::abs(number - whole.loop.last.at(name)) < rounding);
    number = whole.loop.last.at(name);
  }
  CHECK(loop == whole.loop);
}

TEST_CASE("lazy: any exchange of gradients ends in the weights of the CPU", "[lazy]") {
  auto options = quick(2, 8, 6);
  const auto vary = GENERATE(range(0, 6));
  CAPTURE(vary);
  if (vary == 0) options.accumulate_grad_batches = 2;
  if (vary == 1) options.gradient_clip_val = 0.1;
  if (vary == 2) options.gradients.comm_hook = comm_hook_kind::bf16_compress;
  if (vary == 3) options.gradients.find_unused_parameters = true;
  if (vary == 4) options.gradients.bucket_cap_mb = 0.0005;
  if (vary == 5) {
    options.gradients.comm_hook = comm_hook_kind::powersgd;
    options.gradients.powersgd.start_step = 2;
  }
  CHECK(difference_to_cpu(classifying({}), options) < rounding);
}

TEST_CASE("lazy: buffers become rank 0's, and a rank without samples takes part in the step",
          "[lazy]") {
  // In micro-batches of 2 x 8 the last one of 17 samples leaves nothing for rank 1.
  const auto samples = GENERATE(20, 17);
  CAPTURE(samples);
  const auto data = std::make_shared<table_data>(samples);
  const auto recipe = recipe_for<regression>(data, regression_choices{.batch_norm = samples == 20});
  CHECK(difference_to_cpu(recipe, quick(2, 8, 6)) < rounding);
}

TEST_CASE("lazy: a parameter that no rank uses keeps its numbers", "[lazy]") {
  struct partly_used : regression {
    partly_used() { register_parameter("unused", torch::ones({3})); }
  };
  const auto recipe = recipe_for<partly_used>(std::make_shared<table_data>(40));
  CHECK(difference_to_cpu(recipe, quick(2, 4, 4)) < rounding);
  auto options = on_lazy(quick(2, 4, 4));
  const auto weights = weights_of(fitted(recipe, options).snapshot);
  CHECK(at::equal(weights.at("unused"), at::ones({3})));
}

TEST_CASE("lazy: collectives of ranks take and return lazy tensors", "[lazy]") {
  struct gathering : regression {
    void on_fit_start() override {
      const auto mine = at::full({2}, 1.0 + rank(), net->parameters()[0].options());
      const auto mean = reduce(mine * 2), sum = reduce(mine, "sum");
      expect(mean.is_lazy() && sum.is_lazy());
      expect(at::equal(mean.to(at::kCPU), at::full({2}, 3.0F)));
      expect(at::equal(sum.to(at::kCPU), at::full({2}, 3.0F)));
      const auto all = all_gather(mine);
      expect(all.is_lazy() && all.sizes() == at::IntArrayRef({2, 2}));
      expect(at::equal(all.to(at::kCPU), at::tensor({1.0F, 1.0F, 2.0F, 2.0F}).view({2, 2})));
      const auto sent = unboxed(broadcast(boxed(mine * 5), 1));
      expect(at::equal(sent.to(at::kCPU), at::full({2}, 10.0F)));
      const auto input = mine.clone().requires_grad_();
      (all_gather(input, true) * (1 + rank())).sum().backward();
      expect(at::equal(input.grad().to(at::kCPU), at::full({2}, 3.0F)));
    }
  };
  run_good_job({.recipe = recipe_for<gathering>(std::make_shared<table_data>(16)),
                .options = on_lazy(quick(2, 4, 1))});
}

TEST_CASE("lazy: a mark of one device leaves the operators of another", "[lazy]") {
  const auto kind = lazy_devices();
  const auto here = kind->make_current(lazy_device());
  const auto x = at::ones({8}).to(lazy_device(1)) * 5;
  const auto y = at::ones({8}).to(lazy_device(2)) * 7;
  CHECK_THAT(report_of_lazy(), Catch::Contains("of device 1") && Catch::Contains("of device 2"));
  kind->mark_step(lazy_device(1));
  CHECK_THAT(report_of_lazy(), !Catch::Contains("of device 1") && Catch::Contains("of device 2"));
  CHECK(y.sum().item<double>() == 56);
}

TEST_CASE("lazy: ranks run operators on the host at once, and each call is counted", "[lazy]") {
  const auto operators = on_host_only();
  constexpr std::int32_t ranks = 2;
  lazy_device();
  std::atomic<int> arrived{0};
  const auto errors = on_ranks(ranks, [&](std::int32_t rank, const auto& world) {
    const auto numbers = at::rand({2, 2}, at::kDouble);
    const auto there = numbers.to(lazy_device(static_cast<std::size_t>(rank)));
    for (int called = 0; const auto& op : operators) {
      ++arrived;
      ++called;
      // So that all ranks call it for the first time together. A failed rank aborts the group.
      while (arrived < ranks * called && !world->aborted()) continue;
      torch::jit::Stack stack{there};
      op.callBoxed(stack);
      torch::jit::Stack on_host{numbers};
      op.callBoxed(on_host);
      if (!at::allclose(stack.back().toTensor().to(host_device()), on_host.back().toTensor(), 0, 0,
                        /*equal_nan=*/true))
        throw std::runtime_error{op.schema().name()};
    }
  });
  for (const auto& one : errors) CHECK(text_of(one) == "nothing");
  const auto fallbacks = counts_of_lazy().fallbacks;
  for (const auto& op : operators) {
    CAPTURE(op.schema().name());
    CHECK(fallbacks.at(op.schema().name()) == ranks);
  }
}

TEST_CASE("lazy: non-zero positions and pooled volumes are those of the host", "[lazy]") {
  const auto scope = lazy_devices()->make_current(lazy_device());
  const auto numbers = at::rand({1, 2, 4, 4, 4}).sub(0.5).relu();
  const auto there = numbers.to(lazy_device());
  CHECK(there.nonzero().to(host_device()).equal(numbers.nonzero()));
  CHECK(at::max_pool3d(there, 2).to(host_device()).equal(at::max_pool3d(numbers, 2)));
}

TEST_CASE("lazy: several tensors are read with one step mark", "[lazy]") {
  const auto kind = lazy_devices();
  const auto here = kind->make_current(lazy_device());
  const auto x = at::ones({8}).to(lazy_device());
  const auto base = x + 1;
  const auto view = base.narrow(0, 0, 2);
  base.mul_(3);  // the view is not up to date
  const auto before = counts_of_lazy();
  const auto read = to_host(std::vector{x * 2, base, view, at::full({2}, 9.0)});
  const auto after = counts_of_lazy();
  CHECK(after.step_marks == before.step_marks + 1);
  CHECK(after.graphs == before.graphs + 1);
  CHECK(at::equal(read[0], at::full({8}, 2.0)));
  CHECK(at::equal(read[1], at::full({8}, 6.0)));
  CHECK(at::equal(read[2], at::full({2}, 6.0)));
  CHECK(at::equal(read[3], at::full({2}, 9.0)));
}

TEST_CASE("lazy: predictions are those of the CPU", "[lazy]") {
  const auto predicted = [](const trainer_options& how) {
    return run_good_job({.recipe = classifying({}), .options = how, .purpose = stage::predict})[0]
        .result;
  };
  const auto options = quick(1, 8, 2);
  const auto here = tensors_of(predicted(options)), there = tensors_of(predicted(on_lazy(options)));
  REQUIRE_FALSE(here.empty());
  REQUIRE(here.size() == there.size());
  for (std::size_t i = 0; i < here.size(); ++i) CHECK(at::allclose(here[i], there[i], 0, 1e-6));
}

namespace {

/// Data that a loader copies to the device ahead, a step mark for `every` batches.
struct in_groups : table_data {
  in_groups(std::int64_t samples, std::int64_t validation, std::int64_t every)
      : table_data(samples, 4, validation), every_(every) {}
  data_loading loading(stage, std::int32_t) override {
    return {.device_prefetch = 2, .batches_per_execution = every_};
  }

private:
  std::int64_t every_;
};

std::int64_t graphs_of(const test_job& job) {
  const auto before = counts_of_lazy().graphs;
  run_good_job(job);
  return counts_of_lazy().graphs - before;
}

/// Its loss runs in graphs only. A validation reads the sum of its losses at the end.
struct summing : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    return (net->forward(b[0]) - b[1]).pow(2).mean();
  }
  step_output validation_step(const batch& b, std::int64_t index) override {
    const auto loss = training_step(b, index).loss();
    total_ = total_.defined() ? total_ + loss : loss;
    return {};
  }
  void on_validation_epoch_end() override { log("total", total_); }

private:
  at::Tensor total_;
};

}  // namespace

TEST_CASE("lazy: batches_per_execution joins the batches of an evaluation", "[lazy]") {
  const auto graphs = [](std::int64_t every) {
    return graphs_of({.recipe = recipe_for<summing>(std::make_shared<in_groups>(8, 36, every)),
                      .options = on_lazy(quick(1, 4, 1)),
                      .purpose = stage::validate});
  };
  // Of 9 batches: each by itself, two groups of 4 and one that is left, and all together.
  CHECK(graphs(1) == 9);
  CHECK(graphs(4) == 3);
  CHECK(graphs(100) == 1);
}

TEST_CASE("lazy: batches_per_execution leaves a training's weights as they are", "[lazy]") {
  const auto options = quick(2, 4, 10);
  const auto make = [](std::int64_t every) {
    return recipe_for<summing>(std::make_shared<in_groups>(80, 0, every));
  };
  const auto expected = fitted(make(1), options);
  for (const std::int64_t every : {1, 3, 100}) {
    CAPTURE(every);
    const auto got = fitted(make(every), on_lazy(options));
    CHECK(distance(weights_of(got.snapshot), weights_of(expected.snapshot)) < 1e-6);
  }
  const auto steps = on_lazy(quick(1, 4, 12));
  const auto apart = graphs_of({.recipe = make(1), .options = steps});
  // An update runs with the next step's forward.
  CHECK(graphs_of({.recipe = make(100), .options = steps}) <= apart - 8);
}

TEST_CASE("lazy: the report has the counters and the operators that have not run yet", "[lazy]") {
  const auto kind = lazy_devices();
  const auto x = at::ones({8}).to(lazy_device());
  const auto waiting = x * 2;
  CHECK_THAT(report_of_lazy(), Catch::Contains("step marks: ") && Catch::Contains("aten::mul"));
  kind->mark_step(lazy_device());
  CHECK_THAT(report_of_lazy(), Catch::Contains("no operator waits for a step mark"));
}

TEST_CASE("lazy: the callback lazy_report logs the counts and writes the report", "[lazy]") {
  const temporary_folder folder;
  const auto file = folder.path() / "report.txt";
  const auto recipe_to = [&](const std::string& path) {
    torch_plugins plugins;
    plugins.callbacks.emplace_back(lazy_report{{.path = path}});
    return recipe_for<regression>(plugins, std::make_shared<table_data>(32));
  };
  auto options = quick(GENERATE(1, 2), 8, 99);
  options.max_epochs = 2;
  const auto before = counts_of_lazy();
  const auto last = fitted(recipe_to(file.string()), on_lazy(options)).loop.last;
  const auto after = counts_of_lazy();
  const auto between = [&](const char* name, std::int64_t least, std::int64_t most) {
    CAPTURE(name);
    CHECK(last.at(name) > static_cast<double>(least));
    CHECK(last.at(name) <= static_cast<double>(most));
  };
  between("lazy/step_marks", before.step_marks, after.step_marks);
  between("lazy/graphs", before.graphs, after.graphs);
  between("lazy/compilations", 0, after.compilations);
  CHECK(last.at("lazy/fallbacks") > 0);
  std::ostringstream text;
  text << std::ifstream{file}.rdbuf();
  CHECK_THAT(text.str(), Catch::Contains("step marks: ") && Catch::Contains("LibTorch's counters"));

  const auto failure = [&](const std::string& path, const trainer_options& how) {
    return text_of(run_job({.recipe = recipe_to(path), .options = how})[0].error);
  };
  CHECK_THAT(failure(file.string(), options), Catch::Contains("the accelerator cpu has no graphs"));
  CHECK_THAT(failure(folder.path().string(), on_lazy(options)), Catch::Contains("cannot write"));
  CHECK_THROWS_AS(lazy_report{{}}, user_error);
}
