// Goal: each precision trains, 16-mixed scales and skips as Python's GradScaler does on all ranks,
// and a user's precision can take over every part of a step. (tests/python/numbers_oracle.py
// compares scales and weights with Python's.)
#include <ATen/autocast_mode.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/one_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

trainer_options in(precision_kind kind, std::int64_t steps, std::int32_t ranks = 2) {
  auto options = quick(ranks, 4, steps);
  options.precision = kind;
  return options;
}

torch_plugins scaled(scaler_options how) {
  torch_plugins plugins;
  plugins.precisions["16-mixed"] = [how] { return make_f16_mixed(how); };
  return plugins;
}

nlohmann::json scaler_in(const snapshot_ptr& taken) {
  const auto all = nlohmann::json::parse(taken->state).at("precision");
  CHECK(all.at("name") == "16-mixed");
  return nlohmann::json::parse(all.at("state").get<std::string>());
}

/// Spoils the gradients of rank 1 in one step: before they are summed, or after it.
struct spoiled : regression {
  enum class when { never, before_sum, after_sum };
  spoiled(when how, std::int64_t step) : how_(how), step_(step) {}
  void backward(const at::Tensor& loss, const value& arguments) override {
    regression::backward(due(when::before_sum) ? loss * inf : loss, arguments);
  }
  void on_after_backward() override {
    if (due(when::after_sum)) net[0]->as<torch::nn::Linear>()->bias.mutable_grad()[0].fill_(inf);
  }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.05))}
        .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 1, 0.5);
  }
  bool due(when what) const { return how_ == what && rank() == 1 && at().step == step_; }
  when how_;
  std::int64_t step_;
};

snapshot_ptr end_of(const trainer_options& options, spoiled::when how, std::int64_t step) {
  const auto data = std::make_shared<table_data>(64);
  const auto ends =
      run_good_job({.recipe = recipe_for<spoiled>(data, how, step), .options = options});
  CHECK(ends[0].loop.steps == options.max_steps);
  CHECK(ends[0].loop.samples == 8 * *options.max_steps);
  return ends[0].snapshot;
}

double rate_in(const snapshot_ptr& taken) {
  return nlohmann::json::parse(taken->state)
      .at("optimizers")[0]
      .at("groups")
      .at("groups")[0]
      .at("lr");
}

}  // namespace

TEST_CASE("16-mixed computes in float16 and keeps float32 weights") {
  struct half_inside : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      const auto y = net->forward(b[0]);
      if (y.scalar_type() != at::kHalf) throw std::runtime_error("the output is not float16");
      return fn::mse_loss(y.to(at::kFloat), b[1]);
    }
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      if (at::autocast::is_autocast_enabled(at::kCPU))
        throw std::runtime_error("autocast is still enabled");
    }
  };
  const auto data = std::make_shared<table_data>(32);
  auto options = in(precision_kind::f16_mixed, 6);
  options.gradient_clip_val = 0.1;  // of unscaled gradients
  const auto mixed = trained<half_inside>(options, data);
  for (const auto& [name, tensor] : mixed) CHECK(tensor.scalar_type() == at::kFloat);
  options.precision = precision_kind::f32_true;
  const auto apart = distance(mixed, trained<regression>(options, data));
  CHECK(apart > 1e-7);
  CHECK(apart < 1e-3);
}

TEST_CASE("mixed precision: another rank's end of a step and an update change no other result") {
  const auto name = GENERATE("bf16-mixed", "16-mixed");
  const auto numbers = make_precision(default_precisions(), name);
  auto weights = torch::linspace(-1, 1, 256).view({16, 16}).clone().requires_grad_();
  const auto inputs = torch::linspace(0, 1, 64).view({4, 16});
  const auto gradient = [&](const std::function<void()>& meanwhile) {
    weights.mutable_grad() = at::Tensor{};
    const auto held = numbers->forward_context();
    auto y = torch::linear(inputs, weights);
    meanwhile();
    y = torch::linear(y.tanh(), weights);  // the second use of the weights in a step
    y.to(at::kFloat).square().sum().backward();
    return weights.grad().clone();
  };
  const auto alone = gradient([] {});
  const auto beside = gradient([&] { std::thread{[&] { numbers->forward_context(); }}.join(); });
  CHECK(alone.equal(beside));
  const auto held = numbers->forward_context();
  const auto before = torch::linear(inputs, weights);
  const torch::NoGradGuard no_grad;
  weights.mul_(2);
  CHECK(torch::linear(inputs, weights).equal(before * 2));
}

TEST_CASE("a true precision converts weights and buffers but not the counters of batch norm") {
  const auto data = std::make_shared<table_data>(32);
  const auto [kind, type] = GENERATE(std::pair{precision_kind::f16_true, at::kHalf},
                                     std::pair{precision_kind::bf16_true, at::kBFloat16},
                                     std::pair{precision_kind::f64_true, at::kDouble});
  const regression_choices how{.batch_norm = true, .optimize = {}};
  auto options = in(kind, 6);
  const auto weights = trained<regression>(options, data, how);
  CHECK(weights.at("net.0.weight").scalar_type() == type);
  CHECK(weights.at("net.1.running_mean").scalar_type() == type);
  CHECK(weights.at("net.1.num_batches_tracked").item<std::int64_t>() == 6);
  CHECK(weights.at("net.1.num_batches_tracked").scalar_type() == at::kLong);
  options.precision = precision_kind::f32_true;
  CHECK(distance(weights, trained<regression>(options, data, how)) < 0.1);
}

TEST_CASE("an infinite gradient on one rank: all ranks skip the step and lower the scale") {
  using when = spoiled::when;
  const auto how = GENERATE(when::before_sum, when::after_sum);
  const auto whole = in(precision_kind::f16_mixed, 2);
  const auto longer = in(precision_kind::f16_mixed, 3);
  const auto two = end_of(whole, when::never, 0);
  const auto skipped = end_of(longer, how, 2);
  CHECK(skipped->weights_digest == two->weights_digest);
  CHECK(end_of(longer, when::never, 0)->weights_digest != two->weights_digest);
  CHECK(scaler_in(two).at("scale") == 65536);
  CHECK(scaler_in(two).at("_growth_tracker") == 2);
  CHECK(scaler_in(skipped).at("scale") == 32768);
  CHECK(scaler_in(skipped).at("_growth_tracker") == 0);
  // Schedulers step as in Lightning.
  CHECK(rate_in(skipped) == 0.05 * 0.125);
}

TEST_CASE("with the noop hook one rank has an infinite gradient: all ranks skip the step") {
  auto options = in(precision_kind::f16_mixed, 3);
  options.gradients.comm_hook = comm_hook_kind::noop;
  const auto skipped = end_of(options, spoiled::when::before_sum, 2);
  options.max_steps = 2;
  CHECK(skipped->weights_digest == end_of(options, spoiled::when::never, 0)->weights_digest);
}

TEST_CASE("16-mixed: a module that makes a step of some batches only leaves the scale right") {
  struct sparing : regression {
    void optimizer_step(std::int64_t epoch, std::int64_t index, torch::optim::Optimizer& optimizer,
                        const step_closure& closure) override {
      if (index % 2 == 0) return regression::optimizer_step(epoch, index, optimizer, closure);
      if (rank() == 1 && at().step == 3) spoils_ = true;
      closure();
      spoils_ = false;
    }
    void on_after_backward() override {
      if (spoils_) net[0]->as<torch::nn::Linear>()->bias.mutable_grad()[0].fill_(inf);
    }
    bool spoils_ = false;
  };
  const auto ends = run_good_job({.recipe = recipe_for<sparing>(std::make_shared<table_data>(64)),
                                  .options = in(precision_kind::f16_mixed, 5)});
  CHECK(scaler_in(ends[0].snapshot).at("scale") == 32768);
  CHECK(scaler_in(ends[0].snapshot).at("_growth_tracker") == 1);
}

TEST_CASE("a fit that resumes in any precision ends in the bytes of the whole fit") {
  const auto kind =
      GENERATE(precision_kind::f32_true, precision_kind::f64_true, precision_kind::bf16_mixed,
               precision_kind::bf16_true, precision_kind::f16_mixed, precision_kind::f16_true);
  CAPTURE(to_string(kind));
  const auto data = std::make_shared<table_data>(64);
  const auto io = std::make_shared<one_checkpoint>();
  torch_plugins plugins;
  plugins.checkpoints = io;
  const auto run = [&](std::int64_t steps, const std::string& resume) {
    const auto recipe = make_recipe([] { return std::make_shared<regression>(); }, data, plugins);
    return run_good_job({.recipe = recipe, .options = in(kind, steps), .resume = resume})[0]
        .snapshot;
  };
  const auto whole = run(6, {});
  io->kept = run(3, {});
  CHECK(run(6, "here")->weights_digest == whole->weights_digest);
}

TEST_CASE("a fit that resumes in another true precision keeps the optimizer's state in its type") {
  const auto data = std::make_shared<table_data>(64);
  const auto run = [&](precision_kind kind, std::int64_t steps, const snapshot_ptr& from) {
    const double eps = kind == precision_kind::f16_true ? 1e-4 : 1e-8;
    const regression_choices how{.optimize = [eps](regression& m) -> optimizers {
      return torch::optim::Adam(m.parameters(), torch::optim::AdamOptions(0.01).eps(eps));
    }};
    torch_plugins plugins;
    plugins.checkpoints = std::make_shared<one_checkpoint>(from);
    const auto recipe =
        make_recipe([=] { return std::make_shared<regression>(how); }, data, plugins);
    const auto* resume = from ? "here" : "";
    return run_job({.recipe = recipe, .options = in(kind, steps), .resume = resume})[0];
  };
  const auto half = run(precision_kind::bf16_true, 3, nullptr).snapshot;
  REQUIRE(half);
  const auto end = run(precision_kind::f32_true, 6, half);
  REQUIRE_FALSE(end.error);
  std::map<std::string, std::string> types;
  for (const auto& blob : end.snapshot->optimizer)
    if (!blob.shape.empty()) types[blob.name] = blob.dtype;
  CHECK(types.size() == 2 * weights_of(end.snapshot).size());
  for (const auto& [name, type] : types) CHECK(name + type == name + "F32");
  // The checkpoint's eps, 1e-8, is none in float16.
  const auto refused = text_of(run(precision_kind::f16_true, 6, half).error);
  CHECK_THAT(refused, Catch::Contains("precision 16-true cannot train with optimizer 0"));
}

TEST_CASE("a resumed run goes on with the scale of its checkpoint") {
  const auto data = std::make_shared<table_data>(64);
  const auto io = std::make_shared<one_checkpoint>();
  auto plugins = scaled({.init_scale = 8, .growth_interval = 3});
  plugins.checkpoints = io;
  const auto run = [&](std::int64_t steps, const std::string& resume) {
    const auto recipe = make_recipe([] { return std::make_shared<regression>(); }, data, plugins);
    return run_good_job({.recipe = recipe,
                         .options = in(precision_kind::f16_mixed, steps),
                         .resume = resume})[0]
        .snapshot;
  };
  const auto whole = run(8, "");
  CHECK(scaler_in(whole).at("scale") == 32);
  CHECK(scaler_in(whole).at("_growth_tracker") == 2);
  io->kept = run(5, "");
  plugins = scaled({});  // the checkpoint's settings go on, as in Python
  plugins.checkpoints = io;
  const auto resumed = run(8, "here");
  CHECK(scaler_in(resumed) == scaler_in(whole));
  CHECK(resumed->weights_digest == whole->weights_digest);
}

TEST_CASE("an optimizer that a precision cannot train is refused before ranks start") {
  const auto data = std::make_shared<table_data>(32);
  const auto refusal = [&](precision_kind kind, auto optimize) {
    const regression_choices how{.optimize = optimize};
    const auto recipe = recipe_for<regression>(data, how);
    const auto options = in(kind, 2);
    std::string before;
    try {
      recipe->check_fit(options, nullptr, "");
    } catch (const user_error& error) {
      before = error.what();
    }
    const auto ends = run_job({.recipe = recipe, .options = options});
    CHECK(before.empty() == !ends[0].error);
    CHECK((before.empty() || text_of(ends[0].error).find(before) != std::string::npos));
    return before;
  };
  const auto adam = [](double eps) {
    return [eps](regression& m) -> optimizers {
      return torch::optim::Adam(m.parameters(), torch::optim::AdamOptions(1e-3).eps(eps));
    };
  };
  const auto lbfgs = [](regression& m) -> optimizers {
    return torch::optim::LBFGS(m.parameters());
  };
  CHECK_THAT(refusal(precision_kind::f16_true, adam(1e-8)),
             Catch::Contains("precision 16-true cannot train with optimizer 0") &&
                 Catch::Contains("eps 1e-08 is 0 in float16"));
  CHECK(refusal(precision_kind::f16_true, adam(1e-4)).empty());
  CHECK(refusal(precision_kind::bf16_true, adam(1e-8)).empty());
  CHECK(refusal(precision_kind::f16_mixed, adam(1e-8)).empty());
  CHECK_THAT(refusal(precision_kind::f16_mixed, lbfgs),
             Catch::Contains("LBFGS runs its closure several times"));
}

TEST_CASE("Lightning's short names select the same precisions") {
  const auto all = default_precisions();
  CHECK(make_precision(all, "32")->name() == "32-true");
  CHECK(make_precision(all, "64")->name() == "64-true");
  CHECK(make_precision(all, "16")->name() == "16-mixed");
  CHECK(make_precision(all, "bf16")->name() == "bf16-mixed");
  CHECK_THROWS_WITH(make_precision(all, "8"), Catch::Contains("16-mixed, 16-true, 32-true"));
}

// --- the scaler itself ---------------------------------------------------------------------------

TEST_CASE("a scaler without gradients leaves its scale alone") {
  const auto parameter = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, 0.1);
  gradient_scaler scaler{{.init_scale = 8, .growth_interval = 1}};
  CHECK_FALSE(scaler.unscale(optimizer));
  CHECK_FALSE(scaler.usable(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 8);
  parameter.mutable_grad() = torch::zeros({1});
  CHECK_FALSE(scaler.unscale(optimizer));
  CHECK(scaler.usable(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 16);
  CHECK_FALSE(scaler.usable(optimizer));
  parameter.mutable_grad() = torch::full({1}, std::nan(""));
  CHECK(scaler.unscale(optimizer));
  CHECK_FALSE(scaler.usable(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 8);
}

TEST_CASE("an infinite gradient shrinks the scale, whatever the same optimizer finds later") {
  const auto parameter = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer({parameter}, 0.1);
  gradient_scaler scaler{{.init_scale = 8, .growth_interval = 1}};
  parameter.mutable_grad() = torch::full({1}, inf);
  CHECK(scaler.unscale(optimizer));
  SECTION("finite gradients") {
    parameter.mutable_grad() = torch::zeros({1});
    CHECK_FALSE(scaler.unscale(optimizer));
    CHECK(scaler.usable(optimizer));
  }
  SECTION("no gradients") {
    parameter.mutable_grad().reset();
    CHECK_FALSE(scaler.unscale(optimizer));
    CHECK_FALSE(scaler.usable(optimizer));
  }
  scaler.update();
  CHECK(scaler.scale() == 4);
  parameter.mutable_grad() = torch::zeros({1});
  CHECK_FALSE(scaler.unscale(optimizer));
  scaler.update();
  CHECK(scaler.scale() == 8);
}

TEST_CASE("a scaler refuses float16 gradients and impossible settings") {
  const auto parameter = torch::ones({2}, torch::TensorOptions(at::kHalf).requires_grad(true));
  torch::optim::SGD optimizer({parameter}, 0.1);
  parameter.mutable_grad() = torch::ones({2}, at::kHalf);
  gradient_scaler scaler;
  CHECK_THROWS_AS(scaler.unscale(optimizer), user_error);
  for (const auto& how :
       {scaler_options{.init_scale = 0}, scaler_options{.init_scale = inf},
        scaler_options{.growth_factor = 1}, scaler_options{.backoff_factor = 1},
        scaler_options{.backoff_factor = 0}, scaler_options{.growth_interval = 0}})
    CHECK_THROWS_AS(gradient_scaler{how}, user_error);
}

// --- a precision of the program's own ------------------------------------------------------------

namespace {

/// Replaces optimizer and schedule, opens contexts, and runs backward itself.
struct takes_over : precision {
  struct counts {
    std::atomic<int> built{0}, connected{0}, backwards{0}, forwards{0};
  };
  /// Raises one of the numbers below while it exists, in the thread of its rank.
  struct held : context {
    explicit held(int& which) : open(which) { ++open; }
    ~held() override { --open; }
    int& open;
  };
  static inline thread_local int open_inits = 0;
  static inline thread_local int open_forwards = 0;
  static void expect_open(int inits, int forwards) {
    expect(open_inits == inits && open_forwards == forwards);
  }
  explicit takes_over(std::shared_ptr<counts> by) : of(std::move(by)) {}
  std::string_view name() const override { return "takes over"; }
  std::unique_ptr<context> init_context() override {
    ++of->built;
    return std::make_unique<held>(open_inits);
  }
  std::unique_ptr<context> forward_context() override {
    ++of->forwards;
    return std::make_unique<held>(open_forwards);
  }
  void connect(troupe::module& which, optimizers& all, strategy&) override {
    ++of->connected;
    all = optimizers{torch::optim::SGD(which.parameters(), torch::optim::SGDOptions(0.2))}
              .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 1, 0.5);
  }
  void backward(const at::Tensor& loss, troupe::module&, torch::optim::Optimizer& optimizer,
                const value&) override {
    ++of->backwards;
    expect_open(0, 0);
    if (optimizer.param_groups()[0].options().get_lr() > 0.2)
      throw std::runtime_error("the optimizer was not replaced");
    loss.backward();
  }
  std::shared_ptr<counts> of;
};

/// Its optimizer is replaced. Checks which contexts of the precision are open.
struct fast : regression {
  fast() { takes_over::expect_open(1, 0); }
  void configure_model() override { takes_over::expect_open(1, 0); }
  optimizers configure_optimizers() override {
    takes_over::expect_open(0, 0);
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.7));
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    takes_over::expect_open(0, 1);
    return regression::training_step(b, index);
  }
  void on_before_backward(const at::Tensor&) override { takes_over::expect_open(0, 0); }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    takes_over::expect_open(0, 0);
  }
};
struct slowing : regression {
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.2))}
        .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 1, 0.5);
  }
};

struct slowing_adam : regression {
  optimizers configure_optimizers() override { return torch::optim::Adam(parameters(), 0.1); }
};

}  // namespace

TEST_CASE("a precision may replace optimizers and schedulers and run backward itself") {
  const auto data = std::make_shared<table_data>(32);
  const auto seen = std::make_shared<takes_over::counts>();
  torch_plugins plugins;
  plugins.precisions["takes over"] = [=] { return std::make_unique<takes_over>(seen); };
  auto options = quick(2, 4, 5);
  const auto expected = trained<slowing>(quick(2, 4, 5), data);
  options.precision = own_name{"takes over"};
  const auto ends = run_good_job({.recipe = recipe_for<fast>(plugins, data), .options = options});
  CHECK(distance(weights_of(ends[0].snapshot), expected) == 0);
  CHECK(seen->connected == 2);
  CHECK(seen->backwards == 2 * 5);
  CHECK(seen->built == 2 * 2);  // the module, and configure_model
  CHECK(seen->forwards == 2 * 5);
  plugins.checkpoints = std::make_shared<one_checkpoint>(ends[0].snapshot);
  options.max_steps = 6;
  const auto more = make_recipe([] { return std::make_shared<slowing_adam>(); }, data, plugins);
  CHECK_NOTHROW(more->check_fit(options, ends[0].snapshot.get(), "here"));
  CHECK(run_good_job({.recipe = more, .options = options, .resume = "here"})[0].loop.steps == 6);
}

TEST_CASE("late optimizers: the precision sees them when they are there") {
  struct late : data_parallel {
    using data_parallel::data_parallel;
    bool late_optimizers() const override { return true; }
    void pre_dispatch() override { expect(!optimizers_in_use()); }
    void dispatch() override { expect(optimizers_in_use()); }
  };
  const auto data = std::make_shared<table_data>(32);
  const auto seen = std::make_shared<takes_over::counts>();
  torch_plugins plugins;
  plugins.precisions["takes over"] = [=] { return std::make_unique<takes_over>(seen); };
  plugins.strategies["late"] = [](strategy_parts parts) {
    return std::make_unique<late>(std::move(parts));
  };
  auto options = quick(2, 4, 5);
  options.precision = own_name{"takes over"};
  options.strategy = own_name{"late"};
  const auto ends = run_good_job({.recipe = recipe_for<fast>(plugins, data), .options = options});
  CHECK(distance(weights_of(ends[0].snapshot), trained<slowing>(quick(2, 4, 5), data)) == 0);
  CHECK(seen->connected == 2);
}

TEST_CASE("arguments that a step returns reach the module's backward") {
  struct scaled_backward : regression {
    step_output training_step(const batch& b, std::int64_t i) override {
      value_map map;
      map.items.emplace("loss", boxed(regression::training_step(b, i).loss()));
      map.items.emplace("backward_arguments", value{3.0});
      return map;
    }
    void backward(const at::Tensor& loss, const value& arguments) override {
      (loss * *arguments.get_if<double>()).backward();
    }
  };
  struct tripled : regression {
    step_output training_step(const batch& b, std::int64_t i) override {
      return regression::training_step(b, i).loss() * 3;
    }
  };
  const auto data = std::make_shared<table_data>(32);
  CHECK(distance(trained<scaled_backward>(quick(2, 4, 4), data),
                 trained<tripled>(quick(2, 4, 4), data)) < 1e-6);
}

namespace {

/// With a number that no gradient reaches.
template <c10::ScalarType Type>
struct phased : regression {
  explicit phased(std::shared_ptr<std::atomic<int>> steps) : steps_(std::move(steps)) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    ++*steps_;
    return regression::training_step(b, index);
  }
  at::Tensor phase = register_buffer("phase", torch::zeros({2}, Type));

private:
  std::shared_ptr<std::atomic<int>> steps_;
};

}  // namespace

TEST_CASE("a tensor of a type that checkpoints cannot hold: the fit is refused before its steps") {
  const temporary_folder folder;
  const auto steps = std::make_shared<std::atomic<int>>(0);
  const data_ptr data = std::make_shared<table_data>(32);
  const auto run_folder = [&](const char* name) { return (folder.path() / name).string(); };
  trainer saving{quick(2, 4, 3), {.run_folder = run_folder("wide")}};
  const auto refused = saving.fit<phased<c10::kComplexDouble>>(data, steps);
  REQUIRE(refused.failed_with);
  CHECK(refused.failed_with->record.code == errc::checkpoint);
  CHECK(refused.failed_with->record.rank == 0);
  CHECK_THAT(refused.failed_with->record.what,
             Catch::Contains("tensor \"phase\" is of ComplexDouble") &&
                 Catch::Contains("Give it another type, or train without checkpoints"));
  CHECK(*steps == 0);
  CHECK(trainer{quick(2, 4, 3)}.fit<phased<c10::kComplexDouble>>(data, steps).ok());
  CHECK(*steps == 6);
  trainer narrow{quick(2, 4, 3), {.run_folder = run_folder("narrow")}};
  const auto saved = narrow.fit<phased<c10::kComplexFloat>>(data, steps);
  CHECK(saved.ok());
  CHECK_FALSE(saved.last_checkpoint.empty());
}
