// Goal: a user's own strategy, precision, cluster environment and hooks work when they are written
// outside of the library.
#include <mutex>

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/call.hpp"
#include "troupe/data_parallel.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Counts the calls of members on rank 0.
struct ledger_of_calls {
  void note(const std::string& what) {
    const std::lock_guard lock{mutex};
    ++calls[what];
  }
  std::mutex mutex;
  std::map<std::string, int> calls;
};
using calls_ptr = std::shared_ptr<ledger_of_calls>;

/// Overrides every member, counts the call and forwards it.
struct own_strategy : data_parallel {
  own_strategy(strategy_parts parts, calls_ptr seen)
      : data_parallel(std::move(parts)), seen_(std::move(seen)) {}

  void note(const char* what) const {
    if (data_parallel::rank() == 0) seen_->note(what);
  }

  std::string_view name() const override { return "own"; }
  bool late_optimizers() const override {
    note("late_optimizers");
    return true;
  }
  bool restores_optimizers() const override {
    note("restores_optimizers");
    return true;
  }
  bool restore_checkpoint_after_setup() const override {
    note("restore_after");
    return true;
  }
  c10::Device root_device() const override {
    note("root_device");
    return c10::kCPU;
  }
  void connect(std::shared_ptr<troupe::module> m) override {
    note("connect");
    data_parallel::connect(m);
  }
  void setup_environment() override {
    note("setup_environment");
    data_parallel::setup_environment();
  }
  void setup(stage s) override {
    note("setup");
    data_parallel::setup(s);
  }
  struct open : precision::context {
    explicit open(calls_ptr seen) : seen(std::move(seen)) {}
    ~open() override { seen->note("context_closed"); }
    calls_ptr seen;
  };
  std::unique_ptr<precision::context> model_sharded_context() override {
    note("model_sharded_context");
    return data_parallel::rank() == 0 ? std::make_unique<open>(seen_) : nullptr;
  }
  void model_to_device() override {
    note("model_to_device");
    data_parallel::model_to_device();
  }
  void setup_optimizers(optimizers& o) override {
    note("setup_optimizers");
    data_parallel::setup_optimizers(o);
  }
  void setup_precision() override { note("setup_precision"); }
  void pre_dispatch() override { note("pre_dispatch"); }
  void dispatch() override { note("dispatch"); }
  void post_dispatch() override { note("post_dispatch"); }
  std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage s) override {
    note("process_dataloader");
    return data_parallel::process_dataloader(std::move(made), s);
  }
  value batch_to_device(const value& b, c10::Device device, std::int32_t d) override {
    note("batch_to_device");
    return data_parallel::batch_to_device(b, device, d);
  }
  step_output training_step(const batch& b, std::int64_t i) override {
    note("training_step");
    return data_parallel::training_step(b, i);
  }
  step_output validation_step(const batch& b, std::int64_t i) override {
    note("validation_step");
    return data_parallel::validation_step(b, i);
  }
  step_output training_step_end(step_output o) override {
    note("training_step_end");
    return o;
  }
  step_output validation_step_end(step_output o) override {
    note("validation_step_end");
    return o;
  }
  void zero_gradients(std::int32_t o) override {
    note("zero_gradients");
    data_parallel::zero_gradients(o);
  }
  at::Tensor pre_backward(const at::Tensor& l) override {
    note("pre_backward");
    return data_parallel::pre_backward(l);
  }
  step_status backward(const at::Tensor& l, const backward_plan& p) override {
    note("backward");
    return data_parallel::backward(l, p);
  }
  at::Tensor post_backward(const at::Tensor& l) override {
    note("post_backward");
    return data_parallel::post_backward(l);
  }
  void clip_gradients(torch::optim::Optimizer& o, double limit,
                      hooks::clip_gradients::algorithm how) override {
    note("clip_gradients");
    data_parallel::clip_gradients(o, limit, how);
  }
  void optimizer_step(torch::optim::Optimizer& o, std::int32_t i, const step_closure& c,
                      troupe::module& m) override {
    note("optimizer_step");
    data_parallel::optimizer_step(o, i, c, m);
  }
  void synchronize_buffers() override {
    note("synchronize_buffers");
    data_parallel::synchronize_buffers();
  }
  value reduce(const value& v, std::string_view op, const subgroup& g) override {
    note("reduce");
    return data_parallel::reduce(v, op, g);
  }
  value broadcast(const value& v, std::int32_t s, const subgroup& g) override {
    note("broadcast");
    return data_parallel::broadcast(v, s, g);
  }
  value all_gather(const value& v, bool gr, const subgroup& g) override {
    note("all_gather");
    return data_parallel::all_gather(v, gr, g);
  }
  bool reduce_boolean_decision(bool d, decision by, const subgroup& g) override {
    note("reduce_boolean_decision");
    return data_parallel::reduce_boolean_decision(d, by, g);
  }
  void barrier(std::string_view l, std::chrono::nanoseconds d, const subgroup& g) override {
    note("barrier");
    data_parallel::barrier(l, d, g);
  }
  std::vector<std::vector<std::byte>> gather_bytes(std::span<const std::byte> m) override {
    note("gather_bytes");
    return data_parallel::gather_bytes(m);
  }
  std::vector<tensor_blob> module_state() override {
    note("module_state");
    return data_parallel::module_state();
  }
  void load_module_state(const std::vector<tensor_blob>& s) override {
    note("load_module_state");
    data_parallel::load_module_state(s);
  }
  troupe::optimizer_state optimizer_state(std::int32_t i) override {
    note("optimizer_state");
    return data_parallel::optimizer_state(i);
  }
  snapshot_ptr save_checkpoint(snapshot_ptr s, const std::string& p, const value& o) override {
    note("save_checkpoint");
    return data_parallel::save_checkpoint(s, p, o);
  }
  snapshot load_checkpoint(const std::string&) override {
    note("load_checkpoint");
    return *kept;
  }
  value add_to_queue(const metrics&) override {
    note("add_to_queue");
    return "mine";
  }
  void teardown(bool orderly) override {
    note("teardown");
    data_parallel::teardown(orderly);
  }

  static inline snapshot_ptr kept;
  calls_ptr seen_;
};

struct doubling : precision {
  std::string_view name() const override { return "doubling"; }
  value convert_input(const value& b) override {
    return map_tensors(b, [](const at::Tensor& t) { return t * 2; });
  }
  at::Tensor pre_backward(const at::Tensor& loss) override { return loss * 8; }
  at::Tensor post_backward(const at::Tensor& loss) override { return loss / 8; }
  void pre_optimizer_step(torch::optim::Optimizer& optimizer) override {
    for (const auto& group : optimizer.param_groups())
      for (const auto& p : group.params())
        if (p.grad().defined()) p.mutable_grad().div_(8);
  }
  void optimizer_step(torch::optim::Optimizer& optimizer, const step_closure& closure) override {
    closure();
    if (++steps_ != 2) optimizer.step();
  }
  int steps_ = 0;
};

}  // namespace

TEST_CASE("a user's strategy can override every member and each is called") {
  const auto seen = std::make_shared<ledger_of_calls>();
  torch_plugins plugins;
  plugins.strategies["own"] = [=](strategy_parts parts) {
    return std::make_unique<own_strategy>(std::move(parts), seen);
  };
  const auto data = std::make_shared<table_data>(16, 4, 4);
  auto options = quick(2, 4, 4);
  options.gradient_clip_val = 1;
  own_strategy::kept =
      run_good_job({.recipe = recipe_for<regression>(data), .options = quick(2, 4, 1)})[0].snapshot;
  options.strategy = own_name{"own"};
  struct curious : regression {
    void on_train_end() override {
      reduce(torch::ones({1}));
      broadcast(value{1});
      all_gather(value{1});
    }
  };
  const auto ends = run_good_job(
      {.recipe = make_recipe([] { return std::make_shared<curious>(); }, data, plugins),
       .options = options,
       .resume = "anywhere"});
  CHECK(ends[0].loop.steps == 4);
  CHECK(ends[0].queued.back() == value{"mine"});
  for (const auto* member : {"late_optimizers",
                             "restores_optimizers",
                             "restore_after",
                             "root_device",
                             "connect",
                             "setup_environment",
                             "setup",
                             "model_sharded_context",
                             "context_closed",
                             "model_to_device",
                             "setup_optimizers",
                             "setup_precision",
                             "pre_dispatch",
                             "dispatch",
                             "post_dispatch",
                             "process_dataloader",
                             "batch_to_device",
                             "training_step",
                             "validation_step",
                             "training_step_end",
                             "validation_step_end",
                             "zero_gradients",
                             "pre_backward",
                             "backward",
                             "post_backward",
                             "clip_gradients",
                             "optimizer_step",
                             "synchronize_buffers",
                             "reduce",
                             "broadcast",
                             "all_gather",
                             "reduce_boolean_decision",
                             "barrier",
                             "gather_bytes",
                             "module_state",
                             "load_module_state",
                             "optimizer_state",
                             "save_checkpoint",
                             "load_checkpoint",
                             "add_to_queue",
                             "teardown"}) {
    CAPTURE(member);
    CHECK(seen->calls[member] > 0);
  }
  CHECK(seen->calls["setup_optimizers"] == 1);
  CHECK(seen->calls["training_step"] == 3);
}

TEST_CASE("a user's precision can convert and scale and unscale and skip steps") {
  const auto data = std::make_shared<table_data>(16);
  torch_plugins plugins;
  plugins.precisions["doubling"] = [] { return std::make_unique<doubling>(); };
  auto options = quick(2, 4, 2);
  options.precision = own_name{"doubling"};
  const auto make = [] { return std::make_shared<regression>(); };
  const auto two =
      run_good_job({.recipe = make_recipe(make, data, plugins), .options = options})[0].snapshot;
  options.max_steps = 1;
  const auto one =
      run_good_job({.recipe = make_recipe(make, data, plugins), .options = options})[0].snapshot;
  CHECK(one->weights_digest == two->weights_digest);  // the second step was skipped
  struct doubled : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      return fn::mse_loss(net->forward(b[0] * 2), b[1] * 2);
    }
  };
  CHECK(distance(weights_of(one), by_hand<doubled>(options, *data)) < 1e-6);
}

TEST_CASE("a user's cluster environment defines ranks and hosts") {
  struct elsewhere : local_environment {
    using local_environment::local_environment;
    std::string_view name() const override { return "elsewhere"; }
    std::int32_t local_rank() const override { return rank() % 2; }
  };
  struct counted : table_data {
    counted() : table_data(16) {}
    void prepare_data() override { ++prepared; }
    std::atomic<int> prepared{0};
  };
  const auto data = std::make_shared<counted>();
  torch_plugins plugins;
  plugins.environment = [](const learner_context& about) {
    return std::make_shared<elsewhere>(about.rank, about.world);
  };
  const auto make = [] { return std::make_shared<regression>(); };
  run_good_job({.recipe = make_recipe(make, data, plugins), .options = quick(4, 2, 2)});
  CHECK(data->prepared == 2);  // two hosts of two ranks
  plugins.environment = [](const learner_context& about) {
    return std::make_shared<elsewhere>(about.rank, about.world + 1);
  };
  const auto ends =
      run_job({.recipe = make_recipe(make, data, plugins), .options = quick(2, 2, 2)});
  CHECK_THAT(text_of(ends[0].error),
             Catch::Contains("the elsewhere environment says rank 0 of 3, the job rank 0 of 2"));
}

// --- every hook of a module ----------------------------------------------------------------------

namespace {

struct diary : regression {
  explicit diary(std::shared_ptr<std::vector<std::string>> into) : into_(std::move(into)) {}
  void note(std::string what) {
    if (rank() == 0) into_->push_back(std::move(what));
  }
  void configure_model() override { note("configure_model"); }
  void prepare_data() override { note("prepare_data"); }
  void setup(stage) override { note("setup"); }
  void teardown(stage) override { note("teardown"); }
  void on_fit_start() override { note("on_fit_start"); }
  void on_fit_end() override { note("on_fit_end"); }
  value on_before_batch_transfer(value b, std::int32_t) override {
    note("before_transfer");
    return b;
  }
  value on_after_batch_transfer(value b, std::int32_t) override {
    note("after_transfer");
    return b;
  }
  void on_train_start() override { note("on_train_start"); }
  void on_train_end() override { note("on_train_end"); }
  void on_train_epoch_start(std::int64_t) override { note("on_train_epoch_start"); }
  void on_train_epoch_end(std::int64_t) override { note("on_train_epoch_end"); }
  batch_verdict on_train_batch_start(const batch&, std::int64_t) override {
    note("on_train_batch_start");
    return batch_verdict::undecided;
  }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    note("on_train_batch_end");
  }
  step_output training_step(const batch& b, std::int64_t i) override {
    note("training_step");
    return regression::training_step(b, i);
  }
  step_output training_step_end(step_output o) override {
    note("training_step_end");
    return o;
  }
  void on_before_zero_grad(torch::optim::Optimizer&) override { note("on_before_zero_grad"); }
  void optimizer_zero_grad(std::int64_t, std::int64_t, torch::optim::Optimizer&) override {
    note("optimizer_zero_grad");
  }
  void on_before_backward(const at::Tensor&) override { note("on_before_backward"); }
  void backward(const at::Tensor& l, const value& a) override {
    note("backward");
    module::backward(l, a);
  }
  void on_after_backward() override { note("on_after_backward"); }
  void on_before_optimizer_step(torch::optim::Optimizer&) override {
    note("on_before_optimizer_step");
  }
  void configure_gradient_clipping(torch::optim::Optimizer& o, double l, clipping h) override {
    note("configure_gradient_clipping");
    module::configure_gradient_clipping(o, l, h);
  }
  void optimizer_step(std::int64_t e, std::int64_t i, torch::optim::Optimizer& o,
                      const step_closure& c) override {
    note("optimizer_step");
    module::optimizer_step(e, i, o, c);
  }
  void on_sanity_check_start() override { note("on_sanity_check_start"); }
  void on_sanity_check_end() override { note("on_sanity_check_end"); }
  void on_validation_model_zero_grad() override { note("on_validation_model_zero_grad"); }
  void on_validation_model_eval() override {
    note("on_validation_model_eval");
    module::on_validation_model_eval();
  }
  void on_validation_model_train() override {
    note("on_validation_model_train");
    module::on_validation_model_train();
  }
  void on_validation_start() override { note("on_validation_start"); }
  void on_validation_end() override { note("on_validation_end"); }
  void on_validation_epoch_start() override { note("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { note("on_validation_epoch_end"); }
  void on_validation_batch_start(const batch&, std::int64_t, std::int32_t) override {
    note("on_validation_batch_start");
  }
  void on_validation_batch_end(const step_output&, const batch&, std::int64_t,
                               std::int32_t) override {
    note("on_validation_batch_end");
  }
  step_output validation_step(const batch&, std::int64_t) override {
    note(is_training() || at::GradMode::is_enabled() ? "validation_step in the wrong mode"
                                                     : "validation_step");
    return {};
  }
  step_output validation_step_end(step_output o) override {
    note("validation_step_end");
    return o;
  }
  std::string on_save_checkpoint() override {
    note("on_save_checkpoint");
    return {};
  }

  std::shared_ptr<std::vector<std::string>> into_;
};

}  // namespace

TEST_CASE("a module receives every hook in Lightning's order") {
  const auto said = std::make_shared<std::vector<std::string>>();
  const auto data = std::make_shared<table_data>(4, 4, 2);
  auto options = quick(2, 2, 1);
  options.num_sanity_val_steps = 1;
  options.max_epochs = 1;
  options.gradient_clip_val = 1;
  run_good_job({.recipe = recipe_for<diary>(data, said), .options = options});
  const std::vector<std::string> validation{
      "on_validation_model_eval", "on_validation_start", "on_validation_epoch_start",
      "before_transfer",          "after_transfer",      "on_validation_batch_start",
      "validation_step",          "validation_step_end", "on_validation_batch_end",
      "on_validation_epoch_end",  "on_validation_end",   "on_validation_model_train"};
  std::vector<std::string> expected{"prepare_data", "setup", "configure_model", "on_fit_start",
                                    "on_sanity_check_start"};
  if (said->at(5) == "on_validation_model_zero_grad") expected.push_back(said->at(5));
  const auto add = [&](const std::vector<std::string>& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  add(validation);
  add({"on_sanity_check_end", "on_train_start", "on_train_epoch_start", "before_transfer",
       "after_transfer", "on_train_batch_start", "optimizer_step", "training_step",
       "training_step_end", "on_before_zero_grad", "optimizer_zero_grad", "on_before_backward",
       "backward", "on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping",
       "on_train_batch_end", "on_validation_model_zero_grad"});
  add(validation);
  add({"on_train_epoch_end", "on_save_checkpoint", "on_train_end", "on_fit_end", "teardown"});
  CHECK(*said == expected);
}

TEST_CASE("an evaluation restores the training mode of each submodule") {
  struct half_frozen : regression {
    half_frozen() : regression({.dropout = 0.5, .optimize = {}}) { net[2]->eval(); }
    void on_train_epoch_end(std::int64_t) override {
      if (!is_training() || net[2]->is_training() || !net[1]->is_training())
        throw std::runtime_error("a submodule's mode changed");
    }
  };
  const auto data = std::make_shared<table_data>(8, 4, 4);
  run_good_job({.recipe = recipe_for<half_frozen>(data), .options = quick(1, 4, 4)});
}

TEST_CASE("outside of a run a module is rank 0 of 1") {
  regression one;
  one.log("x", 1);
  one.stop();
  one.add_to_queue(1);
  CHECK((one.rank() == 0 && one.world() == 1 && one.logged().empty()));
  CHECK(one.reduce(torch::ones({2}), "sum").equal(torch::ones({2})));
  CHECK(one.all_gather(torch::ones({2})).sizes() == at::IntArrayRef{1, 2});
  CHECK_THROWS_AS(module{}.configure_optimizers(), user_error);
}

// --- any function as a job -----------------------------------------------------------------------

TEST_CASE("a spawned function gets its rank and its arguments and can use collectives") {
  const auto sum = [](rank_context& who, int base, const std::string& word) -> value {
    float mine = static_cast<float>(base + who.rank());
    who.collectives().all_reduce({&mine, 1, dtype::f32}, reduction::sum)->wait();
    who.add_to_queue(word + std::to_string(who.rank()));
    return static_cast<double>(mine);
  };
  auto options = quick(3, 1, 0);
  const auto ends = run_good_job({.recipe = call_recipe(sum, 10, std::string{"rank "}),
                                  .options = options,
                                  .purpose = stage::call});
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(ends[rank].result == value{33.0});
    CHECK(ends[rank].queued == std::vector<value>{"rank " + std::to_string(rank)});
  }
  const auto none = run_good_job(
      {.recipe = call_recipe([](rank_context&) {}), .options = options, .purpose = stage::call});
  CHECK(none[0].result.empty());
}

TEST_CASE("a factory that makes no strategy or no precision is refused by its name") {
  torch_plugins plugins;
  if (GENERATE(false, true)) {  // else the functions are empty
    plugins.strategies["mine"] = [](strategy_parts) { return nullptr; };
    plugins.precisions["mine"] = [] { return nullptr; };
  } else {
    plugins.strategies["mine"] = nullptr;
    plugins.precisions["mine"] = nullptr;
  }
  CHECK_THROWS_WITH(make_strategy(plugins.strategies, "mine", {}),
                    Catch::Contains("the factory of strategy \"mine\" made none"));
  CHECK_THROWS_WITH(make_precision(plugins.precisions, "mine"),
                    Catch::Contains("the factory of precision \"mine\" made none"));
}

TEST_CASE("a module's recipe refuses a job that calls a function") {
  const auto data = std::make_shared<table_data>(8, 4, 4);
  CHECK_THROWS_WITH(recipe_for<regression>(data)->make({.purpose = stage::call}),
                    Catch::Contains("call_recipe"));
}

// --- an engine that accumulates itself -----------------------------------------------------------

namespace {

/// Counts micro-batches and updates the weights when its own window is full, as DeepSpeed does.
struct own_engine : data_parallel {
  own_engine(strategy_parts parts, calls_ptr seen)
      : data_parallel(std::move(parts)), seen_(std::move(seen)) {}
  std::string_view name() const override { return "engine"; }
  bool handles_gradient_accumulation() const override { return true; }
  step_status backward(const at::Tensor& loss, const backward_plan& plan) override {
    if (plan.weight != 1) throw std::logic_error("the loss was already weighted");
    full_ = plan.synchronize;
    auto own = plan;
    own.weight = full_ ? 0.25 : 0.5;
    seen_->note(full_ ? "full" : "part");
    return data_parallel::backward(loss, own);
  }
  void optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t, const step_closure& closure,
                      troupe::module&) override {
    seen_->note("asked");
    const auto loss = closure();
    if (loss.defined()) seen_->note("got a loss");
    if (full_) optimizer.step();
  }
  void synchronize_buffers() override { seen_->note("buffers"); }
  bool full_ = false;
  calls_ptr seen_;
};

}  // namespace

TEST_CASE("a strategy that accumulates itself gets a step for every micro-batch") {
  const auto seen = std::make_shared<ledger_of_calls>();
  torch_plugins plugins;
  plugins.strategies["engine"] = [=](strategy_parts parts) {
    return std::make_unique<own_engine>(std::move(parts), seen);
  };
  auto options = quick(1, 4, 2);
  options.strategy = own_name{"engine"};
  options.accumulate_grad_batches = 2;
  const auto make = [] { return std::make_shared<regression>(); };
  const auto data = std::make_shared<table_data>(12);  // windows of two batches and of one
  const auto ends = run_good_job({.recipe = make_recipe(make, data, plugins), .options = options});
  CHECK(ends[0].loop.steps == 2);
  CHECK(ends[0].loop.samples == 12);
  CHECK(seen->calls ==
        std::map<std::string, int>{
            {"asked", 3}, {"part", 1}, {"full", 2}, {"got a loss", 3}, {"buffers", 2}});
}
