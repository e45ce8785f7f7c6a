// Goal: a step of several micro-batches exchanges gradients once, and an exception in the middle of
// one ends all ranks. Modules with nothing to train and parameters with unusual layouts work. A
// rank with one sample cannot train batch norm, and says so. What a module's hooks change or log is
// not lost: the modes of sub-modules, and values. A module knows how many steps its fit has before
// it makes its schedules. A fit without a batch is refused, unless its limits ask for that.
#include "backends/forwarding_communicator.hpp"
#include "backends/torch/torch_learner.hpp"
#include "tests/support/one_checkpoint.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double window_tolerance = 2e-6;

struct traffic {
  std::atomic<int> gradients{0};  // sums of float32
  std::atomic<int> passes{0};     // calls of work_together
};

class counting_communicator final : public forwarding_communicator {
public:
  counting_communicator(std::shared_ptr<communicator> inner, std::shared_ptr<traffic> seen)
      : forwarding_communicator(std::move(inner)), seen_(std::move(seen)) {}

  work_ptr all_reduce(buffer data, reduction operation, const subgroup& among) override {
    if (data.type == dtype::f32) ++seen_->gradients;
    return forwarding_communicator::all_reduce(data, operation, among);
  }
  work_ptr work_together(std::string_view label, const void* mine, std::size_t pieces,
                         shared_body body) override {
    ++seen_->passes;
    return forwarding_communicator::work_together(label, mine, pieces, std::move(body));
  }

private:
  std::shared_ptr<traffic> seen_;
};

struct counted_ranks : data_parallel {
  counted_ranks(strategy_parts parts, data_parallel_options how, std::shared_ptr<traffic> seen)
      : data_parallel(std::move(parts), std::move(how)), seen_(std::move(seen)) {}
  void bind(std::shared_ptr<communicator> world, generation_id generation) override {
    data_parallel::bind(std::make_shared<counting_communicator>(std::move(world), seen_),
                        generation);
  }
  std::shared_ptr<traffic> seen_;
};

}  // namespace

TEST_CASE("gradients are exchanged once per step for any number of micro-batches") {
  const auto accumulate = GENERATE(1, 2, 3);
  const bool fused = GENERATE(false, true);
  const auto seen = std::make_shared<traffic>();
  torch_plugins plugins;
  plugins.strategies["data_parallel"] = [=](strategy_parts parts) {
    data_parallel_options how{.gradients = {.first_bucket_bytes = 1, .bucket_bytes = 1}};
    how.fused_step = fused;
    return std::make_unique<counted_ranks>(std::move(parts), how, seen);
  };
  auto options = quick(2, 3, 4);
  options.accumulate_grad_batches = accumulate;
  run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<regression>(); },
                             std::make_shared<table_data>(2 * 3 * accumulate * 4), plugins),
       .options = options});
  CAPTURE(accumulate, fused);
  CHECK(seen->gradients == (fused ? 0 : 2 * 4 * 4));  // ranks, steps, buckets of one gradient
  CHECK(seen->passes == (fused ? 2 * 4 : 0));
}

namespace {

/// Rank 1 fails in the second of three micro-batches.
struct breaks_in_a_window : regression {
  explicit breaks_in_a_window(bool in_forward) : in_forward_(in_forward) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    auto y = net->forward(b[0]);
    if (rank() == 1 && at().step == 1 && index % 3 == 1) {
      if (in_forward_) throw std::runtime_error("the second micro-batch");
      y.register_hook(
          [](const at::Tensor&) { throw std::runtime_error("the second micro-batch"); });
    }
    return fn::mse_loss(y, b[1]);
  }
  bool in_forward_;
};

}  // namespace

TEST_CASE("an exception between micro-batches ends all ranks and the next fit is correct") {
  const auto data = std::make_shared<table_data>(36);
  auto options = quick(3, 2, 5);  // six micro-batches per epoch
  options.accumulate_grad_batches = 3;
  const bool in_forward = GENERATE(true, false);
  options.gradients.fused_step = GENERATE(false, true);
  CAPTURE(in_forward, *options.gradients.fused_step);
  const auto ends =
      run_job({.recipe = recipe_for<breaks_in_a_window>(data, in_forward), .options = options});
  CHECK(text_of(ends[1].error) == "std::runtime_error: the second micro-batch");
  for (const auto rank : {0, 2})
    CHECK(text_of(ends[rank].error) == "troupe::generation_closed: a rank failed");
  CHECK(distance(trained<regression>(options, data), by_hand<regression>(options, *data)) <
        window_tolerance);
}

namespace {

/// A module without parameters or with frozen ones. The loss needs a gradient through its input, or
/// not.
struct nothing_to_train : module {
  nothing_to_train(bool parameters, bool loss_needs_gradient)
      : loss_needs_gradient_(loss_needs_gradient) {
    if (!parameters) return;
    net = register_module("net", torch::nn::Linear(4, 1));
    for (auto& one : net->parameters()) one.set_requires_grad(false);
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto x = b[0].clone().set_requires_grad(loss_needs_gradient_);
    const auto loss = fn::mse_loss(net ? net->forward(x) : x.mean(1, true), b[1]);
    log("train/loss", loss);
    return loss;
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
  torch::nn::Linear net{nullptr};
  bool loss_needs_gradient_;
};

}  // namespace

TEST_CASE("a module with nothing to train runs its steps on every rank") {
  const auto world = GENERATE(1, 3);
  const bool parameters = GENERATE(true, false);
  // in the last batch some ranks have no samples
  const auto data = std::make_shared<table_data>(19);
  auto options = quick(world, 2, 9);
  options.accumulate_grad_batches = GENERATE(1, 2);
  CAPTURE(world, parameters, options.accumulate_grad_batches);
  const auto ends = run_good_job(
      {.recipe = recipe_for<nothing_to_train>(data, parameters, true), .options = options});
  for (const auto& end : ends) CHECK(end.loop.steps == 9);
  auto untouched = options;
  untouched.max_steps = 0;
  CHECK(distance(weights_of(ends[0].snapshot),
                 trained<nothing_to_train>(untouched, data, parameters, true)) == 0);
}

TEST_CASE("a loss that needs no gradient is refused on every rank as in one process") {
  const auto world = GENERATE(1, 3);
  const auto ends = run_job(
      {.recipe = recipe_for<nothing_to_train>(std::make_shared<table_data>(12), true, false),
       .options = quick(world, 2, 3)});
  for (const auto& end : ends)
    CHECK_THAT(text_of(end.error), Catch::Contains("does not require grad"));
}

namespace {

/// Parameters, and gradients, whose elements are not contiguous in memory.
struct odd_layouts : regression {
  explicit odd_layouts(bool quiet = false) : regression({.optimize = {}}), quiet_(quiet) {
    turned = register_parameter("turned", torch::linspace(-1, 1, 12).view({3, 4}).t());
    thinned =
        register_parameter("thinned", torch::linspace(-1, 1, 24).view({4, 6}).slice(1, 0, 6, 2));
    crossed = register_parameter("crossed", torch::linspace(-1, 1, 12).view({3, 4}));
    spread = register_parameter("spread", torch::linspace(-1, 1, 6).view({2, 3}));
    last = register_parameter(
        "last",
        torch::linspace(-1, 1, 24).view({1, 2, 3, 4}).contiguous(at::MemoryFormat::ChannelsLast));
    expect_strides();
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto weight = torch::arange(24, at::kFloat).view({1, 2, 3, 4}).mul(0.01);
    auto y = net->forward(b[0]) + b[0].matmul(turned).sum(1, true);
    y = y + b[0].matmul(thinned).pow(2).mean(1, true);
    y = y + b[0].matmul(crossed.t()).tanh().sum(1, true);
    y = y + 0.1 * spread.sum() + (last * weight).sum() * b[0].select(1, 0).unsqueeze(1);
    return fn::mse_loss(y, b[1]);
  }
  void on_after_backward() override { expect_strides(); }
  bool reads_gradients() const override { return !quiet_; }
  optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  }
  void expect_strides() const {
    if (turned.stride(0) != 1 || last.stride(1) != 1 || thinned.stride(1) != 2)
      throw std::logic_error("the parameters do not have the intended layout");
    for (const auto& one : {turned, last})
      if (one.grad().defined() && one.grad().strides() != one.strides())
        throw std::runtime_error("a gradient has another layout than its parameter");
  }
  at::Tensor turned, thinned, crossed, spread, last;
  bool quiet_;
};

/// The same without the parameter that the fused step does not support.
struct dense_layouts : odd_layouts {
  dense_layouts() : odd_layouts(true) {}
  optimizers configure_optimizers() override {
    std::vector<at::Tensor> some;
    for (const auto& one : parameters())
      if (one.is_non_overlapping_and_dense()) some.push_back(one);
    return torch::optim::SGD(some, torch::optim::SGDOptions(0.02).momentum(0.9));
  }
};

}  // namespace

TEST_CASE("parameters and gradients in unusual layouts train as in one process") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(3, 2, 6);
  options.accumulate_grad_batches = GENERATE(1, 2);
  CHECK(distance(trained<odd_layouts>(options, data), by_hand<odd_layouts>(options, *data)) <
        window_tolerance);
  options.gradients.comm_hook = comm_hook_kind::bf16_compress;
  CHECK(distance(trained<odd_layouts>(options, data), by_hand<odd_layouts>(options, *data)) < 1e-2);
  options.gradients.comm_hook = comm_hook_kind::allreduce;
  options.gradients.fused_step = true;
  CHECK(distance(trained<dense_layouts>(options, data), by_hand<dense_layouts>(options, *data)) <
        window_tolerance);
}

TEST_CASE("a parameter whose elements share memory is refused on all ranks") {
  struct one_for_all : regression {
    one_for_all() { register_parameter("wide", torch::ones({1}).expand({3})); }
  };
  const auto ends = run_job({.recipe = recipe_for<one_for_all>(std::make_shared<table_data>(12)),
                             .options = quick(2, 2, 3)});
  for (const auto& end : ends)
    CHECK_THAT(text_of(end.error), Catch::Contains("a single memory location"));
}

TEST_CASE("a parameter with another layout on one rank is refused at the start") {
  struct turned_on_one : regression {
    turned_on_one() {
      static std::atomic<int> made{0};
      const auto rows = torch::zeros({3, 4});
      register_parameter("either", made++ % 2 == 0 ? rows : rows.t().contiguous().t());
    }
  };
  const auto ends = run_job({.recipe = recipe_for<turned_on_one>(std::make_shared<table_data>(12)),
                             .options = quick(2, 2, 3)});
  for (const auto& end : ends) CHECK_THAT(text_of(end.error), Catch::Contains("rank 1's module"));
}

// --- batch norm ----------------------------------------------------------------------------------

namespace {

struct full_batches : table_data {
  using table_data::table_data;
  data_loading loading(stage, std::int32_t) override { return {.drop_last = true}; }
};

}  // namespace

TEST_CASE("a rank has one sample for batch norm: the error names drop_last, which helps") {
  auto options = quick(2, 4, 1000);
  options.max_epochs = 2;
  const auto fit_of = [&](data_ptr data) {
    return run_job(
        {.recipe = recipe_for<regression>(std::move(data), regression_choices{.batch_norm = true}),
         .options = options});
  };
  for (const std::int64_t samples : {25, 26}) {  // the rest of three batches: 1 and 0, 1 and 1
    CAPTURE(samples);
    const auto ends = fit_of(std::make_shared<table_data>(samples));
    CHECK_THAT(ends[0].record.what, Catch::Contains("one sample in micro-batch 3 of the epoch") &&
                                        Catch::Contains("set drop_last for the training data"));
    REQUIRE(ends[0].record.causes.size() == 1);
    CHECK_THAT(ends[0].record.causes[0].what, Catch::Contains("more than 1 value per channel"));
    const auto full = fit_of(std::make_shared<full_batches>(samples));
    CHECK(text_of(full[0].error) == "nothing");
    CHECK(full[0].loop.samples == 2 * 24);
  }
  const auto even = fit_of(std::make_shared<table_data>(28));  // two samples each
  CHECK(text_of(even[0].error) == "nothing");
  CHECK(even[0].loop.samples == 2 * 28);
}

TEST_CASE("skip_epoch: the row has the last step's values, and not those of the window it drops") {
  struct skipping : regression {
    batch_verdict on_train_batch_start(const batch&, std::int64_t index) override {
      log("train/batch", static_cast<double>(index));
      return index == 3 ? batch_verdict::skip_epoch : batch_verdict::proceed;
    }
  };
  auto options = quick(1, 4, 2);
  options.accumulate_grad_batches = 2;
  options.max_epochs = 1;
  options.max_steps.reset();
  const auto ends = run_good_job(
      {.recipe = recipe_for<skipping>(std::make_shared<table_data>(24)), .options = options});
  CHECK(ends[0].loop.steps == 1);
  CHECK(ends[0].loop.last.at("train/batch") == 0.5);  // of batches 0 and 1
}

TEST_CASE("a frozen sub-module stays in evaluation mode, whatever on_validation_model_eval does") {
  struct frozen : regression {
    frozen() : regression({.batch_norm = true}) {}
    torch::nn::Module& norm() { return *net->ptr(1); }
    void on_fit_start() override { norm().eval(); }
    void on_validation_model_eval() override { net->ptr(0)->eval(); }  // without the base's
    batch_verdict on_train_batch_start(const batch&, std::int64_t) override {
      expect(!norm().is_training() && net->ptr(0)->is_training());
      return batch_verdict::undecided;
    }
  };
  auto options = quick(1, 4, 6);
  options.num_sanity_val_steps = 1;
  run_good_job(
      {.recipe = recipe_for<frozen>(std::make_shared<table_data>(8, 4, 8)), .options = options});
}

TEST_CASE("a plateau scheduler with steps as its interval is refused") {
  torch::optim::SGD sgd{{torch::zeros({1})}, 0.1};
  const auto one = std::make_shared<torch::optim::ReduceLROnPlateauScheduler>(sgd);
  CHECK_THROWS_WITH(scheduler(one, {.every = schedule::interval::step}),
                    Catch::Contains("leave out schedule::every"));
}

TEST_CASE("a plateau scheduler follows a value of training in a fit without validations") {
  struct plateaued : regression {
    void on_train_epoch_end(std::int64_t) override { log("train/score", 1); }
    optimizers configure_optimizers() override {
      auto sgd = std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(0.5));
      return optimizers{sgd}.attach(
          std::make_shared<torch::optim::ReduceLROnPlateauScheduler>(
              *sgd, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, 1),
          {.monitor = "train/score"});
    }
    void on_fit_end() override {
      const auto& one = *optimizers_in_use()->all()[0].optimizer;
      expect(one.param_groups()[0].options().get_lr() < 0.5);
    }
  };
  auto options = quick(1, 4, 40);
  options.max_epochs = 10;
  run_good_job(
      {.recipe = recipe_for<plateaued>(std::make_shared<table_data>(16)), .options = options});
}

// --- the length of a fit -------------------------------------------------------------------------

namespace {

struct loaded_data : table_data {
  loaded_data(std::int64_t samples, data_loading how) : table_data(samples), how_(std::move(how)) {}
  data_loading loading(stage, std::int32_t) override { return how_; }

private:
  data_loading how_;
};

data_ptr with_drop_last(std::int64_t samples) {
  return std::make_shared<loaded_data>(samples, data_loading{.drop_last = true});
}

trainer_options epochs_of(std::int32_t ranks, std::int64_t batch_size, std::int64_t max_epochs) {
  auto options = quick(ranks, batch_size, 0);
  options.max_steps.reset();
  options.max_epochs = max_epochs;
  return options;
}

// As docs/trainer.md has it.
struct annealed : troupe::module {
  troupe::optimizers configure_optimizers() override {
    return troupe::optimizers{torch::optim::AdamW(parameters(), 0.001)}.scheduled(
        troupe::schedules::one_cycle({.max_lr = {0.01}, .total_steps = estimated_steps().value()}),
        {.every = troupe::schedule::interval::step});
  }
};

/// Asks for the lengths in configure_optimizers, and again at the end.
struct asks_lengths : regression {
  optimizers configure_optimizers() override {
    batches = batches_per_epoch();
    steps = estimated_steps();
    return regression::configure_optimizers();
  }
  void on_train_end() override {
    expect(batches == batches_per_epoch() && steps == estimated_steps());
    add_to_queue(value_tuple{{batches, steps.value_or(-1)}});
  }
  std::int64_t batches = 0;
  std::optional<std::int64_t> steps;
};

value both_lengths(std::int64_t batches, std::int64_t steps) {
  return value_tuple{{batches, steps}};
}

std::string refused_fit(const trainer_options& options, const data_ptr& data) {
  return text_of(run_job({.recipe = recipe_for<regression>(data), .options = options})[0].error);
}

}  // namespace

TEST_CASE("fit lengths: the figures of configure_optimizers are those of the fit, on all ranks") {
  struct wanted {
    trainer_options options;
    data_ptr data;
    std::int64_t batches, steps;
  };
  const auto with = [](trainer_options options, auto change) {
    change(options);
    return options;
  };
  const auto whole = std::make_shared<table_data>(30);
  const std::vector<wanted> all{
      {epochs_of(1, 4, 2), whole, 8, 16},
      {epochs_of(2, 4, 3), whole, 4, 12},
      {epochs_of(2, 4, 3), with_drop_last(30), 3, 9},
      {with(epochs_of(2, 4, 3), [](auto& o) { o.max_steps = 5; }), whole, 4, 5},
      {with(epochs_of(1, 4, 3), [](auto& o) { o.limit_train_batches = std::int64_t{6}; }), whole, 6,
       18},
      {with(epochs_of(1, 4, 3), [](auto& o) { o.limit_train_batches = 0.5; }), whole, 4, 12},
      {with(epochs_of(1, 4, 2), [](auto& o) { o.accumulate_grad_batches = 3; }), whole, 8, 6},
      // Epoch 0: 8 steps; 1 and 2: 4 each; 3: 2.
      {with(epochs_of(1, 4, 4),
            [](auto& o) {
              o.accumulate_schedule = {{1, 2}, {3, 5}};
            }),
       whole, 8, 18},
      {with(epochs_of(1, 4, 2), [](auto& o) { o.overfit_batches = std::int64_t{2}; }), whole, 2, 4},
      {with(epochs_of(1, 4, 9), [](auto& o) { o.fast_dev_run = 2; }), whole, 2, 2},
      {with(epochs_of(1, 4, -1), [](auto& o) { o.max_steps = 10; }), whole, 8, 10}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const auto ends =
        run_good_job({.recipe = recipe_for<asks_lengths>(all[i].data), .options = all[i].options});
    for (const auto& end : ends) {
      CHECK(end.loop.steps == all[i].steps);
      REQUIRE(!end.queued.empty());
      CHECK(end.queued.front() == both_lengths(all[i].batches, all[i].steps));
    }
  }
}

TEST_CASE("fit lengths: no limit, huge limits and no data") {
  auto options = epochs_of(1, 4, -1);
  CHECK(length_of(options, 8).steps == std::nullopt);
  CHECK(length_of(options, 0).steps == 0);
  options.max_epochs = std::numeric_limits<std::int64_t>::max();
  CHECK(length_of(options, 8).steps == options.max_epochs);
  options.max_steps = 7;
  CHECK(length_of(options, 8).steps == 7);
}

TEST_CASE("fit lengths: a resumed fit has those of the first one") {
  const auto data = std::make_shared<table_data>(30);
  auto options = epochs_of(2, 4, 3);
  auto first = options;
  first.max_steps = 6;
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<one_checkpoint>(
      run_good_job({.recipe = recipe_for<asks_lengths>(data), .options = first})[0].snapshot);
  const auto ends = run_good_job(
      {.recipe = recipe_for<asks_lengths>(plugins, data), .options = options, .resume = "there"});
  for (const auto& end : ends) CHECK(end.queued.front() == both_lengths(4, 12));
}

TEST_CASE("fit lengths: a module that asks reads the same data as one that does not") {
  struct drawn : table_data {
    drawn() : table_data(8) {}
    dataset_ptr train() override {
      auto rows = std::make_shared<table_data::rows>();
      rows->inputs = torch::randn({12, 4});
      rows->targets = rows->inputs.sum(1, true);
      return rows;
    }
  };
  const auto data = std::make_shared<drawn>();
  const auto options = epochs_of(2, 2, 2);
  CHECK(distance(trained<asks_lengths>(options, data), trained<regression>(options, data)) == 0);
}

TEST_CASE("fit lengths: a schedule by step needs no figures of its own, in checks too") {
  struct cycling : regression {
    cycling()
        : regression({.optimize = [](regression& m) {
            return optimizers{torch::optim::SGD(m.parameters(), 0.1)}.scheduled(
                schedules::one_cycle({.max_lr = {0.1}, .total_steps = m.estimated_steps().value()}),
                {.every = schedule::interval::step});
          }}) {}
  };
  const auto data = std::make_shared<table_data>(16);
  auto options = epochs_of(2, 4, 3);
  options.precision = precision_kind::bf16_mixed;  // the check makes optimizers
  const auto recipe = recipe_for<cycling>(data);
  CHECK_NOTHROW(recipe->check_fit(options, nullptr, ""));
  const auto end = run_good_job({.recipe = recipe, .options = options})[0];
  CHECK(end.loop.steps == 6);
  CHECK_NOTHROW(recipe->check_fit(options, end.snapshot.get(), "there"));
}

TEST_CASE("fit lengths: outside of a fit there are none") {
  CHECK_THROWS_WITH(regression{}.estimated_steps(), Catch::Contains("only a fit has them"));
  struct testing_step : regression {
    void on_test_start() override { batches_per_epoch(); }
  };
  struct early : regression {
    void prepare_data() override { batches_per_epoch(); }
  };
  const auto data = std::make_shared<table_data>(8, 4, 8);
  const auto said = [&](const recipe_ptr& recipe, stage purpose) {
    return text_of(
        run_job({.recipe = recipe, .options = epochs_of(1, 4, 1), .purpose = purpose})[0].error);
  };
  CHECK_THAT(said(recipe_for<testing_step>(data), stage::test), Catch::Contains("only a fit"));
  CHECK_THAT(said(recipe_for<early>(data), stage::train), Catch::Contains("from setup on"));
}

TEST_CASE("a fit whose data have no batch is refused") {
  CHECK_THAT(refused_fit(epochs_of(2, 4, 1), with_drop_last(7)),
             Catch::Contains("drop_last leaves no batch") && Catch::Contains("7 samples") &&
                 Catch::Contains("has 8 (2 ranks x batch_size 4)"));
  CHECK(refused_fit(epochs_of(2, 4, 1), with_drop_last(8)) == "nothing");
  CHECK_THAT(refused_fit(epochs_of(1, 4, 1), std::make_shared<table_data>(0)),
             Catch::Contains("no samples"));
  auto dry = epochs_of(2, 4, 0);
  CHECK(refused_fit(dry, with_drop_last(7)) == "nothing");
  dry.max_epochs = 1;
  dry.max_steps = 0;
  CHECK(refused_fit(dry, with_drop_last(7)) == "nothing");
  dry.max_steps.reset();
  dry.limit_train_batches = std::int64_t{0};
  CHECK(refused_fit(dry, with_drop_last(7)) == "nothing");
}

TEST_CASE("overfit_batches leaves out shuffle and order") {
  loaded_data data{4, {.order = bucketed_sampler({4, 3, 2, 1}, 4)}};
  auto options = epochs_of(1, 2, 1);
  CHECK(loading_of(data, stage::train, 0, options).order);
  options.overfit_batches = std::int64_t{1};
  const auto how = loading_of(data, stage::train, 0, options);
  CHECK_FALSE((how.order || how.shuffle));
}

TEST_CASE(
    "a plateau scheduler of a training value steps at the ends of epochs, beside validations") {
  struct watching : regression {
    explicit watching(const std::string& monitor)
        : regression({.optimize = [monitor](regression& m) {
            return optimizers{torch::optim::SGD(m.parameters(), 1e-3)}
                .scheduled<torch::optim::ReduceLROnPlateauScheduler>(
                    {.monitor = monitor}, torch::optim::ReduceLROnPlateauScheduler::min, 0.1, 0);
          }}) {}
    step_output training_step(const batch& b, std::int64_t index) override {
      log("train/epoch", static_cast<double>(at().epoch), {.on_step = false, .on_epoch = true});
      return regression::training_step(b, index);
    }
    void lr_scheduler_step(scheduler& which, std::optional<double> metric) override {
      module::lr_scheduler_step(which, metric);
      moves.push_back(metric.value());
    }
    void on_train_end() override { expect(moves == std::vector<double>{0, 1, 2}); }
    std::vector<double> moves;
  };
  const auto data = std::make_shared<table_data>(16, 4, 4);
  auto options = epochs_of(2, 4, 3);
  options.val_check_interval = std::int64_t{1};  // twice in an epoch
  const auto ends = run_good_job(
      {.recipe = recipe_for<watching>(data, std::string{"train/epoch"}), .options = options});
  CHECK(ends[0].loop.steps == 6);
  const auto wrong =
      run_job({.recipe = recipe_for<watching>(data, std::string{"train/f1"}), .options = options});
  CHECK_THAT(text_of(wrong[0].error), Catch::Contains("\"train/f1\", which was not logged"));
}
