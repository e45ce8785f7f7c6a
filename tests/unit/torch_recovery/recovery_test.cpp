// Goal: a job that loses a rank at any hook or collective goes on from the last point, and ends
// with the same bits and the same metrics as one that loses none.
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/measures.hpp"
#include "troupe/strategy.hpp"
#include "troupe/sync_batch_norm.hpp"

#include <array>
#include <atomic>
#include <chrono>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Batch norm, dropout, Adam with two schedules by steps and a plateau scheduler; logs for steps
/// and epochs.
struct restless : regression {
  explicit restless(bool batch_norm)
      : regression({.dropout = 0.2, .batch_norm = batch_norm, .optimize = [](regression& self) {
                      const schedule each_step{.every = schedule::interval::step};
                      return optimizers{torch::optim::Adam(self.parameters(), 0.01)}
                          .scheduled(schedules::one_cycle({.max_lr = {0.02}, .total_steps = 99}),
                                     each_step)
                          .scheduled<torch::optim::StepLR>(each_step, 3, 0.5)
                          .scheduled<torch::optim::ReduceLROnPlateauScheduler>(
                              {.every = schedule::interval::plateau, .monitor = "val/loss"},
                              torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, 0);
                    }}) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    has_samples_ = true;
    const auto output = regression::training_step(b, index);
    log("train/epoch_loss", output.loss(), {.on_step = false, .on_epoch = true});
    return output;
  }
  void on_after_backward() override {
    const auto gradient = net->parameters().front().grad();
    if (std::exchange(has_samples_, false))
      log("train/gradient", gradient.norm(), {.on_epoch = true});
  }
  bool has_samples_ = false;
};

// An epoch has four batches. In the last one each rank has two samples, or, without batch norm,
// only rank 0 has one.
recipe_ptr recipe_of_restless(bool batch_norm = true) {
  const auto data = std::make_shared<table_data>(batch_norm ? 42 : 37, 4, 6);
  return make_recipe([=] { return std::make_shared<restless>(batch_norm); }, data);
}

trainer_options options_of(std::int64_t accumulate, std::int64_t steps = 9) {
  auto options = quick(3, 4, steps);
  options.accumulate_grad_batches = accumulate;
  options.log_every_n_steps = 2;
  return options;
}

}  // namespace

TEST_CASE("a failure in any hook of a step: the job ends with the same bits", "[recovery]") {
  const auto accumulate = GENERATE(1, 2);
  const auto recipe = recipe_of_restless();
  const auto options = options_of(accumulate);
  const auto undisturbed = run_recovering(recipe, options);
  REQUIRE(undisturbed.generations == 1);
  for (const auto* hook :
       {"batch_to_device", "on_train_batch_start", "optimizer_step", "training_step",
        "training_step_end", "on_before_zero_grad", "optimizer_zero_grad", "pre_backward",
        "on_before_backward", "backward", "on_after_backward", "post_backward",
        "on_before_optimizer_step", "lr_scheduler_step", "on_train_batch_end"})
    for (const bool lost : {true, false}) {
      CAPTURE(accumulate, hook, lost);
      const injected failure{.rank = 1, .hook = hook, .step = 3, .lost = lost};
      const auto now = run_recovering(recipe, options, &failure);
      check_same(now, undisturbed);
      CHECK(now.generations == 2);
      // These hooks' own failures leave the failing rank between two states.
      const std::string_view name{hook};
      const bool torn = name == "lr_scheduler_step" || name == "on_train_batch_end";
      CHECK(now.survivors_with_state == (lost || torn ? 2 : 3));
    }
}

TEST_CASE("a rank is lost in any hook of a step: a measure counts each sample once", "[recovery]") {
  struct measured : restless {
    using restless::restless;
    std::shared_ptr<measures::mean_absolute_error> size =
        register_module("size", std::make_shared<measures::mean_absolute_error>());
    step_output training_step(const batch& b, std::int64_t index) override {
      size->update(b[1], torch::zeros_like(b[1]));
      return restless::training_step(b, index);
    }
    void on_train_epoch_end(std::int64_t) override {
      log("train/size", size->compute(*this));
      size->reset();
    }
  };
  const auto accumulate = GENERATE(1, 2);
  const auto data = std::make_shared<table_data>(42, 4, 6);
  const auto recipe = make_recipe([] { return std::make_shared<measured>(true); }, data);
  const auto options = options_of(accumulate);
  const auto undisturbed = run_recovering(recipe, options);
  CHECK(undisturbed.last.at("train/size") ==
        Approx(data->targets().abs().to(at::kDouble).mean().item<double>()));
  for (const auto* hook : {"training_step", "backward", "on_before_optimizer_step",
                           "on_train_batch_end", "on_train_epoch_end"})
    for (const std::int64_t step : {2, 4})
      for (const bool lost : {true, false}) {
        CAPTURE(accumulate, hook, step, lost);
        const injected failure{.rank = 1, .hook = hook, .step = step, .lost = lost};
        check_same(run_recovering(recipe, options, &failure), undisturbed);
      }
}

TEST_CASE("a failure around an unfreeze in a hook: the job ends with the same bits", "[recovery]") {
  struct manual : fine_tuned {
    bool automatic_optimization() const override { return false; }
    step_output training_step(const batch& b, std::int64_t index) override {
      const auto loss = fine_tuned::training_step(b, index).loss();
      optimizer().zero_grad();
      manual_backward(loss);
      optimizer().step();
      return {};
    }
  };
  const auto data = std::make_shared<table_data>(36, 4, 6);  // 3 steps per epoch
  const bool by_itself = GENERATE(false, true);
  const auto recipe = make_recipe(
      [=]() -> std::shared_ptr<module> {
        if (by_itself) return std::make_shared<manual>();
        return std::make_shared<fine_tuned>();
      },
      data);
  const auto options = options_of(1);
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook :
       {"on_train_epoch_start", "on_train_batch_start", "training_step", "on_train_batch_end"})
    for (const std::int64_t step : {3, 6})
      for (const bool lost : {true, false}) {
        CAPTURE(by_itself, hook, step, lost);
        const injected failure{.rank = 1, .hook = hook, .step = step, .lost = lost};
        check_same(run_recovering(recipe, options, &failure), undisturbed);
      }
}

TEST_CASE("a failure after a converted batch norm was frozen: the job ends with the same bits",
          "[recovery]") {
  struct frozen : regression {
    frozen() : regression({.batch_norm = true}) { convert_sync_batch_norm(*this); }
    void on_train_start() override { net->ptr(1)->eval(); }
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      if (at().step == 4) net->ptr(1)->train();
    }
  };
  const auto data = std::make_shared<table_data>(36, 4, 6);
  const auto recipe = make_recipe([] { return std::make_shared<frozen>(); }, data);
  const auto options = options_of(1);
  const auto undisturbed = run_recovering(recipe, options);
  for (const std::int64_t step : {0, 1, 4, 5})
    for (const bool lost : {true, false}) {
      CAPTURE(step, lost);
      const injected failure{.rank = 1, .hook = "backward", .step = step, .lost = lost};
      check_same(run_recovering(recipe, options, &failure), undisturbed);
    }
}

TEST_CASE("a rank is lost: changes of hooks after a step or in a validation stay", "[recovery]") {
  struct counting : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      const auto output = regression::training_step(b, index);
      return output.loss() + (net->forward(b[0]) * seen).mean();
    }
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      seen.mul_(0.5).add_(0.1 * static_cast<double>(at().step));
      log("train/seen", seen.item<double>());
    }
    void on_validation_epoch_start() override { size->reset(); }
    step_output validation_step(const batch& b, std::int64_t index) override {
      size->update(b[1], torch::zeros_like(b[1]));
      return regression::validation_step(b, index);
    }
    void on_validation_epoch_end() override { log("val/size", size->compute(*this)); }
    at::Tensor seen = register_buffer("seen", torch::zeros({1}));
    std::shared_ptr<measures::mean_absolute_error> size =
        register_module("size", std::make_shared<measures::mean_absolute_error>());
  };
  const auto data = std::make_shared<table_data>(36, 4, 8);  // 3 steps per epoch
  const auto recipe = make_recipe([] { return std::make_shared<counting>(); }, data);
  auto options = options_of(1, 8);
  options.num_sanity_val_steps = 2;
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook : {"training_step", "on_train_batch_end", "on_train_epoch_end"})
    for (const std::int64_t step : {0, 1, 2, 3, 4, 6})
      for (const std::int32_t rank : {0, 1})
        for (const bool lost : {true, false}) {
          CAPTURE(hook, step, rank, lost);
          const injected failure{.rank = rank, .hook = hook, .step = step, .lost = lost};
          const auto now = run_recovering(recipe, options, &failure);
          CHECK(now.digest == undisturbed.digest);
          const bool logs_less = std::string_view{hook} == "on_train_batch_end" && lost;
          if (!logs_less) CHECK(now.last == undisturbed.last);
        }
}

TEST_CASE("a rank is lost: hooks after a step give each rank buffers of its own", "[recovery]") {
  struct counting : regression {
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      seen.fill_(static_cast<double>(at().step * 10 + rank()));
    }
    step_output training_step(const batch& b, std::int64_t index) override {
      if (rank() != 1 && at().batch > 0 && seen.item<double>() != at().step * 10 + rank()) ++*wrong;
      return regression::training_step(b, index);
    }
    explicit counting(std::atomic<int>* w) : wrong(w) {}
    std::atomic<int>* wrong;
    at::Tensor seen = register_buffer("seen", torch::zeros({1}));
  };
  std::atomic<int> wrong{0};  // ranks that kept their state have their own buffers
  const auto recipe = make_recipe([&] { return std::make_shared<counting>(&wrong); },
                                  std::make_shared<table_data>(36, 4, 8));
  auto options = options_of(1, 8);
  if (GENERATE(false, true)) options.checkpoint.every_n_steps = 1;
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook : {"training_step", "on_train_batch_end", "on_train_epoch_end"})
    for (const std::int64_t step : {1, 2, 3, 4})
      for (const bool lost : {true, false})
        for (const std::int64_t again : {-1, 5, 7, 9}) {  // -1: no second failure
          CAPTURE(hook, step, lost, again);
          const injected failure{
              .rank = 1, .hook = hook, .step = step, .lost = lost, .collective_of_next = again};
          const auto now = run_recovering(recipe, options, &failure);
          CHECK(now.digest == undisturbed.digest);
          if (now.generations > 1) CHECK(now.generations == (again < 0 ? 2 : 3));
        }
  CHECK(wrong == 0);
}

TEST_CASE("a failure in 16-mixed: the scale and its count go on on all ranks", "[recovery]") {
  torch_plugins plugins;
  plugins.precisions["16-mixed"] = [] {
    return make_f16_mixed({.init_scale = 8, .growth_interval = 2});
  };
  // Rank 1 has an infinite gradient in step 4, so that no rank makes that step.
  struct spoiled : restless {
    using restless::restless;
    void backward(const at::Tensor& loss, const value& arguments) override {
      restless::backward(rank() == 1 && at().step == 4 ? loss * INFINITY : loss, arguments);
    }
  };
  const auto recipe = make_recipe([] { return std::make_shared<spoiled>(true); },
                                  std::make_shared<table_data>(42, 4, 6), plugins);
  auto options = options_of(1);
  options.precision = precision_kind::f16_mixed;
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook : {"training_step", "on_before_optimizer_step", "optimizer_step",
                           "lr_scheduler_step", "on_train_batch_end"})
    for (const std::int64_t step : {3, 4, 5})
      for (const bool lost : {true, false}) {
        CAPTURE(hook, step, lost);
        const injected failure{.rank = 1, .hook = hook, .step = step, .lost = lost};
        const auto now = run_recovering(recipe, options, &failure);
        CHECK(now.digest == undisturbed.digest);
        CHECK(now.steps == undisturbed.steps);
        CHECK(now.generations == 2);
      }
}

TEST_CASE("rank 0 is lost in the hooks around an epoch: metrics stay exact", "[recovery]") {
  const auto batch_norm = GENERATE(true, false);
  const auto recipe = recipe_of_restless(batch_norm);
  const auto options = options_of(1);
  const auto undisturbed = run_recovering(recipe, options);
  struct row {
    const char* hook;
    std::int64_t step;
  };
  for (const auto& [hook, step] :
       {row{"training_step", 3}, row{"on_train_batch_end", 4}, row{"on_train_epoch_end", 4},
        row{"on_validation_start", 4}, row{"validation_step", 4}, row{"on_validation_epoch_end", 4},
        row{"on_train_epoch_start", 4}, row{"training_step", 4}, row{"on_save_checkpoint", 9},
        row{"on_train_end", 9}}) {
    CAPTURE(batch_norm, hook, step);
    const injected failure{.rank = 0, .hook = hook, .step = step};
    const auto now = run_recovering(recipe, options, &failure);
    check_same(now, undisturbed);
    CHECK(now.survivors_with_state == 2);
  }
}

TEST_CASE("a rank moves after any step: the job ends with the same bits", "[recovery]") {
  const auto accumulate = GENERATE(1, 2);
  const auto recipe = recipe_of_restless();
  const auto options = options_of(accumulate);
  const auto undisturbed = run_recovering(recipe, options);
  for (std::int64_t step = 1; step < undisturbed.steps; ++step)
    for (const std::int32_t rank : {0, 1})
      for (const bool moves : {true, false}) {
        CAPTURE(accumulate, step, rank, moves);
        const injected change{.rank = rank, .lost = moves, .pause_at = step};
        const auto now = run_recovering(recipe, options, &change);
        check_same(now, undisturbed);
        CHECK(now.generations == 2);
        CHECK(now.base_step == step);
        CHECK(now.survivors_with_state == (moves ? 2 : 3));
      }
}

TEST_CASE("a rank that goes on in a new process prepares data, whatever its number on the host",
          "[recovery]") {
  struct counted : table_data {
    counted() : table_data(42, 4, 6) {}
    void prepare_data() override { ++prepared; }
    void setup(stage) override { expect(prepared > 0); }
    std::atomic<int> prepared{0};
  };
  // The recipe of each process: what ranks begin anew is in the second one, if there is one.
  struct of_processes : learner_recipe {
    std::unique_ptr<learner> make(const learner_context& who) const override {
      return recipes[made++ < 3 ? 0 : recipes.size() - 1]->make(who);
    }
    std::vector<recipe_ptr> recipes;
    mutable std::atomic<int> made{0};
  };
  for (const std::int32_t rank : {0, 1})
    for (const bool new_process : {false, true}) {
      CAPTURE(rank, new_process);
      const auto here = std::make_shared<counted>(), there = std::make_shared<counted>();
      const auto all = std::make_shared<of_processes>();
      const auto make = [] { return std::make_shared<regression>(); };
      all->recipes.push_back(make_recipe(make, here));
      if (new_process) all->recipes.push_back(make_recipe(make, there));
      const injected failure{.rank = rank, .hook = "training_step", .step = 3};
      CHECK(run_recovering(all, options_of(1), &failure).generations == 2);
      CHECK(here->prepared == (rank == 0 && !new_process ? 2 : 1));
      CHECK(there->prepared == (new_process ? 1 : 0));
    }
}

TEST_CASE("a rank is lost in any collective: each survivor keeps a point to resume from",
          "[recovery]") {
  const auto recipe = recipe_of_restless();
  const auto options = options_of(GENERATE(1, 2), 3);
  const auto undisturbed = run_recovering(recipe, options);
  std::int64_t too_early = 0;
  for (std::int64_t n = 0; n < undisturbed.collectives[1]; ++n) {
    CAPTURE(n, undisturbed.collectives[1]);
    const injected failure{.rank = 1, .collective = n};
    try {
      const auto now = run_recovering(recipe, options, &failure);
      check_same(now, undisturbed);
      CHECK(now.refusals == std::vector<std::string>{});
      CHECK(now.survivors_with_state == 2);
    } catch (const std::logic_error& e) {
      CHECK(std::string{e.what()} == "no rank holds a point");
      CHECK(n == too_early++);  // only before the first point
    }
  }
  CHECK(too_early < 20);
}

TEST_CASE("a restore that is aborted is repeated in the next generation", "[recovery]") {
  const auto recipe = recipe_of_restless();
  const auto options = options_of(1, 5);
  const auto undisturbed = run_recovering(recipe, options);
  for (const std::int64_t n : {0, 1, 2, 3}) {
    CAPTURE(n);
    const injected failure{.rank = 1, .hook = "backward", .step = 2, .collective_of_next = n};
    const auto now = run_recovering(recipe, options, &failure);
    check_same(now, undisturbed);
    CHECK(now.generations == 3);
  }
}

namespace {

/// With two optimizers, rank 1 fails once, after the first of them has updated its weights.
struct two_optimizers : regression {
  explicit two_optimizers(std::shared_ptr<std::atomic<bool>> fails) : fails_(std::move(fails)) {}
  optimizers configure_optimizers() override {
    const auto all = parameters();
    return optimizers{torch::optim::SGD({all[0], all[1]}, 0.1)}.add(
        torch::optim::SGD({all[2], all[3]}, 0.1));
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    if (rank() == 1 && at().optimizer == 1 && at().step == 2 && fails_->exchange(false))
      throw std::runtime_error("injected");
    return regression::training_step(b, index);
  }
  std::shared_ptr<std::atomic<bool>> fails_;
};

}  // namespace

TEST_CASE("an abort between two optimizers' updates leaves no rank with a state", "[recovery]") {
  const auto fails = std::make_shared<std::atomic<bool>>(true);
  const auto recipe = make_recipe([=] { return std::make_shared<two_optimizers>(fails); },
                                  std::make_shared<table_data>(40));
  const injected failure{.rank = 1};
  CHECK_THROWS_WITH(run_recovering(recipe, options_of(1), &failure), "no rank holds a point");
  CHECK(run_recovering(recipe, options_of(1)).generations == 1);
}

TEST_CASE("a rank is lost: a callback's tensor that it wrote by a pointer is that of its step",
          "[recovery]") {
  struct counter : callback {
    explicit counter(std::shared_ptr<std::atomic<std::int64_t>> to) : sum(std::move(to)) {}
    void on_train_batch_end(module&, const step_output&, const batch&, std::int64_t) override {
      ++*seen.data_ptr<std::int64_t>();
    }
    void on_train_end(module&) override { *sum += *seen.data_ptr<std::int64_t>(); }
    callback_state save_state() const override { return {.tensors = {{"seen", seen}}}; }
    void load_state(module&, const callback_state& from) override {
      seen.copy_(from.tensors.at("seen"));
    }
    std::string state_key() const override { return "counter"; }
    at::Tensor seen = torch::zeros({1}, at::kLong);
    std::shared_ptr<std::atomic<std::int64_t>> sum;
  };
  const auto sum = std::make_shared<std::atomic<std::int64_t>>(0);
  torch_plugins parts;
  parts.callbacks = {[=] { return std::make_unique<counter>(sum); }};
  const auto recipe = make_recipe([] { return std::make_shared<regression>(); },
                                  std::make_shared<table_data>(120), parts);
  const injected failure{.rank = 1, .hook = "backward", .step = 5};
  const auto ends = run_recovering(recipe, options_of(1), &failure);
  CHECK(ends.generations == 2);
  CHECK(*sum == 3 * ends.steps);
}

TEST_CASE("a job that logs nothing for the epoch exchanges nothing more in a step", "[recovery]") {
  const auto recipe =
      make_recipe([] { return std::make_shared<regression>(); }, std::make_shared<table_data>(480));
  auto options = options_of(1, 5);
  options.log_every_n_steps = 1000;
  const auto five = run_recovering(recipe, options);
  options.max_steps = 15;
  CHECK(run_recovering(recipe, options).collectives[0] - five.collectives[0] == 10);
}

TEST_CASE("a fused step and unequal starts are refused in jobs that can restart", "[recovery]") {
  const auto recipe = recipe_of_restless();
  auto options = options_of(1);
  const bool fused = GENERATE(true, false);
  if (fused) options.gradients.fused_step = true;
  options.gradients.sync_module_states = fused;
  options.elastic.max_restarts = 1;
  const auto* text = fused ? "set it to false, or set elastic.max_restarts to 0"
                           : "set it to true, or set elastic.max_restarts to 0";
  CHECK_THROWS_WITH(recipe->check_options(options), Catch::Contains(text));
  const auto ends = run_job({.recipe = recipe, .options = options});
  for (const auto& end : ends) CHECK_THAT(text_of(end.error), Catch::Contains(text));
}

TEST_CASE("a failure in any hook: ranks agree on what is due by the clock", "[recovery]") {
  // The clock is always past its time, so the undisturbed job does the same after each step.
  const auto recipe = recipe_of_restless();
  auto options = options_of(1, 6);
  const bool saves = GENERATE(true, false);
  if (saves)
    options.checkpoint.every = std::chrono::nanoseconds{1};
  else
    options.val_check_time = std::chrono::nanoseconds{1};
  const auto undisturbed = run_recovering(recipe, options);
  if (!saves) CHECK(undisturbed.rows.at(3).contains("val/loss"));
  for (const std::int32_t rank : {0, 1})
    for (const auto* hook :
         {"batch_to_device", "training_step", "backward", "optimizer_step", "lr_scheduler_step",
          "on_train_batch_end", "on_validation_start", "validation_step", "on_save_checkpoint"})
      for (const bool lost : {true, false}) {
        CAPTURE(saves, rank, hook, lost);
        const injected failure{.rank = rank, .hook = hook, .step = 3, .lost = lost};
        check_same(run_recovering(recipe, options, &failure), undisturbed);
      }
}

TEST_CASE("the clock's answer changes after a failure: all ranks do the same steps", "[recovery]") {
  const auto recipe = recipe_of_restless();
  auto options = options_of(1, 8);
  options.val_check_time = std::chrono::milliseconds{2};
  options.checkpoint.every = std::chrono::milliseconds{3};
  for (const auto* hook : {"training_step", "backward", "on_train_batch_end"})
    for (const std::int64_t step : {2, 4, 5})
      for (const std::int32_t rank : {0, 1}) {
        CAPTURE(hook, step, rank);
        const injected failure{.rank = rank, .hook = hook, .step = step};
        CHECK(run_recovering(recipe, options, &failure).steps == 8);
      }
}

namespace {

/// Each rank has a clock of its own, which says the number of its step.
struct step_clocks {
  rank_clock now() const {
    return [all = all](std::int32_t rank) {
      return std::chrono::seconds{1000 * rank + all->at(static_cast<std::size_t>(rank))};
    };
  }
  callback_factory moves() const {
    return lambda_callback{
        {.on_train_batch_start = [all = all](module& m, const batch&, std::int64_t) {
          auto& mine = all->at(static_cast<std::size_t>(m.rank()));
          if (m.at().step > mine) mine = m.at().step;
        }}};
  }
  void restart() const {
    for (auto& one : *all) one = 0;
  }
  std::shared_ptr<std::array<std::atomic<std::int64_t>, 3>> all =
      std::make_shared<std::array<std::atomic<std::int64_t>, 3>>();
};

}  // namespace

TEST_CASE("val_check_time: what had passed of it survives the loss of a rank", "[recovery]") {
  const step_clocks clocks;
  torch_plugins plugins;
  plugins.callbacks = {clocks.moves()};
  const auto recipe = recipe_for<regression>(plugins, std::make_shared<table_data>(48, 4, 6));
  auto options = quick(3, 4, 12);
  options.val_check_time = std::chrono::seconds{4};
  const auto run = [&](const injected* failure) {
    clocks.restart();
    return run_recovering(recipe, options, failure, clocks.now());
  };
  const auto undisturbed = run(nullptr);
  for (std::int64_t step = 0; step < 12; ++step)
    if (const auto row = undisturbed.rows.find(step + 1); row != undisturbed.rows.end()) {
      const bool validated = row->second.contains("val/loss");
      CHECK(validated == (step > 0 && step % 4 == 0));
    }
  for (const std::int32_t rank : {0, 1})
    for (const std::int64_t step : {2, 6, 7}) {
      CAPTURE(rank, step);
      // All ranks have begun the step.
      const injected failure{.rank = rank, .hook = "on_before_optimizer_step", .step = step};
      const auto replaced = run(&failure);
      CHECK(replaced.generations == 2);
      CHECK(replaced.rows == undisturbed.rows);
      CHECK(replaced.digest == undisturbed.digest);
    }
}

TEST_CASE("every_n_minutes: what had passed of it survives the loss of a rank", "[recovery]") {
  const step_clocks clocks;
  const auto saved = std::make_shared<std::array<std::atomic<bool>, 13>>();  // by step
  torch_plugins plugins;
  plugins.callbacks = {clocks.moves(), lambda_callback{{.on_save_checkpoint = [=](module& m) {
                         saved->at(static_cast<std::size_t>(m.at().step)) = true;
                       }}}};
  const auto recipe = recipe_for<regression>(plugins, std::make_shared<table_data>(480));
  auto options = quick(3, 4, 12);
  options.checkpoint.every = std::chrono::seconds{4};
  const auto saves = [&](const injected* failure) {
    clocks.restart();
    for (auto& one : *saved) one = false;
    CHECK(run_recovering(recipe, options, failure, clocks.now()).generations == (failure ? 2 : 1));
    std::vector<std::int64_t> steps;
    for (std::int64_t step = 0; step < 13; ++step)
      if (saved->at(static_cast<std::size_t>(step))) steps.push_back(step);
    return steps;
  };
  const auto undisturbed = saves(nullptr);
  CHECK(undisturbed == std::vector<std::int64_t>{5, 9, 12});
  for (const std::int32_t rank : {0, 1})
    for (const std::int64_t step : {2, 4, 6, 7}) {
      CAPTURE(rank, step);
      // All ranks have begun the step.
      const injected failure{.rank = rank, .hook = "on_before_optimizer_step", .step = step};
      CHECK(saves(&failure) == undisturbed);
    }
}

TEST_CASE("max_time in a job that loses a rank: a timer ends all ranks at one step", "[recovery]") {
  const auto recipe = recipe_of_restless();
  auto options = options_of(1, 9);
  options.max_time = std::chrono::nanoseconds{1};
  options.min_steps = 4;  // the stop waits for them
  const auto undisturbed = run_recovering(recipe, options);
  CHECK(undisturbed.steps == 4);
  for (const auto* hook : {"training_step", "backward", "on_train_batch_end"})
    for (const std::int64_t step : {0, 2, 3})
      for (const std::int32_t rank : {0, 1}) {
        CAPTURE(hook, step, rank);
        const injected failure{.rank = rank, .hook = hook, .step = step};
        check_same(run_recovering(recipe, options, &failure), undisturbed);
      }
}
