// Goal: each ready callback does what its header says. Numbers named "PyTorch" were computed by
// PyTorch 2.13.
#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/torch/callback_catalog.hpp"
#include "backends/torch/report_monitor.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_callbacks/resumed.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/measures.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using named_tensors = std::map<std::string, at::Tensor>;

// A job with callbacks on 2 ranks, 4 steps per epoch, a validation after each.
struct ready_job {
  data_ptr data = std::make_shared<table_data>(32, 4, 8);
  trainer_options options = [] {
    auto all = quick(2, 4, 99);
    all.max_epochs = 3;
    all.log_every_n_steps = 1;
    return all;
  }();
  template <class Module = regression>
  std::vector<rank_end> run(std::vector<callback_factory> callbacks) const {
    torch_plugins plugins;
    plugins.callbacks = std::move(callbacks);
    return run_good_job({.recipe = recipe_for<Module>(plugins, data), .options = options});
  }
};

named_tensors copy_of(module& m) {
  named_tensors all;
  for (const auto& item : m.named_parameters()) all[item.key()] = item.value().detach().clone();
  return all;
}

/// Rank 0's weights: after each step, and as each validation uses them.
struct seen_weights {
  std::vector<named_tensors> steps, validations;
};
callback_factory observing(const std::shared_ptr<seen_weights>& into) {
  return lambda_callback{{.on_train_batch_end =
                              [=](module& m, const step_output&, const batch&, std::int64_t) {
                                if (m.rank() == 0) into->steps.push_back(copy_of(m));
                              },
                          .on_validation_batch_start =
                              [=](module& m, const batch&, std::int64_t, std::int32_t) {
                                if (m.rank() == 0) into->validations.push_back(copy_of(m));
                              }}};
}

// A clock of each copy's own that moves by `step` with each look.
clock_function ticking(std::chrono::nanoseconds step) {
  return [step, now = 0ns]() mutable { return now += step; };
}

}  // namespace

TEST_CASE("a lambda callback calls the functions that it has") {
  const auto said = std::make_shared<std::vector<std::string>>();
  const auto note = [=](module& m, const char* what) {
    if (m.rank() == 0) said->push_back(what + std::to_string(m.at().step));
  };
  ready_job job;
  job.options.max_epochs = 1;
  job.run({lambda_callback{
      {.on_train_epoch_start = [=](module& m, std::int64_t) { note(m, "epoch "); },
       .on_train_batch_start = [=](module& m, const batch&, std::int64_t) { note(m, "batch "); },
       .on_validation_end = [=](module& m) { note(m, "validated "); },
       .on_save_checkpoint = [=](module& m) { note(m, "saved "); }}}});
  CHECK(*said == std::vector<std::string>{"epoch 0", "batch 0", "batch 1", "batch 2", "batch 3",
                                          "validated 4", "saved 4"});
}

// --- what is logged ------------------------------------------------------------------------------

namespace {

struct two_optimizers_with_groups : regression {
  optimizers configure_optimizers() override {
    const auto all = parameters();
    torch::optim::SGD two({torch::optim::OptimizerParamGroup({all[0]}),
                           torch::optim::OptimizerParamGroup(
                               {all[1]}, std::make_unique<torch::optim::SGDOptions>(0.25))},
                          torch::optim::SGDOptions(0.5).momentum(0.75));
    return optimizers{std::move(two)}
        .scheduled<torch::optim::StepLR>({.every = schedule::interval::epoch}, 1, 0.5)
        .add(torch::optim::SGD({all[2]}, 0.125))
        .add(torch::optim::Adam({all[3]}, torch::optim::AdamOptions(0.01).weight_decay(0.375)));
  }
};

}  // namespace

TEST_CASE("rates are logged under Lightning's names") {
  ready_job job;
  job.options.max_epochs = 2;
  using interval = learning_rate_monitor_options::interval;
  const auto every = GENERATE(interval::step, interval::epoch);
  const auto last = job.run<two_optimizers_with_groups>({learning_rate_monitor{
      {.every = every, .log_momentum = true, .log_weight_decay = true}}})[0]
                        .loop.last;
  CHECK(last.at("lr-SGD/pg1") == 0.25);  // of the second epoch
  CHECK(last.at("lr-SGD/pg2") == 0.125);
  CHECK(last.at("lr-SGD/pg1-momentum") == 0.75);
  CHECK(last.at("lr-SGD-1") == 0.125);
  CHECK(last.at("lr-Adam") == 0.01);
  CHECK(last.at("lr-Adam-momentum") == 0.9);
  CHECK(last.at("lr-Adam-weight_decay") == 0.375);
}

TEST_CASE("norms are those of the gradients summed over ranks") {
  struct quiet : regression {
    bool reads_gradients() const override { return false; }
  };
  ready_job job;
  job.options = until(job.options, 1);
  const auto norm = GENERATE(2.0, INFINITY);
  const auto last = job.run<quiet>({gradient_norms{{.norm = norm}}})[0].loop.last;
  rank_random draws{job.options.seed};
  const random_scope scope{draws};
  regression same;
  const auto& rows = dynamic_cast<table_data&>(*job.data);
  const auto order = torch::tensor(permutation(job.options.seed, 0, 32)).narrow(0, 0, 8);
  fn::mse_loss(same.net->forward(rows.inputs().index_select(0, order)),
               rows.targets().index_select(0, order))
      .backward();
  const std::string kind = std::isinf(norm) ? "inf" : "2.0";
  std::vector<at::Tensor> all;
  for (const auto& item : same.named_parameters()) {
    all.push_back(item.value().grad().flatten());
    CHECK(last.at("grad_" + kind + "_norm/" + item.key()) ==
          Approx(all.back().norm(norm).item<double>()).epsilon(1e-5));
  }
  CHECK(last.at("grad_" + kind + "_norm_total") ==
        Approx(torch::cat(all).norm(norm).item<double>()).epsilon(1e-5));
}

TEST_CASE("throughput counts the samples of all ranks over the last steps") {
  ready_job job;
  const auto last =
      job.run({throughput_monitor{{.window = 2, .now = ticking(500ms)}}})[0].loop.last;
  // Two steps of 8 samples in a second.
  CHECK(last.at("throughput/samples_per_second") == 16);
  CHECK(last.at("throughput/steps_per_second") == 2);
}

TEST_CASE("the process's memory and processor time are logged") {
  ready_job job;
  const auto last = job.run({device_stats_monitor{}})[0].loop.last;
  CHECK(last.at("device/process_memory_mib") > 20);  // LibTorch alone takes more
  CHECK(last.at("device/process_memory_mib") < 1 << 20);
  CHECK(last.at("device/process_cpu_percent") > 0);
}

// --- timer ---------------------------------------------------------------------------------------

namespace {

timer_options seconds_of_training(int most, timer_options::interval every) {
  return {.max_time = std::chrono::seconds{most}, .every = every, .now = ticking(1s)};
}

}  // namespace

TEST_CASE("a timer ends training one step after its time, and goes on after a resume") {
  using interval = timer_options::interval;
  ready_job job;
  if (GENERATE(false, true)) job.options.limit_val_batches = std::int64_t{0};
  job.options.checkpoint.every_epoch = false;  // saving reads the clock
  // Its clock is read when training starts (twice) and after each step: 3 s have passed after the
  // second step, and step 3 carries the stop to all ranks.
  const auto first = job.run({timer{seconds_of_training(3, interval::step)}});
  for (const auto& end : first) {
    CHECK(end.loop.steps == 3);
    CHECK(end.why == stop_reason::hook);
  }
  torch_plugins plugins;
  plugins.callbacks = {timer{seconds_of_training(10, interval::step)}};
  const auto more = resumed<regression>(first[0].snapshot, plugins, job.data, job.options);
  // The first run took 5 s until its checkpoint, so 5 s are left.
  CHECK(more[0].loop.steps == 3 + 5);
  CHECK(more[0].why == stop_reason::hook);

  const auto by_epoch = job.run({timer{seconds_of_training(2, interval::epoch)}});
  CHECK(by_epoch[0].loop.steps == 4);
  CHECK_THROWS_WITH(timer{{}}, Catch::Contains("max_time is not positive"));
}

TEST_CASE("each rank's throughput and waiting are logged under its number") {
  ready_job job;  // 4 samples of each rank in a step, which takes one look at the clock
  const auto last = job.run({rank_monitor{ticking(500ms)}})[0].loop.last;
  for (const auto* rank : {"rank/0/", "rank/1/"}) {
    CHECK(last.at(std::string{rank} + "samples_per_second") == 8);
    const auto share = last.at(std::string{rank} + "waiting_share");
    CHECK((share >= 0 && share <= 1));
  }
  CHECK(last.count("rank/2/samples_per_second") == 0);
}

TEST_CASE("the figures of a run: learning rate, samples per second of all ranks, memory") {
  ready_job job;
  const auto last = job.run({report_monitor{ticking(500ms)}})[0].loop.last;
  CHECK(last.at("run/learning_rate") == 0.05);
  CHECK(last.at("run/samples_per_second") == 16);
  CHECK(last.at("run/process_memory_mib") > 20);
  struct pair : regression {
    pair()
        : regression({.optimize = [](regression& self) {
            const auto all = self.parameters();
            return optimizers{torch::optim::SGD({all[0], all[1]}, 0.25)}.add(
                torch::optim::Adam({all[2], all[3]}, 0.5));
          }}) {}
  };
  const auto two = job.run<pair>({named_callback("figures")})[0].loop.last;
  CHECK(two.at("run/learning_rate") == 0.25);
  CHECK(two.at("run/learning_rate_2") == 0.5);
}

// tests/end_to_end/readers.py reads what it writes.
TEST_CASE("the pictures for TensorBoard change no weight, and impossible options are refused") {
  ready_job job;
  const temporary_folder folder;
  const auto place = folder.path() / "below" / "model";
  const auto plain = job.run({})[0].snapshot;
  const auto drawn = job.run({tensorboard_model{{.folder = place.string()}}})[0].snapshot;
  CHECK(distance(weights_of(drawn), weights_of(plain)) == 0);
  CHECK(std::ranges::distance(std::filesystem::directory_iterator{place}) == 1);
  CHECK_THROWS_WITH(tensorboard_model{{}}, Catch::Contains("give a folder"));
  CHECK_THROWS_WITH((tensorboard_model{{.folder = "x", .every_n_epochs = 0}}),
                    Catch::Contains("every_n_epochs is 0"));
}

// --- averages of the weights ---------------------------------------------------------------------

namespace {

/// The averages by hand: average i after i + 1 of `all`, each with its share.
std::vector<named_tensors> averaged(const std::vector<named_tensors>& all,
                                    const std::function<double(std::size_t)>& share) {
  std::vector<named_tensors> averages{all.at(0)};
  for (std::size_t i = 1; i < all.size(); ++i) {
    auto next = averages.back();
    for (auto& [name, tensor] : next) tensor = tensor * (1 - share(i)) + all[i].at(name) * share(i);
    averages.push_back(next);
  }
  return averages;
}

}  // namespace

TEST_CASE("the exponential average is validated and saved, and training does not change") {
  ready_job job;
  const auto plain = std::make_shared<seen_weights>();
  job.run({observing(plain)});
  const auto seen = std::make_shared<seen_weights>();
  const auto end = job.run({exponential_moving_average{{.decay = 0.9}}, observing(seen)})[0];
  REQUIRE(seen->steps.size() == 12);
  for (std::size_t i = 0; i < 12; ++i) CHECK(distance(seen->steps[i], plain->steps[i]) == 0);
  const auto expected = averaged(seen->steps, [](auto) { return 0.1; });
  REQUIRE(seen->validations.size() == 3);
  for (const std::size_t epoch : {0, 1, 2}) {
    CHECK(distance(seen->validations[epoch], expected[4 * epoch + 3]) < 1e-6);
    CHECK(distance(seen->validations[epoch], seen->steps[4 * epoch + 3]) > 1e-4);
  }
  CHECK(distance(weights_of(end.snapshot), expected.back()) < 1e-6);
}

TEST_CASE("a measure counts a validation also where weights are averaged") {
  struct judged : regression {
    void on_validation_epoch_start() override { right->reset(); }
    step_output validation_step(const batch& b, std::int64_t) override {
      const auto labels = b[1].gt(0).to(at::kLong).flatten();
      right->update(labels, labels);
      return {};
    }
    void on_validation_epoch_end() override { log("val/right", right->compute(*this)); }
    std::shared_ptr<measures::accuracy> right =
        register_module("right", std::make_shared<measures::accuracy>());
  };
  ready_job job;
  const auto end = job.run<judged>({exponential_moving_average{{.decay = 0.9}}})[0];
  CHECK(end.loop.last.at("val/right") == 1);
}

TEST_CASE("a fit with an average resumes in the bits of the uninterrupted one") {
  ready_job job;
  const callback_factory average = exponential_moving_average{{.decay = 0.9}};
  const auto whole = job.run({average})[0].snapshot;
  const auto cut = GENERATE(3, 4, 6);
  auto first = job;
  first.options = until(job.options, cut);
  torch_plugins plugins;
  plugins.callbacks = {average};
  const auto rest =
      resumed<regression>(first.run({average})[0].snapshot, plugins, job.data, job.options)[0]
          .snapshot;
  CHECK(rest->weights_digest == whole->weights_digest);
  CHECK(rest->state == whole->state);
  CHECK(bytes_of(rest->optimizer) == bytes_of(whole->optimizer));
}

namespace {

/// Asks for a checkpoint after step 6, or in a batch of the first validation.
struct saves : callback {
  saves(std::string path, bool in_validation)
      : path_(std::move(path)), in_validation_(in_validation) {}
  bool reads_gradients() const override { return false; }
  void on_train_batch_end(module& m, const step_output&, const batch&, std::int64_t) override {
    if (!in_validation_ && m.at().step == 6) m.save_checkpoint(path_);
  }
  void on_validation_batch_end(module& m, const step_output&, const batch&, std::int64_t index,
                               std::int32_t) override {
    if (in_validation_ && m.at().step == 4 && index == 0) m.save_checkpoint(path_);
  }
  std::string path_;
  bool in_validation_;
};

}  // namespace

TEST_CASE("a callback asks for a checkpoint: it has the average, and a fit resumes from it") {
  const temporary_folder folder;
  const auto path = (folder.path() / "own").string();
  ready_job job;
  const callback_factory average = exponential_moving_average{{.decay = 0.9}};
  const auto whole = job.run({average})[0].snapshot;
  const bool in_validation = GENERATE(false, true);
  CHECK(job.run({average, saves{path, in_validation}})[0].snapshot->weights_digest ==
        whole->weights_digest);
  torch_plugins plugins;
  plugins.callbacks = {average};
  const auto rest = run_good_job({.recipe = recipe_for<regression>(plugins, job.data),
                                  .options = job.options,
                                  .resume = path})[0]
                        .snapshot;
  CHECK(rest->weights_digest == whole->weights_digest);
  const auto seen = std::make_shared<seen_weights>();
  job.run({observing(seen)});
  const auto averages = averaged(seen->steps, [](auto) { return 0.1; });
  CHECK(distance(weights_of(std::make_shared<snapshot>(safetensors_checkpoints({})->read(path))),
                 averages[in_validation ? 3 : 5]) < 1e-6);
}

TEST_CASE("an average of weights begins at its starting step and is updated every n steps") {
  ready_job job;
  job.options = until(job.options, 8);
  const auto seen = std::make_shared<seen_weights>();
  const auto end = job.run(
      {exponential_moving_average{{.decay = 0.5, .every_n_steps = 3, .starting_at_step = 2}},
       observing(seen)})[0];
  // After the steps 3 and 6; without an average before them.
  const auto expected = averaged({seen->steps[3], seen->steps[6]}, [](auto) { return 0.5; });
  CHECK(distance(weights_of(end.snapshot), expected.back()) < 1e-6);
  CHECK(distance(seen->validations[0], seen->steps[3]) == 0);
}

TEST_CASE("averages of buffers are PyTorch's") {
  struct buffered : regression {
    at::Tensor weight = register_parameter("weight", at::ones({1}));
    at::Tensor number = register_buffer("number", at::zeros({1}, at::kLong));
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      // Read by the callback in the next step.
      const at::NoGradGuard no_grad;
      const auto i = static_cast<double>(at().step);
      weight.fill_(i * i + 0.5);
      number.fill_(10 * at().step);
    }
  };
  struct every_step_equally : weight_averaging {
    bool due_after_step(std::int64_t step) const override { return step > 0; }
    double share(std::int64_t updates) const override {
      return 1 / static_cast<double>(updates + 1);
    }
  };
  ready_job job;
  job.options = until(job.options, 5);
  // Updates see 1.5, 4.5, 9.5, 16.5 and 10, 20, 30, 40.
  const auto equal = weights_of(job.run<buffered>({every_step_equally{}})[0].snapshot);
  CHECK(equal.at("weight").item<double>() == Approx(8.0));
  CHECK(equal.at("number").item<std::int64_t>() == 25);
  const auto moving = weights_of(
      job.run<buffered>({exponential_moving_average{{.decay = 0.9, .starting_at_step = 1}}})[0]
          .snapshot);
  // PyTorch: 1.5, 1.8, 2.57, 3.963 and 10, 11, 12, 14.
  CHECK(moving.at("weight").item<double>() == Approx(3.963));
  CHECK(moving.at("number").item<std::int64_t>() == 14);
}

TEST_CASE("the stochastic average is the mean of the last epochs' weights") {
  ready_job job;
  job.options.max_epochs = 5;
  const batch_limit start = GENERATE(batch_limit{std::int64_t{2}}, batch_limit{0.5});
  const auto seen = std::make_shared<seen_weights>();
  const auto end = job.run({stochastic_weight_averaging{{.start = start}}, observing(seen)})[0];
  const auto mean = averaged({seen->steps[11], seen->steps[15], seen->steps[19]},
                             [](std::size_t i) { return 1.0 / static_cast<double>(i + 1); });
  CHECK(distance(weights_of(end.snapshot), mean.back()) < 1e-6);
}

TEST_CASE("the stochastic average approaches its rate as PyTorch's SWALR") {
  struct steady : regression {
    steady()
        : regression({.optimize = [](regression& m) {
            return optimizers{torch::optim::SGD(m.parameters(), 0.1)};
          }}) {}
  };
  struct row {
    stochastic_weight_averaging_options::annealing how;
    std::vector<double> rates;  // PyTorch
  };
  using annealing = stochastic_weight_averaging_options::annealing;
  const auto& [how, rates] = GENERATE(
      row{annealing::cosine, {0.1, 0.1, 0.08828427124746191, 0.06, 0.0317157287525381, 0.02, 0.02}},
      row{annealing::linear, {0.1, 0.1, 0.08, 0.06, 0.04, 0.02, 0.02}});
  ready_job job;
  job.options.max_epochs = 7;
  const auto seen = std::make_shared<std::vector<double>>();
  const stochastic_weight_averaging average{
      {.start = std::int64_t{1}, .learning_rate = 0.02, .annealing_epochs = 4, .how = how}};
  job.run<steady>(
      {average, lambda_callback{{.on_train_epoch_end = [=](module& m, std::int64_t) {
         if (m.rank() == 0)
           seen->push_back(
               m.optimizers_in_use()->all()[0].optimizer->param_groups()[0].options().get_lr());
       }}}});
  REQUIRE(seen->size() == rates.size());
  for (std::size_t i = 0; i < rates.size(); ++i) CHECK(seen->at(i) == Approx(rates[i]));
}

namespace {

// 2 ranks, 4 steps per epoch, a validation after each.
data_ptr averaged_data() {
  static const auto data = std::make_shared<table_data>(32, 4, 8);
  return data;
}

trainer_options averaged_options(std::int64_t epochs) {
  auto options = quick(2, 4, 99);
  options.max_epochs = epochs;
  options.max_steps.reset();
  return options;
}

struct steady : regression {
  steady()
      : regression({.optimize = [](regression& m) {
          return optimizers{torch::optim::SGD({m.net[0]->parameters()}, 0.1)}.add(
              torch::optim::SGD({m.net[2]->parameters()}, 0.2));
        }}) {}
};

std::vector<rank_end> ends_of(const trainer_options& options,
                              std::vector<callback_factory> callbacks) {
  torch_plugins plugins;
  plugins.callbacks = std::move(callbacks);
  return run_job({.recipe = recipe_for<regression>(plugins, averaged_data()), .options = options});
}

}  // namespace

TEST_CASE("stochastic average: a validation measures what the checkpoint of its epoch has") {
  const auto options = averaged_options(4);
  // Of each epoch's end: as the validation and as the checkpoint had it.
  struct weights {
    std::vector<at::Tensor> validated, saved;
  };
  const auto seen = std::make_shared<weights>();
  const auto note = [](module& m, std::vector<at::Tensor>& into) {
    if (m.rank() == 0) into.push_back(m.parameters()[0].detach().clone());
  };
  const auto ends = ends_of(
      options, {stochastic_weight_averaging{{.start = std::int64_t{1}}},
                lambda_callback{{.on_validation_epoch_start =
                                     [=](module& m) {
                                       if (m.at().stage == stage::validate)
                                         note(m, seen->validated);
                                     },
                                 .on_save_checkpoint = [=](module& m) { note(m, seen->saved); }}}});
  REQUIRE(text_of(ends[0].error) == "nothing");
  REQUIRE(seen->validated.size() == 4);
  REQUIRE(seen->saved.size() >= 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(seen->validated[i].equal(seen->saved[i]));
  CHECK_FALSE(seen->validated[2].equal(seen->validated[3]));
}

TEST_CASE("stochastic average: a max_steps before its first epoch's end is refused") {
  auto options = averaged_options(10);
  const auto said = [&](std::int64_t max_steps, std::int64_t accumulate) {
    options.max_steps = max_steps;
    options.accumulate_grad_batches = accumulate;
    return text_of(
        ends_of(options, {stochastic_weight_averaging{{.start = std::int64_t{2}}}})[0].error);
  };
  CHECK_THAT(said(11, 1), Catch::Contains("the end of epoch 2") &&
                              Catch::Contains("after step 12, but max_steps is 11"));
  CHECK(said(12, 1) == "nothing");
  CHECK_THAT(said(5, 2), Catch::Contains("after step 6, but max_steps is 5"));
  CHECK(said(6, 2) == "nothing");
  options.fast_dev_run = 1;
  CHECK(said(5, 1) == "nothing");
}

TEST_CASE("stochastic average: a group that a hook adds approaches the rate from its own") {
  struct growing : steady {
    void on_train_epoch_start(std::int64_t epoch) override {
      if (epoch != 2) return;
      optimizers_in_use()->all()[0].optimizer->add_param_group(torch::optim::OptimizerParamGroup{
          {extra}, std::make_unique<torch::optim::SGDOptions>(0.3)});
    }
    at::Tensor extra = register_parameter("extra", torch::zeros({1}));
  };
  const auto rates = std::make_shared<std::vector<double>>();
  torch_plugins plugins;
  plugins.callbacks = {
      stochastic_weight_averaging{{.start = std::int64_t{1},
                                   .learning_rate = 0.02,
                                   .annealing_epochs = 4,
                                   .how = stochastic_weight_averaging_options::annealing::linear}},
      lambda_callback{{.on_train_epoch_end = [=](module& m, std::int64_t) {
        rates->clear();
        for (const auto& one : m.optimizers_in_use()->all())
          for (const auto& group : one.optimizer->param_groups())
            rates->push_back(group.options().get_lr());
      }}}};
  auto options = averaged_options(4);
  options.ranks = 1;
  options.limit_val_batches = std::int64_t{0};
  const test_job whole{.recipe = recipe_for<growing>(plugins, averaged_data()), .options = options};
  const auto weights = run_good_job(whole)[0].snapshot->weights_digest;
  REQUIRE(rates->size() == 3);  // half-way
  CHECK(rates->at(0) == Approx(0.06));
  CHECK(rates->at(1) == Approx(0.16));  // it came in epoch 2, after that epoch's rates were set
  CHECK(rates->at(2) == Approx(0.11));
  const auto cut = run_good_job(
      {.recipe = recipe_for<growing>(plugins, averaged_data()), .options = until(options, 20)});
  const auto rest = resumed<growing>(cut[0].snapshot, plugins, averaged_data(), options);
  CHECK(rest[0].snapshot->weights_digest == weights);
}

TEST_CASE("impossible options of averages are user_errors") {
  CHECK_THROWS_AS((exponential_moving_average{{.decay = 1.5}}), user_error);
  CHECK_THROWS_AS((exponential_moving_average{{.every_n_steps = 0}}), user_error);
  CHECK_THROWS_AS((stochastic_weight_averaging{{.start = 1.5}}), user_error);
  CHECK_THROWS_WITH(ready_job{}.run({exponential_moving_average{{.decay = 0.9}},
                                     stochastic_weight_averaging{{.start = 0.5}}}),
                    Catch::Contains("give one of ema"));
  CHECK_THROWS_AS((stochastic_weight_averaging{{.learning_rate = -1.0}}), user_error);
  torch_plugins plugins;
  plugins.callbacks = {stochastic_weight_averaging{{.learning_rate = 0.1}}};
  struct scheduled : regression {
    scheduled()
        : regression({.optimize = [](regression& m) {
            return optimizers{torch::optim::SGD(m.parameters(), 0.1)}
                .scheduled<torch::optim::StepLR>({}, 1, 0.5);
          }}) {}
  };
  const auto ends = run_job(
      {.recipe = recipe_for<scheduled>(plugins, ready_job{}.data), .options = quick(1, 4, 1)});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("leave one of them out"));
}

// --- by name -------------------------------------------------------------------------------------

TEST_CASE("a callback made from a text is the one made from its options") {
  ready_job job;
  const auto by_options =
      job.run({exponential_moving_average{{.decay = 0.5, .every_n_steps = 3}}})[0].snapshot;
  const auto by_name = job.run({named_callback("ema,decay=0.5,every_n_steps=3")})[0].snapshot;
  CHECK(by_name->weights_digest == by_options->weights_digest);
  CHECK(by_name->weights_digest != job.run({named_callback("ema")})[0].snapshot->weights_digest);
  for (const auto& entry : callback_catalog())
    if (entry.name != "timer" && entry.name != "gradient_accumulation_scheduler")
      CHECK_NOTHROW(named_callback(entry.name));
  const auto last = job.run({named_callback("gradient_norms,norm=inf,each=false"),
                             named_callback("timer,max_seconds=1000,every=epoch"),
                             named_callback("swa,start_epoch=1,annealing=linear")})[0]
                        .loop.last;
  CHECK(last.contains("grad_inf_norm_total"));
  CHECK_FALSE(last.contains("grad_inf_norm/net.0.weight"));
}
