// Goal: the options of the trainer that the learner carries out have Lightning's meaning. So have
// hyper-parameters in checkpoints, log_dict and the summary of a module.
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <set>

#include "backends/checkpoint/safetensors_io.hpp"
#include "backends/torch/process_modes.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/hyper_parameters.hpp"
#include "troupe/module.hpp"
#include "troupe/outcome.hpp"
#include "troupe/tuner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using tensors = std::vector<at::Tensor>;

// Notes the inputs of rank 0.
struct noting_regression : regression {
  explicit noting_regression(std::shared_ptr<tensors> seen) : seen_(std::move(seen)) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    if (rank() == 0) seen_->push_back(b[0].clone());
    return regression::training_step(b, index);
  }

private:
  std::shared_ptr<tensors> seen_;
};

std::int64_t times_in(const std::vector<hook>& hooks, std::string_view what) {
  return std::ranges::count_if(hooks, [&](const hook& h) { return name(h) == what; });
}

}  // namespace

TEST_CASE("overfit_batches: every epoch has the first batches of the data, in their order") {
  const auto data = std::make_shared<table_data>(20, 4, 9);
  auto options = quick(1, 3, 100);
  options.max_epochs = 3;
  options.overfit_batches = std::int64_t{2};
  options.limit_train_batches = std::int64_t{1};  // has no effect
  const auto seen = std::make_shared<tensors>();
  const auto ends =
      run_good_job({.recipe = recipe_for<noting_regression>(data, seen), .options = options});
  REQUIRE(seen->size() == 6);
  for (std::size_t i = 0; i < seen->size(); ++i)
    CHECK((*seen)[i].equal(data->inputs().narrow(0, i % 2 == 0 ? 0 : 3, 3)));
  CHECK(times_in(ends[0].hooks, "validation_step") == 3 * 2);

  seen->clear();
  options.overfit_batches = 0.0;
  options.limit_train_batches = std::int64_t{2};
  run_good_job({.recipe = recipe_for<noting_regression>(data, seen), .options = options});
  REQUIRE(seen->size() == 6);
  CHECK_FALSE((*seen)[0].equal(data->inputs().narrow(0, 0, 3)));
}

TEST_CASE("max_time ends a fit after one more step, and waits for min_steps") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(2, 3, 100);
  options.max_time = 1ns;
  for (const auto& end :
       run_good_job({.recipe = recipe_for<regression>(data), .options = options})) {
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.steps == 1);
  }
  options.min_epochs = 0;
  options.min_steps = 6;  // of four steps an epoch
  for (const auto& end :
       run_good_job({.recipe = recipe_for<regression>(data), .options = options})) {
    CHECK(end.why == stop_reason::hook);
    CHECK(end.loop.steps == 6);
    CHECK(end.loop.earlier_batches == 4);
  }
}

TEST_CASE("a checkpoint has one state for the option max_time and one for a timer callback") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(1, 3, 3);
  options.max_time = 1h;
  torch_plugins plugins;
  plugins.callbacks = {timer{{.max_time = 2h}}};
  const auto ends = run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<regression>(); }, data, plugins),
       .options = options});
  CHECK(ends[0].loop.steps == 3);
  CHECK_THAT(ends[0].snapshot->state,
             Catch::Contains("trainer.max_time") && Catch::Contains("troupe::timer"));
}

// --- switches of LibTorch ------------------------------------------------------------------------

namespace {

// Its gradient is 0 times infinity.
struct nan_gradient : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    return (net->forward(b[0]).sum() * 0).sqrt();
  }
};

struct switches {
  bool anomaly, deterministic, warns, benchmark;
  friend bool operator==(const switches&, const switches&) = default;
};

switches now() {
  const auto& context = at::globalContext();
  return {torch::autograd::AnomalyMode::is_enabled(), context.deterministicAlgorithms(),
          context.deterministicAlgorithmsWarnOnly(), context.benchmarkCuDNN()};
}

struct switched : regression {
  explicit switched(switches wanted) : wanted_(wanted) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    expect(now() == wanted_);
    return regression::training_step(b, index);
  }

private:
  switches wanted_;
};

// Notes whether each kind of step ran in inference mode.
struct inferring : regression {
  using modes = std::map<std::string, std::atomic<int>>;
  explicit inferring(std::shared_ptr<modes> seen) : seen_(std::move(seen)) {}
  step_output validation_step(const batch& b, std::int64_t index) override {
    return note("validate"), regression::validation_step(b, index);
  }
  step_output test_step(const batch& b, std::int64_t index) override {
    return note("test"), regression::test_step(b, index);
  }
  value predict_step(const batch& b, std::int64_t index) override {
    return note("predict"), regression::predict_step(b, index);
  }

private:
  void note(const char* what) {
    expect(!at::GradMode::is_enabled());
    seen_->at(what) = c10::InferenceMode::is_enabled() ? 1 : 0;
  }
  std::shared_ptr<modes> seen_;
};

}  // namespace

TEST_CASE("detect_anomaly: a backward that computes NaN fails and names its function") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(1, 3, 2);
  CHECK_NOTHROW(run_good_job({.recipe = recipe_for<nan_gradient>(data), .options = options}));
  options.detect_anomaly = true;
  const auto ends = run_job({.recipe = recipe_for<nan_gradient>(data), .options = options});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("returned nan values in its 0th output"));
  CHECK_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

TEST_CASE("the switches of a process hold during a job and are restored after it") {
  const auto data = std::make_shared<table_data>(20);
  auto options = quick(2, 3, 2);
  const auto before = now();
  const auto check = [&](switches wanted) {
    run_good_job({.recipe = recipe_for<switched>(data, wanted), .options = options});
    CHECK(now() == before);
  };
  check(before);
  options.deterministic = deterministic_kind::warn;
  check({false, true, true, false});
  options.benchmark = true;
  check({false, true, true, true});
  options.deterministic = deterministic_kind::on;
  options.benchmark.reset();
  options.detect_anomaly = true;
  check({true, true, false, false});
}

TEST_CASE("deterministic: an operation without a deterministic algorithm throws") {
  struct putting : regression {
    void on_train_start() override { torch::zeros(2).put_(torch::tensor({0, 0}), torch::ones(2)); }
  };
  const auto recipe = recipe_for<putting>(std::make_shared<table_data>(20));
  auto options = quick(1, 3, 2);
  const auto said = [&](deterministic_kind kind) {
    options.deterministic = kind;
    return text_of(run_job({.recipe = recipe, .options = options})[0].error);
  };
  CHECK_THAT(said(deterministic_kind::on), Catch::Contains("put_ does not have a deterministic"));
  CHECK((said(deterministic_kind::warn) + said(deterministic_kind::off)) == "nothingnothing");
}

TEST_CASE("two jobs in a process: the stricter option applies, until its job ends") {
  trainer_options warns;
  warns.deterministic = deterministic_kind::warn;
  warns.benchmark = true;
  auto strict = warns;
  strict.deterministic = deterministic_kind::on;
  strict.benchmark = false;
  const auto before = now();
  {
    const process_modes one{warns};
    CHECK(now() == switches{false, true, true, true});
    {
      const process_modes other{strict};
      CHECK(now() == switches{false, true, false, false});
    }
    CHECK(now() == switches{false, true, true, true});
  }
  CHECK(now() == before);
}

TEST_CASE("validate, test and predict run in inference mode, unless the option says otherwise") {
  const auto data = std::make_shared<table_data>(20, 4, 6);
  const auto seen = std::make_shared<inferring::modes>();
  for (const auto* what : {"validate", "test", "predict"}) (*seen)[what] = -1;
  auto options = quick(2, 3, 2);
  const auto run = [&](stage purpose) {
    run_good_job(
        {.recipe = recipe_for<inferring>(data, seen), .options = options, .purpose = purpose});
  };
  const std::pair<stage, const char*> each[] = {
      {stage::validate, "validate"}, {stage::test, "test"}, {stage::predict, "predict"}};
  for (const auto inference : {true, false}) {
    options.inference_mode = inference;
    for (const auto& [purpose, what] : each) {
      run(purpose);
      CHECK(seen->at(what).load() == (inference ? 1 : 0));
    }
  }
  options.inference_mode = true;
  options.max_epochs = 1;
  options.max_steps.reset();
  run(stage::train);
  CHECK(seen->at("validate").load() == 0);  // within a fit
}

// --- hyper-parameters and the summary ------------------------------------------------------------

namespace {

struct sizes {
  std::int64_t width = 3;
  double scale = 1;
  bool biased = true;
  std::string note = "plain";
  std::vector<std::int32_t> extra;
  std::vector<double> limits;

  template <class F>
  void fields(F&& f) {
    f("width", width), f("scale", scale), f("biased", biased), f("note", note);
    f("extra", extra), f("limits", limits);
  }
  friend bool operator==(const sizes&, const sizes&) = default;
};

struct sized : module {
  using hparams = sizes;
  explicit sized(sizes how = {}) : how_(std::move(how)) {
    save_hyperparameters(how_);
    first = register_module(
        "first", torch::nn::Linear(torch::nn::LinearOptions(4, how_.width).bias(how_.biased)));
    last = register_module("last", torch::nn::Linear(how_.width, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(first(x))) * how_.scale; }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto loss = fn::mse_loss(forward(b[0]), b[1]);
    log_dict({{"train/loss", loss}, {"train/scale", how_.scale}});
    return loss;
  }
  optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
  std::string on_save_checkpoint() override { return "\"said\""; }
  void on_load_checkpoint(const std::string& json) override {
    loaded = json;
    loaded_bias = last->bias.detach().clone();
  }

  sizes how_;
  torch::nn::Linear first{nullptr}, last{nullptr};
  std::string loaded;
  at::Tensor loaded_bias;
};

sizes unusual() {
  return {.width = 5,
          .scale = 0.1,
          .biased = false,
          .note = "two \"words\"",
          .extra = {1, -2},
          .limits = {1, INFINITY}};
}

// The checkpoint of a short fit, on the disk.
std::string saved(const std::filesystem::path& folder, const sizes& how, rank_end& end) {
  const auto data = std::make_shared<table_data>(20);
  end = run_good_job({.recipe = make_recipe([=] { return std::make_shared<sized>(how); }, data),
                      .options = quick(1, 4, 3)})[0];
  const auto place = folder / checkpoint_folder_name(3);
  std::filesystem::create_directories(place);
  for (const auto& file : safetensors_checkpoints({})->encode(*end.snapshot)) {
    std::ofstream out{place / file.name, std::ios::binary};
    for (const auto& part : file.chunks)
      out.write(reinterpret_cast<const char*>(part->data()),
                static_cast<std::streamsize>(part->size()));
  }
  return place.string();
}

}  // namespace

TEST_CASE("a module is made from a checkpoint with the hyper-parameters of the fit") {
  const temporary_folder folder;
  rank_end end;
  const auto path = saved(folder.path(), unusual(), end);
  const auto made = load_from_checkpoint<sized>(path);
  CHECK(made->how_ == unusual());
  CHECK(made->hyper_parameters() == hyper_parameters_of(unusual()));
  CHECK(made->loaded == "\"said\"");
  CHECK(made->loaded_bias.equal(made->last->bias));  // the hook comes after the weights
  CHECK_FALSE(made->is_training());
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : made->named_parameters()) weights[item.key()] = item.value().detach();
  CHECK(distance(weights, weights_of(end.snapshot)) == 0);
  CHECK(end.loop.last.at("train/scale") == Approx(0.1));
  CHECK(end.loop.last.contains("train/loss"));

  const auto changed = load_from_checkpoint<sized>(path, [](sizes& how) { how.scale = 7; });
  CHECK(changed->how_.scale == 7);
  CHECK_THROWS_WITH(load_from_checkpoint<sized>(path, [](sizes& how) { how.width = 2; }),
                    Catch::Contains("first.weight"));
}

TEST_CASE("hyper-parameters of another type are refused: the error names them") {
  auto named = hyper_parameters_of(unusual());
  CHECK(hyper_parameters_from<sizes>(named) == unusual());
  CHECK(hyper_parameters_from<sizes>({}) == sizes{});  // a checkpoint without any
  named.items["unknown"] = 3;
  named.items["scale"] = 2;  // an integer is a number
  CHECK(hyper_parameters_from<sizes>(named).scale == 2);
  named.items["extra"] = value_list{{std::int64_t{1} << 40}};
  CHECK_THROWS_WITH(
      hyper_parameters_from<sizes>(named),
      Catch::Contains("\"extra\"") && Catch::Contains("an integer from -2147483648 to 2147483647"));
  named.items["extra"] = value_list{};
  named.items["width"] = 1.5;
  CHECK_THROWS_WITH(hyper_parameters_from<sizes>(named),
                    Catch::Contains("\"width\"") && Catch::Contains("1.5"));
}

TEST_CASE("a summary lists the layers with their parameters and sums") {
  sized model{{.width = 300}};
  model.last->eval();
  model.last->weight.set_requires_grad(false);
  const auto all = summarize(model);
  CHECK((all.layers == std::vector<layer_summary>{{"first", "Linear", 1500, true},
                                                  {"last", "Linear", 301, false}}));
  CHECK(all.trainable == 1501);
  CHECK(all.fixed == 300);
  CHECK(all.bytes == 1801 * 4);
  // Lightning's layout.
  CHECK(to_string(all) ==
        "  | Name  | Type   | Params | Mode\n"
        "------------------------------------\n"
        "0 | first | Linear | 1.5 K  | train\n"
        "1 | last  | Linear | 301    | eval\n"
        "------------------------------------\n"
        "1.5 K     Trainable params\n"
        "300       Non-trainable params\n"
        "1.8 K     Total params\n"
        "0.007     Total estimated model params size (MB)\n");
}

TEST_CASE("a summary has as many levels as asked for, and a shared parameter counts once") {
  struct nested : torch::nn::Module {
    nested() {
      auto inner = torch::nn::Linear(2, 2);
      register_module("net", torch::nn::Sequential(inner, torch::nn::ReLU()));
      register_module("same", inner);
    }
  };
  const nested model;
  CHECK(summarize(model, 0).layers.empty());
  CHECK(summarize(model).layers.size() == 2);
  const auto all = summarize(model, -1);
  REQUIRE(all.layers.size() == 4);
  CHECK(all.layers[1] == layer_summary{"net.0", "Linear", 6, true});
  CHECK(all.layers[3].name == "same");
  CHECK(all.trainable == 6);
}

// --- batch size ----------------------------------------------------------------------------------

TEST_CASE("a batch size is the largest one that was tried and fits") {
  using search = batch_size_search::search;
  const auto found = [](batch_size_search how, std::int64_t most) {
    return find_batch_size(how, [=](std::int64_t size) { return size <= most; });
  };
  CHECK(found({}, 7) == 4);
  CHECK(found({}, 5000) == 4096);
  CHECK(found({}, 1 << 20) == 8192);
  CHECK(found({.max = 50}, 1 << 20) == 50);
  CHECK(found({.first = 64}, 7) == 4);
  CHECK(found({.first = 3}, 1) == 1);
  CHECK(found({.max_trials = 3}, 1 << 20) == 8);
  const batch_size_search halves{.mode = search::bisect, .margin = 0};
  for (const std::int64_t most : {1, 2, 7, 100, 5000, 8191}) CHECK(found(halves, most) == most);
  CHECK(found({.mode = search::bisect}, 100) == 95);
  CHECK_THROWS_WITH(found({}, 0), Catch::Contains("no batch size fits"));
}

TEST_CASE("only a failure of the memory means that a batch size does not fit") {
  job_outcome outcome;
  outcome.status = job_outcome::ending::finished;
  CHECK(fits_memory(outcome));
  outcome.status = job_outcome::ending::failed;
  const auto fail = [&](auto error) {
    auto thrown = std::make_shared<caught>();
    thrown->original = std::make_exception_ptr(error);
    thrown->record = describe(thrown->original);
    outcome.failed_with = thrown;
  };
  fail(std::bad_alloc{});
  CHECK_FALSE(fits_memory(outcome));
  try {
    torch::empty({std::int64_t{1} << 60});
  } catch (const std::exception& error) {
    fail(std::runtime_error{error.what()});
  }
  CHECK_FALSE(fits_memory(outcome));
  fail(std::logic_error{"another one"});
  CHECK_THROWS_AS(fits_memory(outcome), std::logic_error);
}

// --- clocks and profiles -------------------------------------------------------------------------

namespace {

// `b` a batch, `v` a validation, `s` a checkpoint.
std::string order_of(const rank_end& end) {
  std::string text;
  for (const auto& one : end.hooks) {
    if (name(one) == "on_train_batch_end") text += 'b';
    if (name(one) == "on_validation_end") text += 'v';
    if (name(one) == "save_checkpoint") text += 's';
  }
  return text;
}

std::string order(const trainer_options& options) {
  const auto data = std::make_shared<table_data>(24, 4, 6);  // four batches an epoch
  const auto ends = run_good_job({.recipe = recipe_for<regression>(data), .options = options});
  for (const auto& end : ends) CHECK(order_of(end) == order_of(ends[0]));
  return order_of(ends[0]);
}

}  // namespace

TEST_CASE("a checkpoint is taken at the first step boundary after its time") {
  auto options = quick(2, 3, 6);
  options.limit_val_batches = std::int64_t{0};
  options.checkpoint.every_epoch = false;
  CHECK(order(options) == "bbbbbbs");
  options.checkpoint.every = 1h;
  CHECK(order(options) == "bbbbbbs");
  options.checkpoint.every = 1ns;
  CHECK(order(options) == "bsbsbsbsbsbs");
  options.checkpoint.every_epoch = true;  // one per step
  CHECK(order(options) == "bsbsbsbsbsbs");
  options.checkpoint.enabled = false;
  CHECK(order(options) == "bbbbbb");
}

TEST_CASE("val_check_time takes the place of the interval, in epochs that validate") {
  auto options = quick(2, 3, 8);
  options.checkpoint.enabled = false;
  CHECK(order(options) == "bbbbvbbbbv");
  options.val_check_time = 1h;
  CHECK(order(options) == "bbbbbbbb");
  options.val_check_time = 1ns;
  CHECK(order(options) == "bvbvbvbvbvbvbvbv");
  options.check_val_every_n_epoch = 2;
  CHECK(order(options) == "bbbbbvbvbvbv");
  options.check_val_every_n_epoch = 1;
  options.accumulate_grad_batches = 2;  // at step boundaries only
  options.max_steps = 4;
  CHECK(order(options) == "bbvbbvbbvbbv");
}

TEST_CASE("fast_dev_run validates and saves at its end, whatever the clocks of the options say") {
  auto options = quick(2, 3, 8);
  options.fast_dev_run = 2;
  const auto usual = order(options);
  CHECK(usual == "bbvs");
  options.val_check_time = 1ns;
  options.checkpoint.every = 1ns;
  CHECK(order(options) == usual);
}

TEST_CASE("the profile of rank 0 has the hooks that it ran, and their times") {
  auto options = quick(2, 3, 4);
  options.profiler = profiler_kind::simple;
  const auto data = std::make_shared<table_data>(24, 4, 6);
  const auto ends = run_good_job({.recipe = recipe_for<regression>(data), .options = options});
  job_outcome outcome;
  outcome.queue = ends[0].queued;
  const auto profile = profile_of(outcome);
  std::map<std::string, std::int64_t, std::less<>> ran;
  for (const auto& one : ends[0].hooks) {
    if (name(one) == "post_dispatch") break;
    ++ran[std::string{name(one)}];
  }
  REQUIRE(profile.entries().size() == ran.size());
  for (const auto& [hook, entry] : profile.entries()) {
    CAPTURE(hook);
    CHECK(entry.calls == ran[hook]);
    CHECK(entry.took >= entry.waited);
    CHECK(entry.took > 0ns);
  }
  CHECK(profile.entries().at("training_step").calls == 4);
  CHECK_THAT(to_string(profile), Catch::Contains("training_step") && Catch::Contains("all hooks"));
  CHECK(hook_profile::from(profile.as_value()) == profile);
  options.profiler = profiler_kind::none;
  outcome.queue =
      run_good_job({.recipe = recipe_for<regression>(data), .options = options})[0].queued;
  CHECK(profile_of(outcome) == hook_profile{});
  CHECK(to_string(hook_profile{}).empty());
}

TEST_CASE("prog_bar of a logged value: the report of the value names it for progress displays") {
  struct shown : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      log("plain", 1.0);
      log("seen", 2.0, {.on_step = true, .on_epoch = true, .prog_bar = true});
      return fn::mse_loss(net->forward(b[0]), b[1]);
    }
    step_output validation_step(const batch&, std::int64_t) override {
      log("val/seen", 3.0, {.prog_bar = true});
      return {};
    }
  };
  auto options = quick(1, 6, 4);
  options.log_every_n_steps = 1;
  const auto data = std::make_shared<table_data>(24, 4, 6);
  const auto ends = run_good_job({.recipe = recipe_for<shown>(data), .options = options});
  std::set<std::string> names;
  for (const auto& row : ends[0].rows) names.insert(row.prog_bar.begin(), row.prog_bar.end());
  CHECK((names == std::set<std::string>{"seen", "seen_step", "val/seen"}));
}
