// Goal: what a user's strategy does in a member of Lightning's vocabulary takes effect in the run.
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

template <class Strategy, class... More>
torch_plugins with_strategy(More... more) {
  torch_plugins plugins;
  plugins.strategies["mine"] = [=](strategy_parts parts) {
    return std::make_unique<Strategy>(std::move(parts), more...);
  };
  return plugins;
}

trainer_options mine(trainer_options options) {
  options.strategy = own_name{"mine"};
  return options;
}

template <class Module>
recipe_ptr recipe_of(data_ptr data, torch_plugins plugins) {
  return make_recipe([] { return std::make_shared<Module>(); }, std::move(data),
                     std::move(plugins));
}

}  // namespace

// --- process_dataloader --------------------------------------------------------------------------

namespace {

/// Doubles the inputs of each batch of another loader.
struct doubling_loader : loader {
  explicit doubling_loader(std::unique_ptr<loader> inner) : loader(std::move(inner)) {}
  item next() override {
    auto made = loader::next();
    if (made.samples > 0)
      made.batch = map_tensors(made.batch, [](const at::Tensor& t) { return t * 2; });
    return made;
  }
};

struct wrapping : data_parallel {
  using data_parallel::data_parallel;
  std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage) override {
    return std::make_unique<doubling_loader>(std::move(made));
  }
};

struct doubled_regression : regression {
  step_output training_step(const batch& b, std::int64_t) override {
    return fn::mse_loss(net->forward(b[0] * 2), b[1] * 2);
  }
};

/// Reads a stream of numbers; the dataset only says how many samples there are.
struct streaming_loader : loader {
  explicit streaming_loader(std::unique_ptr<loader> inner) : loader(std::move(inner)) {}
  void begin(std::int64_t, std::int64_t first, std::int64_t) override { batch_ = first; }
  item next() override {
    const auto mine = layout().of_rank(batch_, settings().rank);
    const auto numbers = torch::arange(mine.first, mine.first + mine.count, at::kFloat);
    return {value_tuple{{boxed(numbers)}}, mine.count, batch_++};
  }

private:
  std::int64_t batch_ = 0;
};

struct sizes_only : data_module {
  struct rows : dataset {
    std::int64_t size() const override { return 10; }
    value get(std::span<const std::int64_t>) const override {
      throw std::logic_error("a stream has no samples by index");
    }
  };
  dataset_ptr train() override { return std::make_shared<rows>(); }
};

struct streaming : data_parallel {
  using data_parallel::data_parallel;
  std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage) override {
    return std::make_unique<streaming_loader>(std::move(made));
  }
};

}  // namespace

TEST_CASE("process_dataloader wraps the loader: steps get what the wrapper makes of a batch") {
  const auto data = std::make_shared<table_data>(16);
  const auto options = quick(2, 4, 3);
  const auto ends = run_good_job(
      {.recipe = recipe_of<regression>(data, with_strategy<wrapping>()), .options = mine(options)});
  CHECK(distance(weights_of(ends[0].snapshot), by_hand<doubled_regression>(options, *data)) < 1e-6);
}

TEST_CASE("process_dataloader replaces the loader by one in another order") {
  struct in_order : data_parallel {
    using data_parallel::data_parallel;
    std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader> made, stage) override {
      auto how = made->settings();
      how.shuffle = false;
      return std::make_unique<loader>(made->data(), how);
    }
  };
  struct watching : regression {
    step_output training_step(const batch& b, std::int64_t index) override {
      const auto data = std::make_shared<table_data>(16);
      expect(b[0].equal(data->inputs().narrow(0, 8 * index + 4 * rank(), 4)));
      return regression::training_step(b, index);
    }
  };
  run_good_job(
      {.recipe = recipe_of<watching>(std::make_shared<table_data>(16), with_strategy<in_order>()),
       .options = mine(quick(2, 4, 2))});
}

TEST_CASE("process_dataloader replaces the loader by a stream: the dataset has no samples") {
  struct summing : regression {
    step_output training_step(const batch& b, std::int64_t) override {
      sum += b[0].sum().item<double>();
      return net->forward(torch::ones({1, 4})).sum();
    }
    void on_train_end() override {
      const auto all = reduce(torch::tensor(sum), "sum");
      expect(all.item<double>() == 2 * 45);  // 0 + ... + 9 in each of two epochs
    }
    double sum = 0;
  };
  auto options = quick(2, 2, 99);
  options.max_epochs = 2;
  const auto ends = run_good_job(
      {.recipe = recipe_of<summing>(std::make_shared<sizes_only>(), with_strategy<streaming>()),
       .options = mine(options)});
  CHECK(ends[0].loop.steps == 6);
  CHECK(ends[0].loop.samples == 20);
}

TEST_CASE("process_dataloader returns no loader: a user_error says what to return") {
  struct losing : data_parallel {
    using data_parallel::data_parallel;
    std::unique_ptr<loader> process_dataloader(std::unique_ptr<loader>, stage) override {
      return nullptr;
    }
  };
  const auto ends = run_job(
      {.recipe = recipe_of<regression>(std::make_shared<table_data>(16), with_strategy<losing>()),
       .options = mine(quick(1, 4, 2))});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("process_dataloader returned no loader"));
}

// --- batch_to_device, optimizer_step, configure_model ------------------------------------------

TEST_CASE("batch_to_device moves to the device that it is given") {
  strategy_parts parts;
  parts.about.world = 1;
  data_parallel how{std::move(parts)};
  const value nested =
      value_tuple{{boxed(torch::ones({2})), value_list{{boxed(torch::ones({1}))}}}};
  for (const auto& tensor : tensors_of(how.batch_to_device(nested, c10::kMeta, 0)))
    CHECK(tensor.is_meta());
}

TEST_CASE("batch_to_device gets the rank's device and the number of the batch's loader") {
  using loader_list = std::vector<std::int32_t>;
  struct noting : data_parallel {
    noting(strategy_parts parts, std::shared_ptr<loader_list> seen)
        : data_parallel(std::move(parts)), seen_(std::move(seen)) {}
    value batch_to_device(const value& b, c10::Device device, std::int32_t dataloader) override {
      expect(device == root_device());
      if (rank() == 0 && b.is<value_tuple>()) seen_->push_back(dataloader);
      return data_parallel::batch_to_device(b, device, dataloader);
    }
    std::shared_ptr<loader_list> seen_;
  };
  struct two_loaders : table_data {
    two_loaders() : table_data(8, 4, 4) {}
    std::vector<dataset_ptr> validation() override {
      return {table_data::validation().front(), train()};
    }
  };
  const auto seen = std::make_shared<loader_list>();
  run_good_job({.recipe = recipe_of<regression>(std::make_shared<two_loaders>(),
                                                with_strategy<noting>(seen)),
                .options = mine(quick(2, 2, 1)),
                .purpose = stage::validate});
  CHECK(*seen == loader_list{0, 1, 1});
}

TEST_CASE("optimizer_step gets the optimizer's index and the module") {
  struct noting : data_parallel {
    explicit noting(strategy_parts parts) : data_parallel(std::move(parts)) {}
    void optimizer_step(torch::optim::Optimizer& optimizer, std::int32_t index,
                        const step_closure& closure, troupe::module& model) override {
      expect(&model == bare_module().get());
      expect(&optimizer == optimizers_in_use()->all().at(index).optimizer.get());
      seen.push_back(index);
      data_parallel::optimizer_step(optimizer, index, closure, model);
    }
    void post_dispatch() override { expect(seen == std::vector<std::int32_t>{0, 1, 0, 1}); }
    std::vector<std::int32_t> seen;
  };
  struct two : regression {
    optimizers configure_optimizers() override {
      const auto all = parameters();
      return optimizers{torch::optim::SGD({all[0], all[1]}, 0.1)}.add(
          torch::optim::SGD({all[2], all[3]}, 0.1));
    }
  };
  run_good_job({.recipe = recipe_of<two>(std::make_shared<table_data>(16), with_strategy<noting>()),
                .options = mine(quick(2, 4, 2))});
}

TEST_CASE("a strategy says whether configure_model is called") {
  struct choosing : data_parallel {
    choosing(strategy_parts parts, bool calls) : data_parallel(std::move(parts)), calls_(calls) {}
    bool calls_configure_model() const override { return calls_; }
    bool calls_;
  };
  struct talking : regression {
    void configure_model() override { configured = true; }
    void on_fit_start() override { add_to_queue(value{configured}); }
    bool configured = false;
  };
  const auto calls = GENERATE(true, false);
  const auto ends = run_good_job({.recipe = recipe_of<talking>(std::make_shared<table_data>(16),
                                                               with_strategy<choosing>(calls)),
                                  .options = mine(quick(1, 4, 1))});
  CHECK(ends[0].queued.at(0) == value{calls});
}

namespace {

step_output plus_one(const step_output& output) { return boxed(unboxed(output.get()) + 1); }

struct adding : data_parallel {
  using data_parallel::data_parallel;
  step_output validation_step_end(step_output output) override { return plus_one(output); }
  step_output test_step_end(step_output output) override { return plus_one(output); }
};

/// Its steps return 40, which strategy and module make 42.
struct answering : regression {
  step_output validation_step(const batch&, std::int64_t) override { return torch::tensor(40.0); }
  step_output test_step(const batch&, std::int64_t) override { return torch::tensor(40.0); }
  step_output validation_step_end(step_output output) override { return plus_one(output); }
  step_output test_step_end(step_output output) override { return plus_one(output); }
  void note(const step_output& output) { log("answer", unboxed(output.get())); }
  void on_validation_batch_end(const step_output& output, const batch&, std::int64_t,
                               std::int32_t) override {
    note(output);
  }
  void on_test_batch_end(const step_output& output, const batch&, std::int64_t,
                         std::int32_t) override {
    note(output);
  }
};

}  // namespace

TEST_CASE(
    "test_step_end and validation_step_end of strategy and module replace what a step returned") {
  const auto purpose = GENERATE(stage::validate, stage::test);
  const auto ends =
      run_good_job({.recipe = recipe_of<answering>(std::make_shared<table_data>(8, 4, 4),
                                                   with_strategy<adding>()),
                    .options = mine(quick(2, 2, 1)),
                    .purpose = purpose});
  CHECK(ends[0].result == value{value_map{{{"answer", value{42.0}}}}});
}

// --- state ---------------------------------------------------------------------------------------

TEST_CASE("ranks start with different weights: all train with rank 0's, or each with its own",
          "[start]") {
  struct different : regression {
    explicit different(bool shares) : shared(shares) {
      static std::atomic<int> made{0};
      const int mine = ++made;
      const torch::NoGradGuard no_grad;
      for (auto& parameter : parameters()) parameter.fill_(0.1 * mine);
    }
    void setup(stage) override { before = all_gather(net->parameters()[0].detach()); }
    void on_fit_start() override {
      expect(!before[0].equal(before[1]));
      const auto after = all_gather(net->parameters()[0].detach());
      for (int r = 0; r < world(); ++r) expect(after[r].equal(before[shared ? 0 : r]));
    }
    // The updates are equal on all ranks, so the differences of the start stay.
    void on_train_end() override {
      const auto after = all_gather(net->parameters()[0].detach());
      expect(!after[0].equal(before[0]));
      for (int r = 1; r < world(); ++r) {
        const auto apart = shared ? at::zeros_like(before[r]) : before[r] - before[0];
        expect(at::allclose(after[r] - after[0], apart, 0, 1e-6));
      }
    }
    at::Tensor before;
    bool shared;
  };
  auto options = quick(3, 2, 3);
  options.gradients.sync_module_states = GENERATE(true, false);
  CAPTURE(options.gradients.sync_module_states);
  run_good_job({.recipe = recipe_for<different>(std::make_shared<table_data>(32),
                                                options.gradients.sync_module_states),
                .options = options});
}

TEST_CASE("a strategy restores its optimizers: their schedulers are left to it as well") {
  struct restoring : data_parallel {
    restoring(strategy_parts parts, snapshot_ptr from, bool itself)
        : data_parallel(std::move(parts)), from_(std::move(from)), itself_(itself) {}
    bool restores_optimizers() const override { return itself_; }
    snapshot load_checkpoint(const std::string&) override { return *from_; }
    void dispatch() override {
      const auto& one = optimizers_in_use()->all().at(0);
      expect(one.schedulers.at(0).offered() == (itself_ ? 0 : 3));
      expect(one.optimizer->state().empty() == itself_);
    }
    snapshot_ptr from_;
    bool itself_;
  };
  struct scheduled : regression {
    scheduled()
        : regression({.optimize = [](regression& m) {
            return optimizers{torch::optim::Adam(m.parameters(), 0.1)}
                .scheduled<torch::optim::StepLR>({.every = schedule::interval::step}, 1, 0.5);
          }}) {}
  };
  const auto data = std::make_shared<table_data>(32);
  const auto first =
      run_good_job({.recipe = recipe_for<scheduled>(data), .options = quick(2, 4, 3)});
  const auto itself = GENERATE(true, false);
  run_good_job(
      {.recipe = recipe_of<scheduled>(data, with_strategy<restoring>(first[0].snapshot, itself)),
       .options = mine(quick(2, 4, 3)),
       .resume = "there"});
}

namespace {

/// Asks for a checkpoint after step `at_step`, or in the hook that `in` names.
struct saving : regression {
  explicit saving(std::string path, std::int64_t at_step = 4, std::string in = {},
                  value options = {})
      : regression({.dropout = 0.2,
                    .optimize =
                        [](regression& m) {
                          return optimizers{torch::optim::Adam(m.parameters(), 0.01)}
                              .scheduled<torch::optim::StepLR>({.every = schedule::interval::step},
                                                               2, 0.5)
                              .scheduled<torch::optim::StepLR>({}, 1, 0.5);
                        }}),
        path_(std::move(path)),
        at_step_(at_step),
        in_(std::move(in)),
        options_(std::move(options)) {}
  void save_in(std::string_view hook) {
    if (hook == in_) save_checkpoint(path_, options_);
  }
  void setup(stage) override { save_in("setup"); }
  step_output training_step(const batch& b, std::int64_t index) override {
    save_in("training_step");
    return regression::training_step(b, index);
  }
  void on_train_epoch_end(std::int64_t) override { save_in("on_train_epoch_end"); }
  void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
    if (in_.empty() && at().step == at_step_) save_checkpoint(path_, options_);
    save_in("on_train_batch_end");
  }
  std::string path_;
  std::int64_t at_step_;
  std::string in_;
  value options_;
};

/// `saving` on two ranks, with five steps in an epoch.
recipe_ptr saving_recipe(const std::string& path, std::int64_t at_step, const std::string& in = {},
                         const value& options = {}, torch_plugins plugins = {}) {
  return make_recipe([=] { return std::make_shared<saving>(path, at_step, in, options); },
                     std::make_shared<table_data>(30, 4, 4), std::move(plugins));
}

std::string saving_refusal(const std::string& in, const value& options,
                           std::int64_t accumulate = 1) {
  const temporary_folder folder;
  auto how = quick(1, 3, 4);
  how.accumulate_grad_batches = accumulate;
  const auto ends =
      run_job({.recipe = saving_recipe((folder.path() / "never").string(), 1, in, options),
               .options = how});
  return text_of(ends[0].error);
}

}  // namespace

TEST_CASE("a module asks for a checkpoint: a fit that resumes from it ends in the same bits") {
  const temporary_folder folder;
  const auto path = (folder.path() / "own" / "step-00000004").string();
  const auto at_step = GENERATE(4, 5);  // the latter ends an epoch
  const auto in = GENERATE(std::string{}, std::string{"on_train_epoch_end"});
  CAPTURE(at_step, in);
  const auto options = quick(2, 3, 12);
  const auto whole =
      run_good_job({.recipe = saving_recipe("unused", -1, "no hook"), .options = options});
  auto first = options;
  first.max_steps = in.empty() ? 7 : 5;
  run_good_job({.recipe = saving_recipe(path, at_step, in), .options = first});
  const auto rest = run_good_job(
      {.recipe = saving_recipe("unused", -1, "no hook"), .options = options, .resume = path});
  CHECK(rest[0].hooks.size() < whole[0].hooks.size());
  CHECK(rest[0].snapshot->weights_digest == whole[0].snapshot->weights_digest);
  CHECK(rest[0].snapshot->state == whole[0].snapshot->state);
  CHECK(rest[0].loop == whole[0].loop);
}

TEST_CASE("a module asks for a checkpoint where none can be made: the error says why") {
  CHECK_THAT(saving_refusal("setup", {}), Catch::Contains("there is no fit in progress"));
  CHECK_THAT(saving_refusal("training_step", {}), Catch::Contains("a step is in progress"));
  CHECK_THAT(saving_refusal("on_train_batch_end", {}, 2), Catch::Contains("a step is in progress"));
  CHECK_THAT(saving_refusal("on_train_batch_end", "gzip"),
             Catch::Contains("storage options mean nothing to this strategy"));
  CHECK_THROWS_WITH(saving("somewhere").save_checkpoint("somewhere"),
                    Catch::Contains("outside of a run"));
}

TEST_CASE("a strategy gets what a module wants saved, with its path and its storage options") {
  struct request {
    std::string path;
    value options;
    std::int64_t steps;
  };
  const auto seen = std::make_shared<std::vector<request>>();
  struct keeping : data_parallel {
    keeping(strategy_parts parts, std::shared_ptr<std::vector<request>> seen)
        : data_parallel(std::move(parts)), seen_(std::move(seen)) {}
    snapshot_ptr save_checkpoint(snapshot_ptr what, const std::string& path,
                                 const value& options) override {
      if (rank() == 0) seen_->push_back({path, options, what->loop.steps});
      return what;
    }
    std::shared_ptr<std::vector<request>> seen_;
  };
  auto options = quick(2, 3, 3);
  options.checkpoint.every_n_steps = 2;
  run_good_job({.recipe = saving_recipe("there", 1, {}, "gzip", with_strategy<keeping>(seen)),
                .options = mine(options)});
  REQUIRE(seen->size() == 3);  // on request, every two steps, at the end
  CHECK(seen->at(0).path == "there");
  CHECK(seen->at(0).options == value{"gzip"});
  CHECK(seen->at(0).steps == 1);
  CHECK(seen->at(1).path.empty());
  CHECK(seen->at(2).steps == 3);
}

TEST_CASE("a module gives the strategy a snapshot of its own, and all ranks read the file") {
  struct own_state : regression {
    explicit own_state(std::string path) : path_(std::move(path)) {}
    void on_train_batch_end(const step_output&, const batch&, std::int64_t) override {
      if (at().step != 2) return;
      snapshot own;
      own.loop.steps = 2;
      own.ranks = world();
      own.model = {blob_of("centres", at::arange(3.0)), blob_of("hits", at::full({2}, 7))};
      own.state = R"({"mine": true})";
      auto& how = *strategy_in_use();
      how.save_checkpoint(rank() == 0 ? std::make_shared<const snapshot>(own) : nullptr, path_, {});
      const auto read = how.load_checkpoint(path_);
      expect(read.model.size() == 2 && read.model[0].name == "centres");
      expect(tensor_of(read.model[0]).equal(at::arange(3.0)));
      expect(tensor_of(read.model[1]).equal(at::full({2}, 7)));
      expect(read.loop.steps == 2 && nlohmann::json::parse(read.state).at("mine") == true);
      add_to_queue(value{true});
    }
    std::string path_;
  };
  const temporary_folder folder;
  const auto path = (folder.path() / "own" / "step-00000002").string();
  const auto data = std::make_shared<table_data>(30);
  const auto ends =
      run_good_job({.recipe = recipe_for<own_state>(data, path), .options = quick(2, 3, 3)});
  for (const auto& end : ends) CHECK(end.queued.front() == value{true});
}

// --- ends ----------------------------------------------------------------------------------------

namespace {

struct note_of_ends {
  std::mutex mutex;
  std::vector<std::string> barriers;                        // on rank 0
  std::map<std::int32_t, std::vector<std::string>> caught;  // by rank
};
using notes_ptr = std::shared_ptr<note_of_ends>;

struct out_of_paper : std::runtime_error {
  using std::runtime_error::runtime_error;
  int sheets = 7;
};

std::string text_about(const std::exception_ptr& error, std::string_view type,
                       std::string_view what) {
  try {
    std::rethrow_exception(error);
  } catch (const out_of_paper& e) {
    return std::string{what} + " with " + std::to_string(e.sheets);
  } catch (const std::runtime_error& e) {
    return std::string{type} + " " + e.what();
  } catch (const std::exception&) {
    return "another exception";
  }
}

struct listening : data_parallel {
  listening(strategy_parts parts, notes_ptr notes)
      : data_parallel(std::move(parts)), notes_(std::move(notes)) {}
  void barrier(std::string_view label, std::chrono::nanoseconds deadline,
               const subgroup& among) override {
    if (rank() == 0) {
      const std::lock_guard lock{notes_->mutex};
      notes_->barriers.emplace_back(label);
    }
    data_parallel::barrier(label, deadline, among);
  }
  void on_exception(const std::exception_ptr& error, std::string_view type,
                    std::string_view what) override {
    const std::lock_guard lock{notes_->mutex};
    notes_->caught[rank()].push_back("strategy: " + text_about(error, type, what));
  }
  notes_ptr notes_;
};

struct failing : regression {
  explicit failing(notes_ptr notes, std::int32_t on_rank = 1)
      : notes_(std::move(notes)), on_rank_(on_rank) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    if (rank() == on_rank_) throw out_of_paper{"no paper"};
    return regression::training_step(b, index);
  }
  void on_exception(const std::exception_ptr& error, std::string_view type,
                    std::string_view what) override {
    const std::lock_guard lock{notes_->mutex};
    notes_->caught[rank()].push_back("module: " + text_about(error, type, what));
  }
  notes_ptr notes_;
  std::int32_t on_rank_;
};

}  // namespace

TEST_CASE("on_exception: strategy and module of the failing rank get the exception itself") {
  const auto notes = std::make_shared<note_of_ends>();
  run_job({.recipe = make_recipe([=] { return std::make_shared<failing>(notes); },
                                 std::make_shared<table_data>(16), with_strategy<listening>(notes)),
           .options = mine(quick(2, 4, 2))});
  CHECK(notes->caught[1] ==
        std::vector<std::string>{"strategy: no paper with 7", "module: no paper with 7"});
}

TEST_CASE("on_exception: other ranks get an exception with type and text of the first cause") {
  const auto notes = std::make_shared<note_of_ends>();
  const auto recipe =
      make_recipe([=] { return std::make_shared<failing>(notes); },
                  std::make_shared<table_data>(16), with_strategy<listening>(notes));
  learner_context context;
  context.options = mine(quick(1, 4, 2));
  const auto who = recipe->make(context);
  who->on(hooks::connect{}, {});
  who->on(hooks::on_exception{{}, "elsewhere::torn", "no ink"}, {});
  CHECK(notes->caught[0] == std::vector<std::string>{"strategy: elsewhere::torn no ink",
                                                     "module: elsewhere::torn no ink"});
}

TEST_CASE("an orderly teardown waits for all ranks, one after a failure for none") {
  const auto fails = GENERATE(false, true);
  const auto notes = std::make_shared<note_of_ends>();
  run_job({.recipe = make_recipe([=] { return std::make_shared<failing>(notes, fails ? 1 : -1); },
                                 std::make_shared<table_data>(16), with_strategy<listening>(notes)),
           .options = mine(quick(2, 4, 2))});
  REQUIRE_FALSE(notes->barriers.empty());
  CHECK((notes->barriers.back() == "teardown") == !fails);
}
