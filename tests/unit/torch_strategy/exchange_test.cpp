// Goal: the options and hooks of the gradient exchange behave as users of DDP expect.
#include "backends/torch/models.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/data_parallel.hpp"
#include "troupe/detail/powersgd.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double close_enough = 2e-6;

torch_plugins with(const data_parallel_options& how) {
  torch_plugins plugins;
  plugins.strategies["data_parallel"] = [how](strategy_parts parts) {
    return std::make_unique<data_parallel>(std::move(parts), how);
  };
  return plugins;
}

std::string digest_of(const trainer_options& options, const data_ptr& data,
                      const module_factory& make, const torch_plugins& plugins = {}) {
  const auto ends = run_good_job({.recipe = make_recipe(make, data, plugins), .options = options});
  return ends[0].snapshot->weights_digest;
}

/// A module that uses one of two branches in each step. Records the exchange's figures.
struct branches : regression {
  enum class way { first, by_step, by_rank };
  explicit branches(way how) : regression({.optimize = {}}), how_(how) {
    for (int i = 0; i < 2; ++i)
      either.push_back(register_module("branch" + std::to_string(i), torch::nn::Linear(1, 1)));
  }
  step_output training_step(const batch& b, std::int64_t) override {
    const auto which = how_ == way::by_step   ? at().step % 2
                       : how_ == way::by_rank ? std::min(rank(), 1)
                                              : 0;
    return fn::mse_loss(either[static_cast<std::size_t>(which)]->forward(net->forward(b[0])), b[1]);
  }
  optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  void on_train_end() override {
    if (rank() == 0) seen = dynamic_cast<data_parallel&>(*strategy_in_use()).gradient_figures();
  }
  static inline reducer::figures seen;
  std::vector<torch::nn::Linear> either;
  way how_;
};

module_factory branching(branches::way how) {
  return [how] { return std::make_shared<branches>(how); };
}

struct reports_caps : regression {
  void on_train_end() override {
    const auto seen = dynamic_cast<data_parallel&>(*strategy_in_use()).gradient_figures();
    caps[static_cast<std::size_t>(rank())] = seen.caps;
    latency = seen.latency_seconds;
  }
  static inline std::array<bucket_caps, 2> caps;
  static inline std::atomic<double> latency{0};
};

struct reports_difference : regression {
  void on_train_end() override {
    const auto all = all_gather(net[0]->as<torch::nn::Linear>()->weight);
    differ = !all[0].equal(all[1]);
  }
  static inline std::atomic<bool> differ{false};
};

struct reports_waiting : regression {
  void on_train_end() override { waited += strategy_in_use()->waited().count(); }
  static inline std::atomic<std::int64_t> waited{0};
};

reducer_options one_each() { return {.first_bucket_bytes = 1, .bucket_bytes = 1}; }

}  // namespace

TEST_CASE("the bits of the weights depend neither on buckets nor on overlap nor on tuning") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(3, 4, 6);
  const auto make = [] { return std::make_shared<regression>(); };
  const auto plain = digest_of(options, data, make);
  CHECK(digest_of(options, data, make, with({.gradients = one_each()})) == plain);
  CHECK(digest_of(options, data, make, with({.gradients = {.overlap = false}})) == plain);
  // A clock that makes the communicator look extremely slow.
  auto ticks = std::make_shared<std::atomic<std::int64_t>>(0);
  const auto slow = [ticks] { return std::chrono::nanoseconds{++*ticks * 1'000'000}; };
  CHECK(digest_of(options, data, make, with({.gradients = {.now = slow}})) == plain);
}

TEST_CASE("all ranks use rank 0's measurement of the communicator") {
  const auto data = std::make_shared<table_data>(24);
  torch_plugins plugins;
  plugins.strategies["data_parallel"] = [](strategy_parts parts) {
    // Rank 0's clock advances by a millisecond per look, the other rank's by a nanosecond.
    const auto tick = parts.about.rank == 0 ? 1'000'000 : 1;
    reducer_options how;
    how.now = [tick, now = std::int64_t{0}]() mutable {
      return std::chrono::nanoseconds{now += tick};
    };
    return std::make_unique<data_parallel>(std::move(parts),
                                           data_parallel_options{.gradients = how});
  };
  const auto make = [] { return std::make_shared<reports_caps>(); };
  run_good_job({.recipe = make_recipe(make, data, plugins), .options = quick(2, 4, 3)});
  CHECK(reports_caps::latency > 0);
  CHECK(reports_caps::caps[0] == tuned_caps(1e-3, 0));
  CHECK(reports_caps::caps[1] == reports_caps::caps[0]);
}

TEST_CASE("with find_unused_parameters unused parameters delay no bucket") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 5);
  const auto make = branching(branches::way::first);
  auto how = one_each();
  const auto plain = digest_of(options, data, make, with({.gradients = how}));
  const auto waited = branches::seen;
  how.find_unused_parameters = true;
  CHECK(digest_of(options, data, make, with({.gradients = how})) == plain);
  CHECK(waited.buckets.size() == 8);
  // Two buckets of the unused branch come first until the first step has shown the order.
  CHECK(waited.early == 0 + 4 * 6);
  CHECK(branches::seen.early >= 5 * 6);
}

TEST_CASE("the used parameters may differ between steps and between ranks") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 6);
  const auto how = GENERATE(branches::way::by_step, branches::way::by_rank);
  auto search = one_each();
  search.find_unused_parameters = true;
  CHECK(digest_of(options, data, branching(how), with({.gradients = search})) ==
        digest_of(options, data, branching(how)));
}

TEST_CASE("static_graph learns the order once and refuses a graph that changes") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 5);
  const auto make = branching(branches::way::first);
  auto fixed = one_each();
  fixed.static_graph = true;
  const auto plain = digest_of(options, data, make);
  CHECK(digest_of(options, data, make, with({.gradients = fixed})) == plain);
  CHECK(branches::seen.early >= 4 * 6);
  const auto refused = run_job(
      {.recipe = make_recipe(branching(branches::way::by_step), data, with({.gradients = fixed})),
       .options = options});
  CHECK(text_of(refused[0].error).find("set strategy.static_graph to false") != std::string::npos);
}

TEST_CASE("the trainer's gradient options reach the exchange") {
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 4, 5);
  const auto first = branching(branches::way::first);
  digest_of(options, data, first);
  CHECK(branches::seen.buckets == std::vector<std::size_t>{8});
  options.gradients.bucket_cap_mb = 16.0 / (1 << 20);
  digest_of(options, data, first);
  CHECK(branches::seen.caps.others == 16);
  CHECK(branches::seen.buckets.size() > 4);
  const auto early = branches::seen.early;
  options.gradients.find_unused_parameters = true;
  digest_of(options, data, first);
  CHECK(branches::seen.early > early);
  options.gradients.static_graph = true;
  const auto refused =
      run_job({.recipe = make_recipe(branching(branches::way::by_step), data), .options = options});
  CHECK_THAT(text_of(refused[0].error), Catch::Contains("set strategy.static_graph to false"));
}

TEST_CASE("without broadcast_buffers each rank keeps the running statistics of its own batches") {
  struct normed : regression {
    normed() : regression({.batch_norm = true, .optimize = {}}) {}
    void on_train_end() override {
      const auto& norm = *net[1]->as<torch::nn::BatchNorm1d>();
      const auto means = all_gather(norm.running_mean), weights = all_gather(norm.weight.detach());
      expect(weights[0].equal(weights[1]));
      add_to_queue(value{means[0].equal(means[1])});
    }
  };
  auto options = quick(2, 4, 3);
  options.gradients.broadcast_buffers = GENERATE(true, false);
  CAPTURE(options.gradients.broadcast_buffers);
  const auto data = std::make_shared<table_data>(24);
  const auto ends = run_good_job({.recipe = recipe_for<normed>(data), .options = options});
  CHECK(ends[0].queued.front() == value{options.gradients.broadcast_buffers});
}

namespace {

/// Gradients arrive twice in one backward hook.
struct two_backwards : regression {
  void backward(const at::Tensor& loss, const value&) override {
    (loss * 0.25).backward({}, /*keep_graph=*/true);
    (loss * 0.75).backward();
  }
};

}  // namespace

TEST_CASE("static_graph learns how often each gradient arrives") {
  const auto data = std::make_shared<table_data>(24);
  const auto options = quick(2, 4, 4);
  const auto make = [] { return std::make_shared<two_backwards>(); };
  CHECK(digest_of(options, data, make, with({.gradients = {.static_graph = true}})) ==
        digest_of(options, data, make, with({.gradients = {.overlap = false}})));
}

// --- hooks ---------------------------------------------------------------------------------------

namespace {

trainer_options with_hook(comm_hook_kind kind) {
  auto options = quick(3, 4, 6);
  options.gradients.comm_hook = kind;
  return options;
}

/// A user's own hook: counts its calls, and sums in float64.
struct counted {
  std::atomic<int> calls{0};
  std::atomic<int> last{0};
};

bucket_future sum_in_double(std::shared_ptr<counted>& state, const gradient_bucket& bucket) {
  ++state->calls;
  if (bucket.is_last()) ++state->last;
  auto wide = bucket.scratch(at::kDouble);
  wide.copy_(bucket.buffer());
  std::int64_t elements = 0;
  for (const auto& one : bucket.gradients()) elements += one.numel();
  if (elements > bucket.buffer().numel() || bucket.parameters().size() != bucket.gradients().size())
    throw std::logic_error("a bucket's gradients do not belong to it");
  return {bucket.world().all_reduce(buffer_of(wide), reduction::sum), [wide] { return wide; }};
}

struct registers : regression {
  registers(std::shared_ptr<counted> state, bool twice)
      : regression({.optimize = {}}), state_(std::move(state)), twice_(twice) {}
  optimizers configure_optimizers() override {
    register_comm_hook(state_, sum_in_double);
    if (twice_) register_comm_hook(0, [](int&, const gradient_bucket&) { return bucket_future{}; });
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  std::shared_ptr<counted> state_;
  bool twice_;
};

}  // namespace

TEST_CASE("a user's communication hook sums the buckets") {
  const auto data = std::make_shared<table_data>(24);
  const auto state = std::make_shared<counted>();
  auto options = quick(3, 4, 6);
  options.accumulate_grad_batches = GENERATE(1, 2);  // a bucket travels once per step in both cases
  CHECK(distance(trained<registers>(options, data, state, false),
                 by_hand<regression>(options, *data)) < close_enough);
  CHECK(state->calls == 3 * 6);
  CHECK(state->last == 3 * 6);
  const auto refused =
      run_job({.recipe = recipe_for<registers>(data, state, true), .options = options});
  CHECK(text_of(refused[0].error).find("there is a hook already") != std::string::npos);
}

TEST_CASE("a compression hook rounds gradients and is reproducible") {
  const auto data = std::make_shared<table_data>(24);
  const auto kind = GENERATE(comm_hook_kind::f16_compress, comm_hook_kind::bf16_compress);
  CAPTURE(to_string(kind));
  const auto options = with_hook(kind);
  const auto exact = trained<regression>(with_hook(comm_hook_kind::allreduce), data);
  const auto rounded = trained<regression>(options, data);
  CHECK(distance(rounded, exact) > 1e-7);
  CHECK(distance(rounded, exact) < (kind == comm_hook_kind::f16_compress ? 1e-3 : 1e-2));
  const auto again = run_good_job({.recipe = recipe_for<regression>(data), .options = options});
  CHECK(weights_of(again[0].snapshot).begin()->second.equal(rounded.begin()->second));
}

TEST_CASE("compression can wrap any hook including another compression") {
  const auto data = std::make_shared<table_data>(24);
  std::atomic<int> inner{0};
  reducer_options how;
  how.hook = bf16_compress_wrapper(f16_compress_wrapper([&](const gradient_bucket& bucket) {
    if (bucket.buffer().scalar_type() == at::kHalf) ++inner;
    return allreduce_hook(bucket);
  }));
  const auto ends =
      run_good_job({.recipe = make_recipe([] { return std::make_shared<regression>(); }, data,
                                          with({.gradients = how})),
                    .options = quick(2, 4, 4)});
  CHECK(inner == 2 * 4);
  CHECK(distance(weights_of(ends[0].snapshot), by_hand<regression>(quick(2, 4, 4), *data)) < 1e-2);
}

TEST_CASE("with the noop hook the ranks' weights diverge") {
  const auto data = std::make_shared<table_data>(24);
  run_good_job(
      {.recipe = recipe_for<reports_difference>(data), .options = with_hook(comm_hook_kind::noop)});
  CHECK(reports_difference::differ);
}

TEST_CASE("a communication hook that throws or returns the wrong size fails its rank") {
  const auto data = std::make_shared<table_data>(24);
  const auto run = [&](comm_hook hook) {
    reducer_options how;
    how.hook = std::move(hook);
    const auto ends = run_job({.recipe = make_recipe([] { return std::make_shared<regression>(); },
                                                     data, with({.gradients = how})),
                               .options = quick(2, 4, 4)});
    return text_of(ends[0].error);
  };
  CHECK(run([](const gradient_bucket&) -> bucket_future { throw std::runtime_error("mine"); }) ==
        "std::runtime_error: mine");
  CHECK(run([](const gradient_bucket&) -> bucket_future {
          return {nullptr, [] { return torch::zeros({3}); }};
        }).find("returned 3 elements") != std::string::npos);
}

TEST_CASE("the time spent in collectives is reported with the waiting hooks") {
  const auto data = std::make_shared<table_data>(24);
  std::atomic<std::int64_t> ticks{0};
  reducer_options how;
  how.now = [&] { return std::chrono::nanoseconds{++ticks}; };
  run_good_job({.recipe = make_recipe([] { return std::make_shared<reports_waiting>(); }, data,
                                      with({.gradients = how})),
                .options = quick(2, 4, 4)});
  CHECK(reports_waiting::waited > 0);
  CHECK(reports_waiting::waited < 2 * ticks);  // of both ranks
}

// --- PowerSGD ------------------------------------------------------------------------------------
// (tests/python/numbers_oracle.py compares its sums with PyTorch's hook.)

namespace {

trainer_options by_powersgd(powersgd_options how, std::int64_t steps = 6) {
  auto options = quick(3, 4, steps);
  options.gradients.comm_hook = comm_hook_kind::powersgd;
  options.gradients.powersgd = how;
  return options;
}

using tensors = std::vector<at::Tensor>;

/// The sums of one step after the other on two ranks, for one bucket with `of(step, rank)`.
std::vector<std::vector<tensors>> sums_of(
    powersgd_options how, std::int64_t steps,
    const std::function<tensors(std::int64_t step, std::int32_t rank)>& of) {
  std::vector<std::vector<tensors>> found(2);
  const auto errors = on_ranks(2, [&](std::int32_t rank, const auto& world) {
    powersgd_state state{how};
    std::vector<gradient_bucket::part> parts;
    std::int64_t elements = 0;
    for (const auto& one : of(0, rank)) {
      parts.push_back({torch::empty_like(one), elements, one.strides().vec()});
      elements += one.numel();
    }
    gradient_bucket::memory kept;
    for (std::int64_t step = 0; step < steps; ++step) {
      const gradient_bucket bucket{*world, 0, true, torch::zeros({elements}), parts, kept};
      const auto mine = of(step, rank);
      auto gradients = bucket.gradients();
      for (std::size_t i = 0; i < mine.size(); ++i) gradients[i].copy_(mine[i]);
      const auto promised = powersgd_hook(state, bucket);
      promised.pending->wait();
      if (promised.sum) promised.sum();
      auto& kept_here = found[static_cast<std::size_t>(rank)].emplace_back();
      for (const auto& one : gradients) kept_here.push_back(one.clone());
    }
  });
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  return found;
}

at::Tensor drawn(std::int64_t seed, at::IntArrayRef sizes) {
  rank_random draws{static_cast<std::uint64_t>(seed)};
  const random_scope scope{draws};
  return torch::randn(sizes);
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-5) {
  return torch::allclose(a, b, tolerance, tolerance);
}

}  // namespace

TEST_CASE("PowerSGD with enough columns sums exactly, in buckets of any size") {
  const auto data = std::make_shared<table_data>(24);
  auto options = by_powersgd({.rank = 16, .start_step = 0, .min_rate = 1e-3});
  if (GENERATE(true, false)) options.gradients.bucket_cap_mb = 16.0 / (1 << 20);
  options.accumulate_grad_batches = GENERATE(1, 2);
  CHECK(distance(trained<regression>(options, data), by_hand<regression>(options, *data)) < 1e-5);
}

TEST_CASE("PowerSGD with one column begins at start_step and is reproducible") {
  const auto data = std::make_shared<table_data>(24);
  const auto exact = trained<regression>(quick(3, 4, 6), data);
  const powersgd_options one{.start_step = 6, .min_rate = 0.5};
  CHECK(distance(trained<regression>(by_powersgd(one), data), exact) < 1e-6);
  auto earlier = one;
  earlier.start_step = 2;
  const auto rounded = trained<regression>(by_powersgd(earlier), data);
  CHECK(distance(rounded, exact) > 1e-5);
  CHECK(distance(rounded, exact) < 0.2);
  CHECK(distance(trained<regression>(by_powersgd(earlier), data), rounded) == 0);
  auto other = earlier;
  other.seed = 1;
  CHECK(distance(trained<regression>(by_powersgd(other), data), rounded) > 1e-7);
}

TEST_CASE("the error that a step leaves is sent in later steps") {
  const auto gradient = drawn(1, {20, 12});
  const auto total = [&](bool feedback) {
    const auto found = sums_of({.start_step = 0, .error_feedback = feedback}, 60,
                               [&](auto, auto) { return tensors{gradient / 2}; });
    auto all = torch::zeros_like(gradient);
    for (const auto& step : found[0]) all += step[0];
    return (all / 60 - gradient).norm().item<double>();
  };
  CHECK(total(true) < 0.3 * total(false));
}

TEST_CASE("a warm start approaches the best matrix of one column, a cold one does not") {
  const auto gradient = drawn(1, {20, 12});
  const auto best = at::linalg_svdvals(gradient).slice(0, 1).norm().item<double>();
  const auto left = [&](bool warm) {
    const auto found = sums_of({.start_step = 0, .error_feedback = false, .warm_start = warm}, 40,
                               [&](auto, auto) { return tensors{gradient / 2}; });
    return (found[0].back()[0] - gradient).norm().item<double>();
  };
  CHECK(left(true) < 1.01 * best);
  CHECK(left(false) > 1.02 * best);
}

TEST_CASE("PowerSGD sends what it cannot compress as it is") {
  const auto of = [](std::int64_t step, std::int32_t rank) {
    const auto seed = 10 * step + rank;
    return tensors{drawn(seed, {1}), drawn(seed + 100, {}), torch::zeros({0, 4}),
                   drawn(seed + 200, {7}), drawn(seed + 300, {2, 2})};
  };
  const auto found = sums_of({.start_step = 0}, 3, of);
  for (std::int64_t step = 0; step < 3; ++step)
    for (std::size_t i = 0; i < 5; ++i)
      for (const auto& rank : found)
        CHECK(near(rank[static_cast<std::size_t>(step)][i], of(step, 0)[i] + of(step, 1)[i]));
}

TEST_CASE("a gradient of zeros stays zero and later ones are sent again") {
  const auto gradient = torch::outer(drawn(1, {20}), drawn(2, {12}));  // of matrix rank 1
  const std::int32_t rank = GENERATE(1, 4);
  const auto epsilon = GENERATE(0.0, 1e-8);
  CAPTURE(rank, epsilon);
  const auto found = sums_of({.rank = rank, .start_step = 0, .min_rate = 0.5, .epsilon = epsilon},
                             4, [&](auto step, auto) {
                               return tensors{step < 2 ? torch::zeros({20, 12}) : gradient / 2};
                             });
  for (std::size_t step : {0, 1}) CHECK(found[0][step][0].equal(torch::zeros({20, 12})));
  for (std::size_t step : {2, 3}) CHECK(near(found[0][step][0], gradient, 1e-4));
}

TEST_CASE("an infinite or undefined gradient on one rank: NaN on all ranks, once") {
  const auto bad = GENERATE(std::nan(""), std::numeric_limits<double>::infinity());
  const std::int32_t rank = GENERATE(1, 4);
  CAPTURE(bad, rank);
  const auto clean = [](auto step, auto who) {
    return tensors{drawn(100 * step + who, {20, 12}), drawn(100 * step + 50 + who, {12, 20})};
  };
  const powersgd_options how{.rank = rank, .start_step = 0, .min_rate = 0.5, .warm_start = false};
  const auto found = sums_of(how, 4, [&](auto step, auto who) {
    auto all = clean(step, who);
    if (step == 1 && who == 1) all[0][3][5].fill_(bad);
    return all;
  });
  for (const auto& of_rank : found) {
    CHECK(of_rank[1][0].isnan().all().item<bool>());
    CHECK(of_rank[1][1].isfinite().all().item<bool>());
    for (std::size_t step : {0, 2, 3})
      for (const auto& one : of_rank[step]) CHECK(one.isfinite().all().item<bool>());
  }
  CHECK(found[0][3][0].equal(found[1][3][0]));
}

TEST_CASE("PowerSGD can be wrapped and registered by a module, without a cast") {
  struct registers : regression {
    optimizers configure_optimizers() override {
      register_comm_hook(powersgd_state{{.rank = 16, .start_step = 0, .min_rate = 1e-3}},
                         [](powersgd_state& state, const gradient_bucket& bucket) {
                           return bf16_compress_wrapper([&](const gradient_bucket& narrow) {
                             return powersgd_hook(state, narrow);
                           })(bucket);
                         });
      return regression::configure_optimizers();
    }
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(GENERATE(1, 2), 4, 4);
  const auto apart =
      distance(trained<registers>(options, data), trained<regression>(options, data));
  CHECK(apart < 0.2);
  CHECK((apart > 1e-6) == (options.ranks > 1));
}

TEST_CASE("PowerSGD counts the elements that it saves: those of the mlp") {
  const auto counted = [](std::int32_t rank) {
    std::array<std::int64_t, 2> found{};
    std::vector<gradient_bucket::part> parts;
    std::int64_t elements = 0;
    for (const auto& one : make_mlp({.hidden = {256, 128}})->parameters()) {
      parts.push_back({one, elements, one.strides().vec()});
      elements += one.numel();
    }
    on_ranks(1, [&](auto, const auto& world) {
      powersgd_state state{{.rank = rank, .start_step = 1}};
      gradient_bucket::memory kept;
      for (int step = 0; step < 2; ++step) {
        const gradient_bucket bucket{*world, 0, true, torch::ones({elements}), parts, kept};
        const auto promised = powersgd_hook(state, bucket);
        promised.pending->wait();
        if (promised.sum) promised.sum();
      }
      found = {state.elements_before(), state.elements_sent()};
    });
    return found;
  };
  // Layers of 784 x 256, 256 x 128 and 128 x 10; 394 biases.
  CHECK(counted(1) == std::array<std::int64_t, 2>{235146, 1040 + 384 + 138 + 394});
  CHECK(counted(4) == std::array<std::int64_t, 2>{235146, 4 * (1040 + 384 + 138) + 394});
  CHECK(counted(8) == std::array<std::int64_t, 2>{235146, 8 * (1040 + 384) + 1280 + 394});
}

TEST_CASE("a hook with a state is refused in jobs that can restart") {
  struct none {};
  struct registers : regression {
    explicit registers(bool with_state) : with_state_(with_state) {}
    optimizers configure_optimizers() override {
      const auto plain = [](auto&, const gradient_bucket& b) { return allreduce_hook(b); };
      if (with_state_)
        register_comm_hook(powersgd_state{}, plain);
      else
        register_comm_hook(none{}, plain);
      return regression::configure_optimizers();
    }
    bool with_state_;
  };
  const auto data = std::make_shared<table_data>(24);
  auto options = quick(2, 4, 2);
  options.elastic.max_restarts = 1;
  const auto refused = run_job({.recipe = recipe_for<registers>(data, true), .options = options});
  for (const auto& end : refused)
    CHECK_THAT(text_of(end.error), Catch::Contains("a state of an empty type"));
  run_good_job({.recipe = recipe_for<registers>(data, false), .options = options});
  options.gradients.comm_hook = comm_hook_kind::powersgd;
  const auto recipe = recipe_for<regression>(data);
  CHECK_THROWS_WITH(recipe->check_options(options),
                    Catch::Contains("strategy.comm_hook = \"powersgd\"") &&
                        Catch::Contains("elastic.max_restarts to 0"));
  CHECK(run_job({.recipe = recipe, .options = options})[0].error);
}
