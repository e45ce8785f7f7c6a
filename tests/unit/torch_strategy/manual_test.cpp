// Goal: a module that runs backward and its optimizers itself trains as a plain loop with the same
// calls, whatever the ranks and the losses of ranks, and is refused where it cannot work.
#include <nlohmann/json.hpp>

#include "tests/support/one_checkpoint.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Two nets with an optimizer each, as in adversarial training.
struct players : module {
  template <class Zero, class Back, class Step>
  void play(const at::Tensor& x, const at::Tensor& y, Zero zero, Back back, Step step) {
    const auto made = first->forward(x);
    zero(0);
    back(fn::mse_loss(made, y) - 0.1 * second->forward(made).mean());  // into both nets
    step(0);
    zero(1);
    back(second->forward(made.detach()).pow(2).mean());
    back(second->forward(y).sub(1).pow(2).mean());
    step(1);
  }
  bool automatic_optimization() const override { return false; }
  step_output training_step(const batch& b, std::int64_t) override {
    play(
        b[0], b[1], [&](int i) { optimizer(i).zero_grad(); },
        [&](const at::Tensor& loss) { manual_backward(loss); },
        [&](int i) { optimizer(i).step(); });
    return {};
  }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::Adam(first->parameters(), 0.01)}.add(
        torch::optim::SGD(second->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
  }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 1));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(1, 1));
};

/// The weights of a plain loop over the same order of samples.
std::map<std::string, at::Tensor> looped(const trainer_options& options, const table_data& data) {
  rank_random draws{options.seed};
  const random_scope scope{draws};
  players net;
  auto with = net.configure_optimizers();
  const auto of = [&](int i) -> torch::optim::Optimizer& {
    return *with.all().at(static_cast<std::size_t>(i)).optimizer;
  };
  const data_layout layout{data.inputs().size(0), options.ranks, options.batch_size};
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; steps < *options.max_steps; ++epoch) {
    const auto order = torch::tensor(permutation(options.seed, epoch, layout.size));
    for (std::int64_t b = 0; b < layout.batches() && steps < *options.max_steps; ++b, ++steps) {
      const auto at = order.narrow(0, layout.of_batch(b).first, layout.samples(b, b));
      net.play(
          data.inputs().index_select(0, at), data.targets().index_select(0, at),
          [&](int i) { of(i).zero_grad(); }, [](const at::Tensor& loss) { loss.backward(); },
          [&](int i) { of(i).step(); });
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach();
  return weights;
}

template <class Module>
std::string refusal_of(const trainer_options& options, std::int64_t samples = 12) {
  const auto data = std::make_shared<table_data>(samples);
  for (const auto& end : run_job({.recipe = recipe_for<Module>(data), .options = options}))
    if (const auto text = text_of(end.error);
        text.find("generation_closed") == std::string::npos && text != "nothing")
      return text;
  return {};
}

}  // namespace

TEST_CASE("manual optimization: the weights are those of a plain loop with the same calls") {
  const auto ranks = GENERATE(1, 2, 3);
  // The last batch of an epoch is short, and its samples are divided unevenly.
  const auto data = std::make_shared<table_data>(8 * ranks + ranks + 1);
  const auto options = quick(ranks, 4, 10);
  CAPTURE(ranks);
  const auto ends = run_good_job({.recipe = recipe_for<players>(data), .options = options});
  CHECK(distance(weights_of(ends[0].snapshot), looped(options, *data)) < 1e-5);
  CHECK(ends[0].loop.steps == 10);  // a batch is one step
  CHECK(ends[0].loop.samples == 3 * (9 * ranks + 1) + 4 * ranks);
}

TEST_CASE("manual optimization: a fit that resumes ends in the same bits") {
  const temporary_folder folder;
  const auto path = (folder.path() / "saved").string();
  struct saving : players {
    explicit saving(std::string to) : to_(std::move(to)) {}
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      if (at().step == 4) save_checkpoint(to_);
    }

  private:
    std::string to_;
  };
  const auto data = std::make_shared<table_data>(20);
  const auto options = quick(2, 3, 7);
  const auto whole = run_good_job({.recipe = recipe_for<saving>(data, path), .options = options});
  const auto rest =
      run_good_job({.recipe = recipe_for<players>(data), .options = options, .resume = path});
  CHECK(rest[0].snapshot->weights_digest == whole[0].snapshot->weights_digest);
}

TEST_CASE("manual optimization: gradients that are kept over batches add up") {
  // Two batches of 6 are one of 12: the mean of two means.
  struct every_second : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t index) override {
      manual_backward(fn::mse_loss(net->forward(b[0]), b[1]) / 2);
      if (index % 2 == 1) {
        optimizer().step();
        optimizer().zero_grad();
      }
      return {};
    }
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 3, 8);
  const auto kept = trained<every_second>(options, data);
  options.max_steps = 4;
  options.accumulate_grad_batches = 2;
  CHECK(distance(kept, trained<regression>(options, data)) < 1e-6);
}

TEST_CASE("manual optimization: a parameter that one rank uses gets the gradient on all ranks") {
  struct choosy : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t) override {
      optimizer().zero_grad();
      auto loss = fn::mse_loss(net->forward(b[0]), b[1]);
      if (rank() == 1) loss = loss + extra.sum();
      manual_backward(loss);
      expect(extra.grad().defined() && !unused.grad().defined());
      expect(extra.grad().item<float>() == 0.5F);
      optimizer().step();
      return {};
    }
    at::Tensor extra = register_parameter("extra", torch::zeros({1}));
    at::Tensor unused = register_parameter("unused", torch::zeros({1}));
  };
  run_good_job(
      {.recipe = recipe_for<choosy>(std::make_shared<table_data>(8)), .options = quick(2, 2, 2)});
}

TEST_CASE("manual optimization: these hooks run, and a stop ends the fit on all ranks") {
  struct stopping : players {
    step_output training_step(const batch& b, std::int64_t index) override {
      players::training_step(b, index);
      if (rank() == 1) stop();
      return {};
    }
    void on_before_backward(const at::Tensor&) override { text_ += "b"; }
    void on_after_backward() override { text_ += "a"; }
    void on_before_optimizer_step(torch::optim::Optimizer&) override {
      text_ += std::to_string(at().optimizer);
    }
    void on_train_end() override { expect(text_ == "ba0baba1"); }

  private:
    std::string text_;
  };
  const auto ends = run_good_job({.recipe = recipe_for<stopping>(std::make_shared<table_data>(12)),
                                  .options = quick(2, 2, 9)});
  for (const auto& end : ends) {
    CHECK(end.loop.steps == 1);
    CHECK(end.why == stop_reason::hook);
  }
  std::vector<std::string_view> of_batch;
  for (const auto& one : ends[0].hooks)
    if (where(one).batch != undefined && where(one).stage == stage::train)
      of_batch.push_back(name(one));
  CHECK((of_batch == std::vector<std::string_view>{"batch_to_device", "on_train_batch_start",
                                                   "training_step", "training_step_end",
                                                   "on_train_batch_end"}));
}

TEST_CASE("manual optimization: 16-mixed scales losses and skips a step with infinite gradients") {
  struct exploding : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t index) override {
      const auto before = parameters()[0].detach().clone();
      optimizer().zero_grad();
      const auto loss = fn::mse_loss(net->forward(b[0]), b[1]);
      manual_backward(index == 0 ? loss * INFINITY : loss);
      optimizer().step();
      expect(parameters()[0].equal(before) == (index == 0));
      return {};
    }
  };
  auto options = quick(2, 2, 3);
  options.precision = precision_kind::f16_mixed;
  run_good_job(
      {.recipe = recipe_for<exploding>(std::make_shared<table_data>(16)), .options = options});
}

TEST_CASE(
    "manual optimization: 16-mixed clips true gradients, and scales by all steps of a batch") {
  // Only the first of two optimizers steps.
  struct clipping : players {
    explicit clipping(double limit) : limit_(limit) {}
    step_output training_step(const batch& b, std::int64_t index) override {
      optimizer(0).zero_grad();
      const auto loss = fn::mse_loss(first->forward(b[0]), b[1]);
      manual_backward(index == 0 ? loss * INFINITY : loss);
      if (limit_ > 0) {
        auto& which = optimizer(0).raw();
        strategy_in_use()->clip_gradients(which, limit_, hooks::clip_gradients::algorithm::norm);
      }
      const auto norm = first->weight.grad().norm().item<double>();
      expect(index == 0 || limit_ == 0 || (norm > 0.1 * limit_ && norm <= 1.001 * limit_));
      optimizer(0).step();
      return {};
    }
    double limit_;
  };
  auto options = quick(2, 2, 4);
  options.precision = precision_kind::f16_mixed;
  const auto data = std::make_shared<table_data>(16);
  const auto limit = GENERATE(0., 0.5);
  torch_plugins with;
  with.precisions["16-mixed"] = [] { return make_f16_mixed({.init_scale = 1024}); };
  const auto ends =
      run_good_job({.recipe = recipe_for<clipping>(with, data, limit), .options = options});
  const auto state = nlohmann::json::parse(ends[0].snapshot->state).at("precision");
  const auto scaler = nlohmann::json::parse(state.at("state").get<std::string>());
  CHECK(scaler.at("scale") == 512);  // halved once, by the first batch
  CHECK(scaler.at("_growth_tracker") == 3);
}

TEST_CASE("manual optimization: 16-mixed refuses a backward between clipping and the step") {
  struct late : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t) override {
      manual_backward(fn::mse_loss(net->forward(b[0]), b[1]));
      strategy_in_use()->clip_gradients(optimizer().raw(), 1,
                                        hooks::clip_gradients::algorithm::norm);
      manual_backward(fn::mse_loss(net->forward(b[0]), b[1]));
      return {};
    }
  };
  auto options = quick(1, 2, 1);
  options.precision = precision_kind::f16_mixed;
  CHECK_THAT(refusal_of<late>(options), Catch::Contains("right before the optimizer's step"));
}

TEST_CASE("manual optimization: 16-mixed goes on after gradients were clipped and dropped") {
  struct skipping : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t index) override {
      optimizer().zero_grad();
      manual_backward(fn::mse_loss(net->forward(b[0]), b[1]));
      strategy_in_use()->clip_gradients(optimizer().raw(), 0.5,
                                        hooks::clip_gradients::algorithm::norm);
      const auto norm = net[0]->parameters()[0].grad().norm().item<double>();
      expect(norm > 0 && norm <= 0.501);  // unscaled, by each batch's own clipping
      if (index % 2 == 1) optimizer().step();
      return {};
    }
  };
  auto options = quick(2, 2, 4);
  options.precision = precision_kind::f16_mixed;
  CHECK(refusal_of<skipping>(options, 16).empty());
}

TEST_CASE("manual optimization: LBFGS calls the closure that it is given") {
  struct newton : regression {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t) override {
      const auto loss_of = [&] { return fn::mse_loss(net->forward(b[0]), b[1]); };
      const auto before = loss_of().item<double>();
      optimizer().step([&] {
        ++calls_;
        optimizer().zero_grad();
        auto loss = loss_of();
        manual_backward(loss);
        return loss.detach();
      });
      expect(calls_ > 1 && loss_of().item<double>() < before);
      return {};
    }
    optimizers configure_optimizers() override {
      return torch::optim::LBFGS(parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
    }

  private:
    int calls_ = 0;
  };
  run_good_job(
      {.recipe = recipe_for<newton>(std::make_shared<table_data>(8)), .options = quick(1, 8, 1)});
}

namespace {

/// Runs `step` as its training step.
struct looping : regression {
  using loss_of_batch = std::function<at::Tensor()>;
  using body = std::function<void(looping&, const loss_of_batch&)>;
  explicit looping(body step) : step_(std::move(step)) {}
  bool automatic_optimization() const override { return false; }
  step_output training_step(const batch& b, std::int64_t) override {
    step_(*this, [&] { return fn::mse_loss(net->forward(b[0]), b[1]); });
    return {};
  }

private:
  body step_;
};

std::vector<rank_end> looped_on(std::int32_t ranks, const looping::body& step,
                                torch_plugins with = {}) {
  auto options = quick(ranks, 2, 3);
  if (with.strategies.contains("mine")) options.strategy = own_name{"mine"};
  return run_job(
      {.recipe = recipe_for<looping>(std::move(with), std::make_shared<table_data>(24), step),
       .options = options});
}

std::string unsummed(const looping::body& step) {
  CHECK(text_of(looped_on(1, step)[0].error) == "nothing");
  return text_of(looped_on(2, step)[0].error);
}

void clip(looping& m) {
  m.strategy_in_use()->clip_gradients(m.optimizer().raw(), 1,
                                      hooks::clip_gradients::algorithm::norm);
}

}  // namespace

TEST_CASE("manual optimization: a step with a gradient that is not summed is refused") {
  using loss_of = looping::loss_of_batch;
  const std::vector<looping::body> steps{[](looping& m, const loss_of& loss) {
                                           m.optimizer().zero_grad();
                                           loss().backward();
                                           m.optimizer().step();
                                         },
                                         [](looping& m, const loss_of& loss) {
                                           loss().backward();
                                           clip(m);
                                           m.optimizer().step();
                                         },
                                         [](looping& m, const loss_of& loss) {
                                           m.manual_backward(loss());
                                           loss().backward();
                                           m.optimizer().step();
                                         },
                                         [](looping& m, const loss_of& loss) {
                                           loss().backward();
                                           m.manual_backward(loss());
                                           m.optimizer().step();
                                         },
                                         [](looping& m, const loss_of& loss) {
                                           m.optimizer().step([&] {
                                             m.optimizer().zero_grad();
                                             auto now = loss();
                                             now.backward();
                                             return now.detach();
                                           });
                                         }};
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(unsummed(steps[i]),
               Catch::Contains("parameter net.0.weight has a gradient of loss.backward()") &&
                   Catch::Contains("Call manual_backward(loss) in its place"));
  }
}

TEST_CASE("manual optimization: a step with gradients of another origin is not refused") {
  using loss_of = looping::loss_of_batch;
  const auto fine = [](const looping::body& step, const torch_plugins& with = {}) {
    const auto ends = looped_on(2, step, with);
    CHECK(text_of(ends[0].error) == "nothing");
    return weights_of(ends[0].snapshot);
  };
  const auto summed = fine([](looping& m, const loss_of& loss) {
    m.optimizer().zero_grad();
    m.manual_backward(loss());
    clip(m);
    m.optimizer().step();
  });
  const auto by_module = [&](bool in_place) {
    return fine([in_place](looping& m, const loss_of& loss) {
      m.optimizer().zero_grad();
      loss().backward();
      for (auto& one : m.parameters()) {
        const auto sum = m.reduce(one.grad(), "mean");
        if (in_place)
          one.mutable_grad().copy_(sum);
        else
          one.mutable_grad() = sum;
      }
      clip(m);
      m.optimizer().step();
    });
  };
  CHECK(distance(by_module(true), summed) < 1e-6);
  CHECK(distance(by_module(false), summed) < 1e-6);
  // Dropped before they are used.
  const auto dropped = fine([](looping& m, const loss_of& loss) {
    loss().backward();
    m.optimizer().zero_grad();
    m.manual_backward(loss());
    clip(m);
    m.optimizer().step();
  });
  CHECK(distance(dropped, summed) == 0);
  fine([](looping& m, const loss_of&) {
    for (auto& one : m.parameters()) one.mutable_grad() = torch::ones_like(one);
    m.optimizer().step();
  });
  // A strategy of the program's own knows what its ranks exchange.
  struct averaging : data_parallel {
    using data_parallel::data_parallel;
  };
  torch_plugins with;
  with.strategies["mine"] = [](strategy_parts parts) {
    return std::make_unique<averaging>(std::move(parts));
  };
  fine(
      [](looping& m, const loss_of& loss) {
        m.optimizer().zero_grad();
        loss().backward();
        m.optimizer().step();
      },
      with);
}

TEST_CASE("manual optimization: options that would act on its steps are refused") {
  const auto with = [](auto change) {
    auto options = quick(2, 2, 2);
    change(options);
    return refusal_of<players>(options);
  };
  CHECK_THAT(with([](auto& o) { o.accumulate_grad_batches = 2; }),
             Catch::Contains("set accumulate_grad_batches to 1"));
  CHECK_THAT(with([](auto& o) { o.gradient_clip_val = 1; }),
             Catch::Contains("strategy_in_use()->clip_gradients"));
  CHECK_THAT(with([](auto& o) { o.truncated_bptt_steps = 2; }),
             Catch::Contains("truncated_bptt_steps"));
  CHECK_THAT(with([](auto& o) {
               o.accumulate_schedule = {{1, 2}};
             }),
             Catch::Contains("leave accumulate_schedule out"));
  CHECK_THAT(with([](auto& o) { o.gradients.comm_hook = comm_hook_kind::f16_compress; }),
             Catch::Contains("leave out strategy.comm_hook"));
}

TEST_CASE("manual optimization: a rank without samples in the last batch is refused at once") {
  const auto text = refusal_of<players>(quick(3, 2, 100), 6 * 2 + 2);
  CHECK_THAT(text, Catch::Contains("has 2 samples for 3 ranks") && Catch::Contains("drop_last") &&
                       Catch::Contains("limit_train_batches to 2"));
  auto options = quick(3, 2, 5);
  options.limit_train_batches = std::int64_t{2};
  CHECK(refusal_of<players>(options, 6 * 2 + 2).empty());
}

TEST_CASE("manual calls of a module whose optimization is automatic are refused") {
  struct mixed : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      auto loss = regression::training_step(b, index).loss();
      manual_backward(loss);
      return loss;
    }
  };
  struct stepping : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      optimizer().step();
      return regression::training_step(b, index);
    }
  };
  struct unknown : players {
    step_output training_step(const batch&, std::int64_t) override {
      optimizer(2).step();
      return {};
    }
  };
  CHECK_THAT(refusal_of<mixed>(quick(1, 2, 2)), Catch::Contains("manual_backward: call it in"));
  CHECK_THAT(refusal_of<stepping>(quick(1, 2, 2)), Catch::Contains("optimizer().step: call it in"));
  CHECK_THAT(refusal_of<unknown>(quick(1, 2, 2)), Catch::Contains("optimizer(2)"));
  CHECK_THROWS_AS(regression{}.manual_backward(torch::zeros({1})), user_error);
}

namespace {

/// Two nets with an optimizer each. Keeps the second one's gradients over two batches.
struct playing : regression {
  explicit playing(std::int64_t fails_in = -1, std::shared_ptr<std::atomic<bool>> fails = nullptr)
      : regression({.dropout = 0.2, .batch_norm = true}),
        fails_in_(fails_in),
        fails_(std::move(fails)) {}
  bool automatic_optimization() const override { return false; }
  optimizers configure_optimizers() override {
    return optimizers{torch::optim::Adam(net->parameters(), 0.01)}.add(
        torch::optim::SGD(judge->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)));
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    fail_in(0);
    const auto made = net->forward(b[0]);
    const auto loss = fn::mse_loss(made, b[1]);
    log("train/loss", loss, {.on_epoch = true});
    optimizer(0).zero_grad();
    manual_backward(loss + 0.1 * judge->forward(made).mean());
    fail_in(1);
    optimizer(0).step();
    fail_in(2);
    if (index % 2 == 0) optimizer(1).zero_grad();
    manual_backward(judge->forward(made.detach()).sub(b[1]).pow(2).mean());
    if (index % 2 == 1) optimizer(1).step();
    fail_in(3);
    return {};
  }
  void fail_in(std::int64_t place) const {
    const bool here = place == fails_in_ && rank() == 1 && (at().step == 2 || at().step == 3);
    if (here && fails_ && fails_->exchange(false)) throw std::runtime_error("injected");
  }
  torch::nn::Linear judge = register_module("judge", torch::nn::Linear(1, 1));

private:
  std::int64_t fails_in_;
  std::shared_ptr<std::atomic<bool>> fails_;
};

trainer_options losing_ranks(std::int64_t steps) {
  auto options = quick(3, 4, steps);
  options.log_every_n_steps = 2;
  return options;
}

recipe_ptr recipe_of_playing(std::int64_t fails_in = -1, torch_plugins plugins = {}) {
  return make_recipe([=, fails = std::make_shared<std::atomic<bool>>(
                             fails_in >= 0)] { return std::make_shared<playing>(fails_in, fails); },
                     std::make_shared<table_data>(42, 4, 6), std::move(plugins));
}

}  // namespace

TEST_CASE("manual optimization: a failure in any hook: the job ends with the same bits",
          "[recovery]") {
  const auto options = losing_ranks(7);
  const auto undisturbed = run_recovering(recipe_of_playing(), options);
  CHECK(undisturbed.rows.at(4).contains("train/loss"));
  for (const auto* hook : {"batch_to_device", "training_step", "training_step_end",
                           "on_train_batch_end", "on_train_epoch_end", "validation_step"})
    for (const std::int64_t step : {2, 3, 4})
      for (const std::int32_t rank : {0, 1})
        for (const bool lost : {true, false}) {
          CAPTURE(hook, step, rank, lost);
          const injected failure{.rank = rank, .hook = hook, .step = step, .lost = lost};
          check_same(run_recovering(recipe_of_playing(), options, &failure), undisturbed);
        }
}

TEST_CASE("manual optimization: a failure between two updates is undone on all ranks",
          "[recovery]") {
  const auto options = losing_ranks(7);
  const auto undisturbed = run_recovering(recipe_of_playing(), options);
  for (const std::int64_t place : {0, 1, 2, 3})
    for (const bool lost : {true, false}) {
      CAPTURE(place, lost);
      const injected failure{.rank = 1, .lost = lost};
      const auto now = run_recovering(recipe_of_playing(place), options, &failure);
      check_same(now, undisturbed);
      CHECK(now.generations == 2);
      CHECK(now.survivors_with_state == (lost ? 2 : 3));
      CHECK(now.base_step == 2);
    }
}

TEST_CASE("manual optimization: a checkpoint has the gradients that wait for an update",
          "[recovery]") {
  auto options = quick(3, 4, 6);
  const auto whole = run_good_job({.recipe = recipe_of_playing(), .options = options})[0].snapshot;
  options.max_steps = 3;  // after batch 2, which only adds to the judge's gradients
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<one_checkpoint>(
      run_good_job({.recipe = recipe_of_playing(), .options = options})[0].snapshot);
  options.max_steps = 6;
  const auto resumed =
      run_good_job(
          {.recipe = recipe_of_playing(-1, plugins), .options = options, .resume = "here"})[0]
          .snapshot;
  CHECK(resumed->weights_digest == whole->weights_digest);
}
