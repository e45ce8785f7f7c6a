// Goal: the fused optimizer step ends in the bits of the separate one and leaves the same state.
// Schedules and reduce_on_plateau change rates as PyTorch does. A rate is found as by Lightning.
#include <torch/optim.h>

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/outcome.hpp"
#include "troupe/tuner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using step = std::function<optimizers(regression&)>;
namespace optim = torch::optim;

struct named_step {
  const char* name;
  step make;
};

const std::vector<named_step> steps{
    {"sgd", [](regression& m) { return optim::SGD(m.parameters(), 0.05); }},
    {"momentum, decay",
     [](regression& m) {
       return optim::SGD(m.parameters(),
                         optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).dampening(0.1));
     }},
    {"nesterov",
     [](regression& m) {
       return optim::SGD(m.parameters(), optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
     }},
    {"adam, decay",
     [](regression& m) {
       return optim::Adam(m.parameters(), optim::AdamOptions(0.01).weight_decay(0.1));
     }},
    {"amsgrad",
     [](regression& m) {
       return optim::Adam(m.parameters(), optim::AdamOptions(0.01).amsgrad(true));
     }},
    {"adamw",
     [](regression& m) { return optim::AdamW(m.parameters(), optim::AdamWOptions(0.01)); }},
    {"a schedule and two groups",
     [](regression& m) {
       auto all = m.parameters();
       std::vector<optim::OptimizerParamGroup> groups;
       groups.emplace_back(std::vector<at::Tensor>{all.begin(), all.begin() + 1});
       groups.emplace_back(
           std::vector<at::Tensor>{all.begin() + 1, all.end()},
           std::make_unique<optim::SGDOptions>(optim::SGDOptions(0.02).momentum(0.5)));
       return optimizers{optim::SGD(groups, optim::SGDOptions(0.05).momentum(0.9))}
           .scheduled<optim::StepLR>({.every = schedule::interval::step}, 2, 0.5);
     }},
};

/// Wide enough for slices of several lengths, with unused, sometimes used and empty parameters.
struct wide : regression {
  explicit wide(step optimize) : regression({.optimize = std::move(optimize)}) {
    net->push_back(torch::nn::Linear(1, 150));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(150, 150));
    net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(150, 1));
    unused = register_parameter("unused", torch::ones({3}));
    sometimes = register_parameter("sometimes", torch::ones({1}));
    empty = register_parameter("empty", torch::ones({0, 2}));
  }
  step_output training_step(const batch& b, std::int64_t) override {
    auto y = net->forward(b[0]) + empty.sum();
    if (rank() == 0 && at().step % 2 == 1) y = y * sometimes;
    return fn::mse_loss(y, b[1]);
  }
  void on_train_end() override {
    const auto* how = dynamic_cast<data_parallel*>(strategy_in_use());
    if (how && how->fuses(0)) ++fused;
    if (!mine_->state().empty()) ++holders;
  }
  optimizers configure_optimizers() override {
    auto made = regression::configure_optimizers();
    mine_ = made.all()[0].optimizer;
    return made;
  }
  bool reads_gradients() const override { return !quiet; }
  static inline std::atomic<int> fused{0};
  static inline std::atomic<int> holders{0};
  static inline std::atomic<bool> quiet{false};
  at::Tensor unused, sometimes, empty;
  std::shared_ptr<optim::Optimizer> mine_;
};

/// Resumes from a snapshot in memory.
struct reloading : data_parallel {
  reloading(strategy_parts parts, snapshot_ptr from)
      : data_parallel(parts, data_parallel_options_of(parts.about.options.gradients)),
        from_(std::move(from)) {}
  snapshot load_checkpoint(const std::string&) override { return *from_; }
  snapshot_ptr from_;
};

snapshot_ptr fitted(trainer_options options, const data_ptr& data, const step& make,
                    std::optional<bool> fuse, const snapshot_ptr& from = nullptr) {
  options.gradients.fused_step = fuse;
  wide::fused = wide::holders = 0;
  torch_plugins plugins;
  if (from)
    plugins.strategies["data_parallel"] = [from](strategy_parts parts) {
      return std::make_unique<reloading>(std::move(parts), from);
    };
  const auto ends = run_good_job(
      {.recipe = make_recipe([make] { return std::make_shared<wide>(make); }, data, plugins),
       .options = options,
       .resume = from ? "memory" : ""});
  return ends[0].snapshot;
}

bool same_optimizer_state(const snapshot_ptr& a, const snapshot_ptr& b) {
  if (a->optimizer.size() != b->optimizer.size()) return false;
  for (std::size_t i = 0; i < a->optimizer.size(); ++i) {
    const auto& x = a->optimizer[i];
    const auto& y = b->optimizer[i];
    if (x.name != y.name || x.shape != y.shape || *x.bytes != *y.bytes) return false;
  }
  return a->state == b->state;  // groups and step counts
}

}  // namespace

TEST_CASE("the fused step gives the bits of the separate one in weights and optimizer state") {
  const auto world = GENERATE(1, 2, 3);
  const auto how = GENERATE(range(0, 7));
  const auto accumulate = GENERATE(1, 2);
  const auto data = std::make_shared<table_data>(25);
  auto options = quick(world, 4, 5);
  options.accumulate_grad_batches = accumulate;
  CAPTURE(world, steps[how].name, accumulate);
  const auto apart = fitted(options, data, steps[how].make, false);
  const auto fused = fitted(options, data, steps[how].make, true);
  CHECK(wide::fused == (world > 1 ? world : 0));
  CHECK(fused->weights_digest == apart->weights_digest);
  CHECK(same_optimizer_state(fused, apart));
}

TEST_CASE("the fused step clips by norm and by value") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(GENERATE(2, 3), 4, 5);
  const auto how = GENERATE(1, 3);
  const auto loose = fitted(options, data, steps[how].make, false);
  options.gradient_clip_val = 0.01;
  options.gradient_clip_algorithm =
      GENERATE(hooks::clip_gradients::algorithm::norm, hooks::clip_gradients::algorithm::value);
  const auto apart = fitted(options, data, steps[how].make, false);
  const auto fused = fitted(options, data, steps[how].make, true);
  CHECK(apart->weights_digest != loose->weights_digest);
  CHECK(fused->weights_digest == apart->weights_digest);
  CHECK(same_optimizer_state(fused, apart));
}

TEST_CASE("a run may change between fused and separate steps when it resumes") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 4, 6);
  const auto how = GENERATE(1, 3);
  const auto whole = fitted(options, data, steps[how].make, false);
  CHECK(wide::holders == 2);
  options.max_steps = 3;
  const bool first = GENERATE(true, false);
  const auto half = fitted(options, data, steps[how].make, first);
  CHECK(wide::holders == (first ? 1 : 2));  // with the fused step only one rank holds the state
  options.max_steps = 6;
  const auto rest = fitted(options, data, steps[how].make, !first, half);
  CHECK(rest->weights_digest == whole->weights_digest);
  CHECK(same_optimizer_state(rest, whole));
}

TEST_CASE("by default the step is fused if no module reads gradients") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 2);
  wide::quiet = GENERATE(true, false);
  fitted(options, data, steps[0].make, std::nullopt);
  CHECK(wide::fused == (wide::quiet ? 2 : 0));
  wide::quiet = false;
}

namespace {

struct of_its_own : optim::SGD {
  using SGD::SGD;
};

struct steps_itself : wide {
  using wide::wide;
  void optimizer_step(std::int64_t, std::int64_t, optim::Optimizer& optimizer,
                      const step_closure& closure) override {
    optimizer.step(closure);
  }
};

std::string refusal(trainer_options options, const step& make) {
  options.gradients.fused_step = true;
  const auto data = std::make_shared<table_data>(24);
  return text_of(run_job({.recipe = recipe_for<wide>(data, make), .options = options})[0].error);
}

}  // namespace

TEST_CASE("a step that cannot be fused is an error if requested and separate by default") {
  auto options = quick(2, 4, 2);
  const step other = [](regression& m) { return optim::RMSprop(m.parameters(), 0.01); };
  const step derived = [](regression& m) { return of_its_own(m.parameters(), 0.01); };
  CHECK_THAT(refusal(options, other), Catch::Contains("the optimizer is none of"));
  CHECK_THAT(refusal(options, derived), Catch::Contains("the optimizer is none of"));
  auto hooked = options;
  hooked.gradients.comm_hook = comm_hook_kind::bf16_compress;
  CHECK_THAT(refusal(hooked, steps[0].make), Catch::Contains("a communication hook is set"));
  auto precise = options;
  precise.precision = precision_kind::f64_true;
  CHECK_THAT(refusal(precise, steps[0].make), Catch::Contains("the precision is 64-true"));
  wide::quiet = true;
  fitted(options, std::make_shared<table_data>(24), other, std::nullopt);
  wide::quiet = false;
  CHECK(wide::fused == 0);
}

TEST_CASE("a module with its own optimizer_step gets an error that names fused_step") {
  auto options = quick(2, 4, 2);
  options.gradients.fused_step = true;
  const auto data = std::make_shared<table_data>(24);
  const auto ends =
      run_job({.recipe = recipe_for<steps_itself>(data, steps[0].make), .options = options});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("set strategy.fused_step to false"));
}

TEST_CASE("a rank that fails before the fused step releases the others") {
  struct fails : wide {
    using wide::wide;
    void on_before_optimizer_step(optim::Optimizer&) override {
      if (rank() == 1 && at().step == 2) throw std::runtime_error("before the step");
    }
  };
  auto options = quick(3, 4, 5);
  options.gradients.fused_step = true;
  const auto data = std::make_shared<table_data>(24);
  const auto ends = run_job({.recipe = recipe_for<fails>(data, steps[1].make), .options = options});
  CHECK(text_of(ends[1].error) == "std::runtime_error: before the step");
  for (const auto rank : {0, 2})
    CHECK(text_of(ends[rank].error).starts_with("troupe::generation_closed"));
}

// 1e308 is no float: the update of the parameters throws, in the thread of any rank.
TEST_CASE("the fused step throws: one rank fails with that exception and the others follow") {
  const auto ranks = GENERATE(1, 2, 4);
  auto options = quick(ranks, 4, 5);
  options.gradients.fused_step = true;
  const step too_far = [](regression& m) { return optim::SGD(m.parameters(), 1e308); };
  const auto data = std::make_shared<table_data>(24);
  const auto ends = run_job({.recipe = recipe_for<wide>(data, too_far), .options = options});
  int causes = 0;
  for (const auto& end : ends) {
    const auto text = text_of(end.error);
    const bool follows = text.starts_with("troupe::generation_closed");
    if (!follows)
      CHECK_THAT(text, Catch::StartsWith("std::runtime_error: value cannot be converted"));
    if (!follows) ++causes;
  }
  CHECK(causes == 1);
}

// The rates are those of PyTorch 2.13 for the same metrics.
TEST_CASE("reduce_on_plateau reduces as PyTorch's ReduceLROnPlateau, in both modes") {
  using how = schedules::reduce_on_plateau;
  struct row {
    how which;
    double sign;
    std::vector<double> first, second;
  };
  const std::vector<double> metrics{0.5, 0.6, 0.6, 0.6005, 0.3,  0.7, 0.7,
                                    0.7, 0.7, 0.7, 0.7,    -1.0, 0.7};
  const auto& [which, sign, first, second] = GENERATE(
      row{{.maximize = true, .factor = 0.5, .patience = 1, .threshold = 1e-3},
          1,
          {0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05},
          {0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.15, 0.075, 0.075, 0.0375, 0.0375, 0.01875, 0.01875}},
      row{{.maximize = true, .factor = 0.5, .patience = 1, .threshold = 1e-3},
          -1,  // metrics below 0
          {0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05},
          {0.3, 0.3, 0.15, 0.15, 0.15, 0.15, 0.075, 0.075, 0.0375, 0.0375, 0.01875, 0.01875,
           0.01875}},
      row{{.maximize = true,
           .factor = 0.5,
           .patience = 0,
           .threshold = 0.05,
           .relative = false,
           .cooldown = 2,
           .min_lr = {0.1, 0.2}},
          1,
          {0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1},
          {0.3, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2}},
      row{{.factor = 0.25,
           .patience = 1,
           .threshold = 0.05,
           .relative = false,
           .min_lr = {0.05},
           .eps = 0.2},
          1,
          {0.8, 0.8, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2},
          {0.3, 0.3, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075, 0.075}},
      row{{.factor = 0.5, .patience = 1},
          1,
          {0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05},
          {0.3, 0.3, 0.15, 0.15, 0.15, 0.15, 0.075, 0.075, 0.0375, 0.0375, 0.01875, 0.01875,
           0.01875}});
  const auto group = [](double rate) {
    return torch::optim::OptimizerParamGroup{{at::zeros({1})},
                                             std::make_unique<torch::optim::SGDOptions>(rate)};
  };
  const auto sgd = std::make_shared<torch::optim::SGD>(
      std::vector<torch::optim::OptimizerParamGroup>{group(0.8), group(0.3)},
      torch::optim::SGDOptions(1));
  optimizers all{sgd};
  all.scheduled(which, {.monitor = "val/accuracy"});
  auto& used = all.all()[0].schedulers[0];
  CHECK(used.plateau());
  CHECK_THROWS_WITH(used.step({}), Catch::Contains("\"val/accuracy\", which was not logged"));
  const auto rate = [&](std::size_t g) { return sgd->param_groups()[g].options().get_lr(); };
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    CAPTURE(i);
    used.step(sign * metrics[i]);
    CHECK(rate(0) == first[i]);
    CHECK(rate(1) == second[i]);
  }
  // A new one with the same inputs goes on as this one.
  const auto other = std::make_shared<torch::optim::SGD>(
      std::vector<torch::optim::OptimizerParamGroup>{group(0.8), group(0.3)},
      torch::optim::SGDOptions(1));
  optimizers again{other};
  again.scheduled(which);
  again.all()[0].schedulers[0].replay(used.offered(), used.metrics_fed());
  CHECK(other->param_groups()[0].options().get_lr() == rate(0));
}

TEST_CASE("reduce_on_plateau: impossible values are user_errors, and later groups count") {
  using how = schedules::reduce_on_plateau;
  const auto sgd = std::make_shared<torch::optim::SGD>(std::vector{at::zeros({1})}, 0.4);
  optimizers all{sgd};
  CHECK_THROWS_WITH(all.scheduled(how{.factor = 1}), Catch::Contains("a factor below 1"));
  CHECK_THROWS_WITH(all.scheduled(how{.min_lr = {0, 0}}),
                    Catch::Contains("2 numbers for 1 parameter groups"));
  CHECK_THROWS_WITH(all.scheduled(how{}, {.every = schedule::interval::step}),
                    Catch::Contains("not at steps"));
  all.scheduled(how{.factor = 0.5, .patience = 0, .min_lr = {0.2}});
  sgd->add_param_group(torch::optim::OptimizerParamGroup{
      {at::zeros({2})}, std::make_unique<torch::optim::SGDOptions>(0.3)});
  for (int i = 0; i < 2; ++i) all.all()[0].schedulers[0].step(1.0);
  CHECK(sgd->param_groups()[0].options().get_lr() == 0.2);
  CHECK(sgd->param_groups()[1].options().get_lr() == 0.2);
}

TEST_CASE("schedulers step per step and per epoch and by the validation metric") {
  struct scheduled : regression {
    scheduled()
        : regression({.optimize = [](regression& m) {
            return optimizers{torch::optim::SGD(m.parameters(), 1e-3)}
                .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 1, 0.5)
                .scheduled<torch::optim::StepLR>({}, 1, 0.1)
                .scheduled<torch::optim::ReduceLROnPlateauScheduler>(
                    {.monitor = "const"}, torch::optim::ReduceLROnPlateauScheduler::min, 0.1, 0);
          }}) {}
    step_output validation_step(const batch&, std::int64_t) override {
      log("const", 1);
      return {};
    }
    void on_train_end() override {
      if (rank() == 0) add_to_queue(value{rate});
    }
    void lr_scheduler_step(scheduler& which, std::optional<double> metric) override {
      module::lr_scheduler_step(which, metric);
      if (which.plateau() != metric.has_value())
        throw std::runtime_error("a metric without a plateau scheduler, or the reverse");
      ++moves;
      rate = static_cast<double>(moves);
    }
    int moves = 0;
    double rate = 0;
  };
  const auto data = std::make_shared<table_data>(16, 4, 4);
  auto options = quick(2, 4, 99);
  options.max_epochs = 3;
  const auto ends = run_good_job({.recipe = recipe_for<scheduled>(data), .options = options});
  CHECK(ends[0].queued[0] == value{6.0 + 3 + 3});
  const auto state = ends[0].snapshot->state;
  // 0.5^6 by steps, 0.1^3 by epochs, 0.1^2 by the plateau scheduler, whose first value is its best.
  const auto at = state.find("\"lr\":");
  REQUIRE(at != std::string::npos);
  CHECK(std::stod(state.substr(at + 5)) == Approx(1e-3 * std::pow(0.5, 6) * 1e-3 * 1e-2));
}

TEST_CASE("one_cycle: a phase of no steps ends at once, and rates are never infinite") {
  struct row {
    double pct_start;
    bool three_phase;
    std::vector<double> rates;
  };
  const auto& [pct_start, three_phase, rates] =
      GENERATE(row{0.25, false, {1, 0.7, 0.4, 0.1}}, row{0.25, true, {1, 0.3, 0.2, 0.1}},
               row{1, false, {0.4, 0.6, 0.8, 1, 0.1}});
  const auto sgd = std::make_shared<optim::SGD>(std::vector{torch::zeros({1})}, 0.4);
  optimizers all{sgd};
  schedules::one_cycle_options how{.max_lr = {1},
                                   .total_steps = 4,
                                   .pct_start = pct_start,
                                   .anneal_strategy = schedules::one_cycle_options::anneal::linear,
                                   .cycle_momentum = false,
                                   .div_factor = 2.5,
                                   .final_div_factor = 4,
                                   .three_phase = three_phase};
  all.scheduled(schedules::one_cycle(how), {.every = schedule::interval::step});
  for (const auto& rate : rates) {
    CHECK(sgd->param_groups()[0].options().get_lr() == Approx(rate));
    if (&rate != &rates.back()) all.all()[0].schedulers[0].step({});
  }
  auto& factor = GENERATE(true, false) ? how.div_factor : how.final_div_factor;
  factor = 0;
  CHECK_THROWS_WITH(schedules::one_cycle(how), Catch::Contains("div_factor"));
}

TEST_CASE("a plateau scheduler leaves groups alone that were added after it") {
  using plateau = torch::optim::ReduceLROnPlateauScheduler;
  const auto sgd = std::make_shared<torch::optim::SGD>(std::vector{torch::zeros({1})}, 0.4);
  optimizers all{sgd};
  all.scheduled<plateau>({}, plateau::min, 0.5F, 0, 1e-4, plateau::rel, 0, std::vector{0.1F});
  auto& scheduler = all.all()[0].schedulers[0];
  scheduler.step(1.0);
  sgd->add_param_group(torch::optim::OptimizerParamGroup{
      {torch::zeros({2})}, std::make_unique<torch::optim::SGDOptions>(0.3)});
  std::vector<double> first;
  for (int i = 0; i < 3; ++i) {
    scheduler.step(1.0);
    REQUIRE(sgd->param_groups().size() == 2);
    first.push_back(sgd->param_groups()[0].options().get_lr());
    CHECK(sgd->param_groups()[1].options().get_lr() == 0.3);
    CHECK(sgd->param_groups()[1].params()[0].numel() == 2);
  }
  CHECK(first[0] == Approx(0.2));
  CHECK(first[1] == Approx(0.1));
  CHECK(first[2] == Approx(0.1));  // the least one
}

namespace {

// One number that is to become 3.
struct one_number : module {
  at::Tensor weight = register_parameter("weight", torch::ones({1}));
  step_output training_step(const batch&, std::int64_t) override {
    return (weight - 3).square().mean();
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

template <class Module = one_number>
job_outcome searched(const learning_rate_range& range, trainer_options of) {
  torch_plugins plugins;
  plugins.callbacks = {range};
  of.batch_size = 2;
  of.num_sanity_val_steps = 0;
  const auto ends =
      run_good_job({.recipe = make_recipe([] { return std::make_shared<Module>(); },
                                          std::make_shared<table_data>(60, 4, 6), plugins),
                    .options = range.options(of)});
  for (const auto& one : ends[0].hooks) CHECK_FALSE(name(one) == "on_validation_start");
  job_outcome outcome;
  outcome.status = job_outcome::ending::finished;
  outcome.queue = ends[0].queued;
  return outcome;
}

}  // namespace

// The numbers are those of Lightning 2.6.6 for the same module.
TEST_CASE("a learning rate is found as Lightning finds it") {
  using growth = learning_rate_range_options::growth;
  const auto near = [](double x) { return Approx(x).epsilon(1e-5); };
  const auto steep = curve_of(searched(learning_rate_range{{1e-3, 10, 50}}, {.ranks = 1}));
  REQUIRE(steep.rates.size() == 49);  // stopped, because the loss grows
  CHECK(steep.rates[1] == near(0.0014454397707459276));
  CHECK(steep.rates[48] == near(8.317637711026709));
  CHECK(steep.losses[0] == near(2.020202020202018));
  CHECK(steep.losses[2] == near(3.0160178102328388));
  CHECK(steep.losses[48] == near(51.92717663084396));
  CHECK(steep.suggestion().value() == near(0.019054607179632473));

  const auto line =
      curve_of(searched(learning_rate_range{{1e-3, 0.5, 40, growth::linear, {}}}, {.ranks = 1}));
  CHECK(line.losses.back() == near(0.38679290758801876));
  CHECK(line.suggestion().value() == near(0.138225));
  CHECK(line.suggestion(2, 1).value() == near(0.1008));

  const auto few = curve_of(searched(learning_rate_range{{1e-3, 1, 8}}, {.ranks = 1}));
  CHECK_FALSE(few.suggestion());
  CHECK(few.suggestion(2, 1).value() == near(0.1778279410038923));
  // The losses of both ranks are the same.
  CHECK(curve_of(searched(learning_rate_range{{1e-3, 1, 8}}, {.ranks = 2})).losses == few.losses);
  CHECK_THROWS_WITH(learning_rate_range({.min = 1, .max = 1}), Catch::Contains("0 < min < max"));
}

TEST_CASE("a search for a learning rate: limits of the trainer's own fits do not shorten it") {
  const trainer_options of{.ranks = 1,
                           .max_epochs = 1,
                           .min_epochs = 1000,
                           .min_steps = 1000,
                           .max_time = std::chrono::nanoseconds{1},
                           .overfit_batches = std::int64_t{1},
                           .fast_dev_run = 1};
  // It ends early all the same, because the loss grows.
  CHECK(curve_of(searched(learning_rate_range{{1e-3, 10, 50}}, of)).rates.size() == 49);
}

namespace {

// The first step has no loss, or NaN with a gradient that is a number.
template <int Without>
struct without_first : one_number {
  step_output training_step(const batch& b, std::int64_t index) override {
    const auto loss = one_number::training_step(b, index).loss();
    if (at().step > 0) return loss;
    return Without == 0 ? step_output{} : step_output{loss + NAN};
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a search for a learning rate goes on after a first step without a number", "",
                   without_first<0>, without_first<1>) {
  const auto curve =
      curve_of(searched<TestType>(learning_rate_range{{1e-3, 0.1, 20}}, {.ranks = 1}));
  REQUIRE(curve.losses.size() == 20);
  CHECK(std::isnan(curve.losses[0]));
  CHECK(std::isfinite(curve.losses[1]));
  CHECK(curve.suggestion());
}
