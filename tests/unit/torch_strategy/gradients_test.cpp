// Goal: data-parallel gradients equal those of one process that sees every sample.
#include "backends/forwarding_communicator.hpp"
#include "backends/torch/callback_catalog.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double gradient_tolerance = 2e-6;

optimizers sgd_with_decay(regression& m) {
  return torch::optim::SGD(m.parameters(),
                           torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01));
}

}  // namespace

TEST_CASE("data-parallel training equals one process with the whole batch") {
  const auto world = GENERATE(1, 2, 3, 4, 7);
  const auto data = std::make_shared<table_data>(84);
  auto options = quick(world, 84 / 7 / 1, 12);
  options.batch_size = 12;
  CAPTURE(world);
  CHECK(distance(trained<regression>(options, data), by_hand<regression>(options, *data)) <
        gradient_tolerance);
}

TEST_CASE("short batches and ranks without samples are weighted by their samples") {
  // 4 ranks with batches of 2: global batches of 8 and a last one of 5, 3, 2 or 1 samples.
  const auto size = GENERATE(13, 11, 10, 9);
  const auto accumulate = GENERATE(1, 2, 3);
  const auto data = std::make_shared<table_data>(size);
  auto options = quick(4, 2, 7);
  options.accumulate_grad_batches = accumulate;
  CAPTURE(size, accumulate);
  CHECK(distance(trained<regression>(options, data), by_hand<regression>(options, *data)) <
        gradient_tolerance);
}

TEST_CASE("a parameter that is unfrozen inside a window is summed over ranks in that window") {
  struct thawing : regression {
    thawing() { net->parameters().front().set_requires_grad(false); }
    void on_train_start() override { net->parameters().front().set_requires_grad(false); }
    batch_verdict on_train_batch_start(const batch& b, std::int64_t index) override {
      if (index == 1) net->parameters().front().set_requires_grad(true);
      return regression::on_train_batch_start(b, index);
    }
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 2, 2);
  options.accumulate_grad_batches = 3;
  auto alone = options;
  alone.ranks = 1;
  alone.batch_size = 4;
  CHECK(distance(trained<thawing>(options, data), trained<thawing>(alone, data)) <
        gradient_tolerance);
}

TEST_CASE("gradients are clipped after they are reduced") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 6, 4);
  options.gradient_clip_val = 0.01;
  options.gradient_clip_algorithm =
      GENERATE(hooks::clip_gradients::algorithm::norm, hooks::clip_gradients::algorithm::value);
  auto alone = options;
  alone.ranks = 1;
  alone.batch_size = 12;
  const auto two = trained<regression>(options, data);
  CHECK(distance(two, trained<regression>(alone, data)) < gradient_tolerance);
  options.gradient_clip_val.reset();
  CHECK(distance(two, trained<regression>(options, data)) > 1e-4);
}

namespace {

/// Special parameters: one unused, one used by some ranks only, one used twice, one frozen, and one
/// that is unfrozen later.
struct odd_parameters : regression {
  explicit odd_parameters(bool by_rank) : regression({.optimize = {}}), by_rank_(by_rank) {
    unused = register_parameter("unused", torch::ones({3}));
    sometimes = register_parameter("sometimes", torch::ones({1}));
    shared = register_parameter("shared", torch::full({1}, 0.5));
    frozen = register_parameter("frozen", torch::ones({1}), /*requires_grad=*/false);
    unfrozen = register_parameter("unfrozen", torch::ones({1}), /*requires_grad=*/false);
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    auto y = net->forward(b[0] * shared) * shared * frozen + unfrozen;
    if (!by_rank_ || rank() == 1) y = y * sometimes;
    (void)index;
    return fn::mse_loss(y, b[1]);
  }
  void on_train_epoch_start(std::int64_t epoch) override {
    unfrozen.set_requires_grad(epoch >= 1);
    net->named_parameters()["0.weight"].set_requires_grad(epoch != 2);
  }
  optimizers configure_optimizers() override { return sgd_with_decay(*this); }

  at::Tensor unused, sometimes, shared, frozen, unfrozen;
  bool by_rank_;
};

/// The same in one process; the epoch follows from the count of steps.
struct odd_by_hand : odd_parameters {
  explicit odd_by_hand(std::int64_t steps_per_epoch)
      : odd_parameters(false), steps_per_epoch_(steps_per_epoch) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    on_train_epoch_start(steps_++ / steps_per_epoch_);
    return odd_parameters::training_step(b, index);
  }
  std::int64_t steps_ = 0;
  std::int64_t steps_per_epoch_;
};

}  // namespace

TEST_CASE("unused and shared and frozen parameters behave as in one process") {
  const auto data = std::make_shared<table_data>(16);
  const auto options = quick(2, 4, 8);
  const auto two = trained<odd_parameters>(options, data, false);
  CHECK(distance(two, by_hand<odd_by_hand>(options, *data, 2)) < gradient_tolerance);
  CHECK(two.at("unused").equal(torch::ones({3})));  // weight decay does not reach it
  CHECK(two.at("frozen").equal(torch::ones({1})));
  CHECK_FALSE(two.at("unfrozen").equal(torch::ones({1})));
}

TEST_CASE("a parameter that only one rank uses is updated on all ranks") {
  const auto data = std::make_shared<table_data>(16);
  const auto ends =
      run_good_job({.recipe = recipe_for<odd_parameters>(data, true), .options = quick(3, 4, 5)});
  CHECK_FALSE(weights_of(ends[0].snapshot).at("sometimes").equal(torch::ones({1})));
}

namespace {

/// Changes .grad as users do.
struct grad_meddler : regression {
  enum class way { replace, drop_in_zero_grad, keep_in_zero_grad };
  explicit grad_meddler(way how) : how_(how) {}
  void optimizer_zero_grad(std::int64_t, std::int64_t, torch::optim::Optimizer& o) override {
    if (how_ == way::drop_in_zero_grad) o.zero_grad(true);
    if (how_ == way::keep_in_zero_grad) o.zero_grad(false);
  }
  void on_after_backward() override {
    if (how_ != way::replace) return;
    for (auto& p : parameters())
      if (p.grad().defined()) p.mutable_grad() = p.grad().clone();
  }
  void on_train_end() override {
    auto* how = dynamic_cast<data_parallel*>(strategy_in_use());
    if (how) replaced += how->gradient_figures().replaced;
  }
  static inline std::atomic<std::int64_t> replaced{0};
  way how_;
};

}  // namespace

TEST_CASE("gradients that a user replaces or drops or zeroes are handled correctly") {
  const auto how = GENERATE(grad_meddler::way::replace, grad_meddler::way::drop_in_zero_grad,
                            grad_meddler::way::keep_in_zero_grad);
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 3, 6);
  options.accumulate_grad_batches = 2;
  grad_meddler::replaced = 0;
  CHECK(distance(trained<grad_meddler>(options, data, how), by_hand<regression>(options, *data)) <
        gradient_tolerance);
  CHECK((grad_meddler::replaced > 0) == (how == grad_meddler::way::replace));
}

namespace {

struct sparse_layer : module {
  torch::nn::Embedding table = register_module(
      "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 2).sparse(true)));
  step_output training_step(const batch& b, std::int64_t) override {
    return table->forward((b[0] * 0).to(at::kLong)).sum();
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

struct sparse_by_hand : sparse_layer {
  bool automatic_optimization() const override { return false; }
  step_output training_step(const batch& b, std::int64_t index) override {
    optimizer().zero_grad();
    manual_backward(sparse_layer::training_step(b, index).loss());
    optimizer().step();
    return {};
  }
};

struct fails_in_backward : torch::autograd::Function<fails_in_backward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("the middle of backward");
  }
};

struct breaks_on_rank_1 : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    auto half = net[0]->as<torch::nn::Linear>()->forward(b[0]);
    if (rank() == 1 && at().step == 2) half = fails_in_backward::apply(half);
    return fn::mse_loss(net[2]->as<torch::nn::Linear>()->forward(torch::tanh(half)), b[1]);
  }
};

}  // namespace

TEST_CASE("a sparse gradient fails the rank after backward: the error names the parameter") {
  const auto data = std::make_shared<table_data>(16);
  const auto ends = run_job({.recipe = recipe_for<sparse_layer>(data), .options = quick(2, 4, 3)});
  for (const auto& end : ends)
    CHECK(text_of(end.error).find("table.weight has a sparse gradient") != std::string::npos);
}

TEST_CASE("one rank trains with sparse gradients, by hand and in 16-mixed too") {
  const auto data = std::make_shared<table_data>(16);
  auto options = quick(1, 4, 6);
  const auto plain = trained<sparse_layer>(options, data);
  CHECK(distance(plain, trained<sparse_by_hand>(options, data)) == 0);
  options.precision = precision_kind::f16_mixed;
  CHECK(distance(plain, trained<sparse_layer>(options, data)) == 0);
}

TEST_CASE("an exception in the middle of backward releases the other ranks") {
  const auto data = std::make_shared<table_data>(24);
  const auto ends =
      run_job({.recipe = recipe_for<breaks_on_rank_1>(data), .options = quick(3, 2, 9)});
  CHECK(text_of(ends[1].error) == "std::runtime_error: the middle of backward");
  for (const auto rank : {0, 2})
    CHECK(text_of(ends[rank].error).starts_with("troupe::generation_closed"));
}

namespace {

struct second_order : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    const auto x = b[0].clone().set_requires_grad(true);
    const auto y = net->forward(x);
    const auto slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return fn::mse_loss(y, b[1]) + 0.1 * slope.pow(2).mean();
  }
};

struct twice_in_one : regression {
  explicit twice_in_one(bool together) : together_(together) {}
  void backward(const at::Tensor& loss, const value&) override {
    if (together_) return loss.backward();
    (loss * 0.25).backward({}, /*keep_graph=*/true);
    (loss * 0.75).backward();
  }
  bool together_;
};

torch_plugins without_overlap() {
  torch_plugins plugins;
  plugins.strategies["data_parallel"] = [](strategy_parts parts) {
    return std::make_unique<data_parallel>(std::move(parts),
                                           data_parallel_options{.gradients = {.overlap = false}});
  };
  return plugins;
}

}  // namespace

TEST_CASE("a gradient of a gradient trains data-parallel") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(3, 4, 6);
  CHECK(distance(trained<second_order>(options, data), by_hand<second_order>(options, *data)) <
        gradient_tolerance);
}

TEST_CASE("two backward passes in one hook are refused unless overlap is off") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 4);
  const auto make = [](bool together) {
    return [=] { return std::make_shared<twice_in_one>(together); };
  };
  const auto refused = run_job({.recipe = make_recipe(make(false), data), .options = options});
  CHECK(text_of(refused[0].error).find("overlap") != std::string::npos);
  const auto apart = run_good_job(
      {.recipe = make_recipe(make(false), data, without_overlap()), .options = options});
  CHECK(distance(weights_of(apart[0].snapshot), trained<twice_in_one>(options, data, true)) <
        gradient_tolerance);
}

TEST_CASE("an optimizer that calls its closure repeatedly sees equal losses on all ranks") {
  const auto data = std::make_shared<table_data>(20);
  const auto lbfgs = [](regression& m) {
    return optimizers{torch::optim::LBFGS(
        m.parameters(),
        torch::optim::LBFGSOptions(0.5).max_iter(5).line_search_fn("strong_wolfe"))};
  };
  const regression::choices how{.optimize = lbfgs};
  auto options = quick(2, 10, 3);
  auto alone = quick(1, 20, 3);
  CHECK(distance(trained<regression>(options, data, how), trained<regression>(alone, data, how)) <
        1e-4);
  // The last batch leaves rank 2 without samples.
  options = quick(3, 6, 4);
  CHECK(distance(trained<regression>(options, data, how),
                 by_hand<regression>(options, *data, how)) < 1e-4);
  options.accumulate_grad_batches = 2;
  const auto refused = run_job({.recipe = recipe_for<regression>(data, how), .options = options});
  CHECK(text_of(refused[0].error).find("accumulate_grad_batches") != std::string::npos);
}

TEST_CASE("LBFGS reads the same losses whether ranks share memory or not") {
  struct apart : forwarding_communicator {
    using forwarding_communicator::forwarding_communicator;
    bool shares_memory() const override { return false; }
  };
  // The first layer has 1 MiB, and is summed in place where ranks share memory.
  const regression::choices how{
      .features = 16384, .optimize = [](regression& m) {
        return optimizers{torch::optim::LBFGS(
            m.parameters(),
            torch::optim::LBFGSOptions(5).max_iter(8).line_search_fn("strong_wolfe"))};
      }};
  const auto recipe = recipe_for<regression>(std::make_shared<table_data>(60, 16384), how);
  const auto options = quick(3, 4, 6);
  const auto shared = run_good_job({.recipe = recipe, .options = options});
  const auto other =
      run_good_job({.recipe = recipe, .options = options, .around = [](const auto& inner) {
                      return std::make_shared<apart>(inner);
                    }});
  CHECK(shared[0].snapshot->weights_digest == other[0].snapshot->weights_digest);
}

namespace {

struct two_optimizers : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    const auto y = net->forward(b[0]);
    return at().optimizer == 0 ? fn::mse_loss(y, b[1]) : fn::l1_loss(y, b[1]);
  }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::SGD(net[0]->parameters(), 0.1)}.add(
        torch::optim::Adam(net[2]->parameters(), 0.01));
  }
};

}  // namespace

TEST_CASE("several optimizers train their own parameters as in one process") {
  const auto data = std::make_shared<table_data>(25);
  auto options = quick(2, 4, 6);
  options.accumulate_grad_batches = GENERATE(1, 2);
  auto alone = options;
  alone.ranks = 1;
  alone.batch_size = 8;
  CHECK(distance(trained<two_optimizers>(options, data), trained<two_optimizers>(alone, data)) <
        gradient_tolerance);
}

TEST_CASE("training_step draws other numbers for each of several optimizers") {
  using numbers = std::vector<double>;
  struct drawing : two_optimizers {
    explicit drawing(std::shared_ptr<numbers> into) : drawn(std::move(into)) {}
    step_output training_step(const batch& b, std::int64_t index) override {
      drawn->push_back(torch::rand({1}).item<double>());
      return two_optimizers::training_step(b, index);
    }
    std::shared_ptr<numbers> drawn;
  };
  const auto drawn = std::make_shared<numbers>();
  const auto data = std::make_shared<table_data>(8);
  run_good_job({.recipe = recipe_for<drawing>(data, drawn), .options = quick(1, 4, 1)});
  REQUIRE(drawn->size() == 2);
  CHECK(drawn->front() != drawn->back());
}

TEST_CASE("parameters that an optimizer gets later train as in one process, and new ones do not") {
  struct unfreezing : regression {
    void on_train_epoch_start(std::int64_t epoch) override {
      auto& sgd = *optimizers_in_use()->all()[0].optimizer;
      if (epoch == 1) sgd.add_param_group(torch::optim::OptimizerParamGroup{net[0]->parameters()});
    }
    optimizers configure_optimizers() override {
      return torch::optim::SGD(net[2]->parameters(), 0.1);
    }
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 4, 9);
  auto alone = options;
  alone.ranks = 1;
  alone.batch_size = 8;
  CHECK(distance(trained<unfreezing>(options, data), trained<unfreezing>(alone, data)) <
        gradient_tolerance);
  struct growing : unfreezing {
    void on_train_epoch_start(std::int64_t epoch) override {
      if (epoch != 1) return;
      const auto late = register_module("late", torch::nn::Linear(1, 1));
      optimizers_in_use()->all()[0].optimizer->add_param_group(
          torch::optim::OptimizerParamGroup{late->parameters()});
    }
  };
  const auto ends = run_job({.recipe = recipe_for<growing>(data), .options = options});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("was made after its set-up"));
}

TEST_CASE("several optimizers with a trainable parameter in none of them train as one process") {
  struct with_backbone : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      const auto seen = backbone->forward(b[0]);  // requires gradients in each window
      return fn::mse_loss((at().optimizer == 0 ? one : other)->forward(seen), b[1]);
    }
    optimizers configure_optimizers() override {
      return optimizers{torch::optim::SGD(one->parameters(), 0.1)}.add(
          torch::optim::SGD(other->parameters(), 0.1));
    }
    torch::nn::Linear backbone = register_module("backbone", torch::nn::Linear(4, 8));
    torch::nn::Linear one = register_module("one", torch::nn::Linear(8, 1));
    torch::nn::Linear other = register_module("other", torch::nn::Linear(8, 1));
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 4, 6);
  options.gradients.overlap = GENERATE(true, false);
  auto alone = options;
  alone.ranks = 1;
  alone.batch_size = 8;
  CHECK(distance(trained<with_backbone>(options, data), trained<with_backbone>(alone, data)) <
        gradient_tolerance);
}

namespace {

/// Records the buckets in which its gradients travelled.
struct many_layers : regression {
  many_layers() {
    for (int i = 0; i < 6; ++i) net->push_back(torch::nn::Linear(1, 1));
  }
  void on_train_end() override {
    if (rank() == 0) seen = dynamic_cast<data_parallel&>(*strategy_in_use()).gradient_figures();
  }
  static inline reducer::figures seen;
};

}  // namespace

TEST_CASE("buckets travel while backward runs and are rebuilt once") {
  const auto data = std::make_shared<table_data>(24);
  torch_plugins plugins;
  plugins.strategies["data_parallel"] = [](strategy_parts parts) {
    return std::make_unique<data_parallel>(
        std::move(parts),
        data_parallel_options{.gradients = {.first_bucket_bytes = 16, .bucket_bytes = 64}});
  };
  const auto options = quick(2, 4, 5);
  const auto ends = run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<many_layers>(); }, data, plugins),
       .options = options});
  CHECK(distance(weights_of(ends[0].snapshot), by_hand<many_layers>(options, *data)) <
        gradient_tolerance);
  CHECK(many_layers::seen.rebuilt == 1);
  CHECK(many_layers::seen.buckets.size() > 2);
  CHECK(many_layers::seen.early >= 5 * 2);
  CHECK(many_layers::seen.replaced == 0);
}

namespace {

/// A class of one's own, as LibTorch lets it be: without a rate, `save` and `load`.
struct plain_options : torch::optim::OptimizerCloneableOptions<plain_options> {};
struct plain_state : torch::optim::OptimizerCloneableParamState<plain_state> {};

struct plain_steps : torch::optim::Optimizer {
  plain_steps(std::vector<at::Tensor> all, bool keeps)
      : Optimizer(std::move(all), std::make_unique<plain_options>()), keeps_(keeps) {}
  at::Tensor step(LossClosure closure) override {
    const auto loss = closure();
    for (auto& one : param_groups()[0].params()) {
      one.detach().sub_(one.grad(), 0.1);
      if (keeps_) state()[one.unsafeGetTensorImpl()] = std::make_unique<plain_state>();
    }
    return loss;
  }
  bool keeps_;
};

regression::choices steps_plainly(bool keeps) {
  return {.optimize = [=](regression& m) {
    return std::make_shared<plain_steps>(m.parameters(), keeps);
  }};
}

}  // namespace

TEST_CASE("an optimizer that keeps a state and saves none is refused where that would be lost") {
  const temporary_folder folder;
  const auto fit = [&](bool keeps, bool saves, std::int64_t restarts) {
    auto options = quick(2, 4, 3);
    options.elastic.max_restarts = restarts;
    trainer by{options, {.run_folder = saves ? (folder.path() / "run").string() : ""}};
    return by.fit<regression>(data_ptr{std::make_shared<table_data>(16)}, steps_plainly(keeps));
  };
  CHECK(fit(true, false, 0).ok());
  CHECK(fit(false, false, 1).ok());
  const bool saves = GENERATE(true, false);
  const auto refused = fit(true, saves, saves ? 0 : 1);
  REQUIRE_FALSE(refused.ok());
  CHECK_THAT(refused.failed_with->record.what,
             Catch::Contains("optimizer 0 keeps a state that its class does not save"));
}

TEST_CASE("an optimizer without a rate that LibTorch knows has none in reports") {
  torch_plugins plugins;
  plugins.callbacks = {named_callback("figures"), learning_rate_monitor{}};
  auto options = quick(2, 4, 3);
  options.log_every_n_steps = 1;
  const auto recipe =
      recipe_for<regression>(plugins, std::make_shared<table_data>(16), steps_plainly(false));
  const auto last = run_good_job({.recipe = recipe, .options = options})[0].loop.last;
  CHECK(last.contains("run/samples_per_second"));
  for (const auto& [name, number] : last)
    CHECK_FALSE((name.starts_with("run/learning_rate") || name.starts_with("lr-")));
}
