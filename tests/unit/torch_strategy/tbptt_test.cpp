// Goal: truncated back-propagation through time makes the steps of a plain loop over the parts of
// each batch, whatever the ranks and the losses of ranks, and refuses what it cannot do.
#include "backends/torch/time_split.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"

#include <atomic>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::int64_t time_steps = 10;
constexpr std::int64_t features = 3;

/// Sequences (time, features) with a target per step in time.
class sequences : public data_module {
public:
  using rows = table_data::rows;

  explicit sequences(std::int64_t samples) : train_(std::make_shared<rows>()) {
    rank_random draws{29};
    const random_scope scope{draws};
    train_->inputs = torch::randn({samples, time_steps, features});
    train_->targets = torch::sin(train_->inputs.cumsum(1).sum(2, true));
  }
  dataset_ptr train() override { return train_; }
  const rows& table() const { return *train_; }

private:
  std::shared_ptr<rows> train_;
};

/// An LSTM, whose state is a tuple of two tensors.
struct recurrent : module {
  using state = std::optional<std::tuple<at::Tensor, at::Tensor>>;

  explicit recurrent(std::int64_t own_steps = 0) : own_steps_(own_steps) {}
  std::int64_t truncated_bptt_steps() const override { return own_steps_; }
  std::pair<at::Tensor, state> pass(const at::Tensor& x, const at::Tensor& y, const state& before) {
    const auto [out, after] = lstm->forward(x, before);
    return {fn::mse_loss(head->forward(out), y), after};
  }
  step_output training_step(const batch& b, std::int64_t) override {
    state before;
    if (const auto* both = hiddens().get_if<value_tuple>())
      before = std::tuple{unboxed(both->items.at(0)), unboxed(both->items.at(1))};
    const auto [loss, after] = pass(b[0], b[1], before);
    value_map all;
    all.items["loss"] = boxed(loss);
    all.items["hiddens"] = value_tuple{{boxed(std::get<0>(*after)), boxed(std::get<1>(*after))}};
    return all;
  }
  optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }

  torch::nn::LSTM lstm = register_module(
      "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(features, 5).batch_first(true)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(5, 1));

private:
  std::int64_t own_steps_;
};

/// The weights of a plain loop over the same order of samples.
std::map<std::string, at::Tensor> looped(const trainer_options& options, const sequences& data,
                                         std::int64_t part) {
  rank_random draws{options.seed};
  const random_scope scope{draws};
  recurrent net;
  auto with = net.configure_optimizers();
  auto& optimizer = *with.all().at(0).optimizer;
  const data_layout layout{data.table().size(), options.ranks, options.batch_size};
  std::int64_t steps = 0;
  for (std::int64_t epoch = 0; steps < *options.max_steps; ++epoch) {
    const auto order = torch::tensor(permutation(options.seed, epoch, layout.size));
    for (std::int64_t b = 0; b < layout.batches() && steps < *options.max_steps; ++b, ++steps) {
      const auto at = order.narrow(0, layout.of_batch(b).first, layout.samples(b, b));
      const auto x = data.table().inputs.index_select(0, at);
      const auto y = data.table().targets.index_select(0, at);
      recurrent::state kept;
      for (std::int64_t first = 0; first < time_steps; first += part) {
        const auto last = std::min(first + part, time_steps);
        optimizer.zero_grad();
        const auto [loss, after] = net.pass(x.slice(1, first, last), y.slice(1, first, last), kept);
        loss.backward();
        optimizer.step();
        kept = std::tuple{std::get<0>(*after).detach(), std::get<1>(*after).detach()};
      }
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach();
  return weights;
}

trainer_options split_options(std::int32_t ranks, std::int64_t steps, std::int64_t part) {
  auto options = quick(ranks, 2, steps);
  options.truncated_bptt_steps = part;
  return options;
}

std::string refusal_of(const recipe_ptr& recipe, const trainer_options& options) {
  for (const auto& end : run_job({.recipe = recipe, .options = options}))
    if (const auto text = text_of(end.error); text.find("generation_closed") == std::string::npos)
      return text;
  return {};
}

template <class Module>
recipe_ptr recipe_with(std::int64_t samples = 9) {
  return make_recipe([] { return std::make_shared<Module>(); },
                     std::make_shared<sequences>(samples));
}

}  // namespace

TEST_CASE("training in parts of time: the weights are those of a plain loop over the parts") {
  const auto ranks = GENERATE(1, 2, 3);
  const auto part = GENERATE(1, 4, 10, 25);
  // The last batch of an epoch has one sample, so other ranks have none.
  const auto data = std::make_shared<sequences>(4 * ranks + 1);
  const auto options = split_options(ranks, 7, part);
  CAPTURE(ranks, part);
  const auto ends = run_good_job({.recipe = recipe_for<recurrent>(data), .options = options});
  CHECK(distance(weights_of(ends[0].snapshot), looped(options, *data, part)) < 1e-5);
  CHECK(ends[0].loop.steps == 7);  // the parts of a batch are one step
  if (part < time_steps)
    CHECK(distance(weights_of(ends[0].snapshot), looped(options, *data, time_steps)) > 1e-3);
}

TEST_CASE("a module's own truncated_bptt_steps overrides the option") {
  const auto data = std::make_shared<sequences>(8);
  const auto options = split_options(2, 4, 7);
  const auto weights = trained<recurrent>(options, data, std::int64_t{4});
  CHECK(distance(weights, looped(options, *data, 4)) < 1e-6);
}

TEST_CASE("the first part of a batch gets no hiddens, later ones get them detached") {
  struct curious : recurrent {
    step_output training_step(const batch& b, std::int64_t index) override {
      expect(hiddens().empty() == (at().split == 0));
      for (const auto& tensor : tensors_of(hiddens())) expect(!tensor.requires_grad());
      seen.push_back(b[0].size(1));
      draws.push_back(torch::rand({1}).item<double>());
      return recurrent::training_step(b, index);
    }
    void on_train_end() override {
      expect(seen == std::vector<std::int64_t>{4, 4, 2, 4, 4, 2});
      expect(std::set(draws.begin(), draws.end()).size() == draws.size());
      expect(hiddens().empty());
    }
    std::vector<std::int64_t> seen;
    std::vector<double> draws;  // of dropout, for example
  };
  run_good_job({.recipe = recipe_with<curious>(), .options = split_options(1, 2, 4)});
}

TEST_CASE("an optimizer that runs its closure again gets the same hiddens in each call") {
  struct repeated : recurrent {
    step_output training_step(const batch& b, std::int64_t index) override {
      const auto before = hiddens().empty() ? at::Tensor{} : tensors_of(hiddens()).front();
      if (at().split == split && split > 0) {
        ++repeats;
        expect(before.defined());
        expect(before.is_same(last));
      }
      split = at().split;
      last = before;
      return recurrent::training_step(b, index);
    }
    optimizers configure_optimizers() override {
      return torch::optim::LBFGS(parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
    }
    void on_train_end() override { expect(repeats > 2); }
    int repeats = 0;
    std::int32_t split = -1;
    at::Tensor last;
  };
  run_good_job({.recipe = recipe_with<repeated>(), .options = split_options(1, 2, 4)});
}

TEST_CASE("two optimizers: each has its step in each part, with the hiddens of the part before") {
  struct shared : recurrent {
    optimizers configure_optimizers() override {
      return optimizers{torch::optim::SGD(lstm->parameters(), 0.1)}.add(
          torch::optim::SGD(head->parameters(), 0.1));
    }
    void on_before_optimizer_step(torch::optim::Optimizer&) override {
      seen.emplace_back(at().split, at().optimizer);
      expect(hiddens().empty() == (at().split == 0));
    }
    void on_train_end() override {
      using pairs = std::vector<std::pair<std::int32_t, std::int32_t>>;
      expect(seen == pairs{{0, 0}, {0, 1}, {1, 0}, {1, 1}});
    }
    std::vector<std::pair<std::int32_t, std::int32_t>> seen;
  };
  run_good_job({.recipe = recipe_with<shared>(), .options = split_options(1, 1, 5)});
}

TEST_CASE("a fit in parts of time that is resumed within an epoch ends in the same bits") {
  const auto options = split_options(2, 7, 4);  // 3 steps per epoch
  const auto whole = run_good_job({.recipe = recipe_with<recurrent>(), .options = options});
  auto first = options;
  first.max_steps = 4;
  const auto half = run_good_job({.recipe = recipe_with<recurrent>(), .options = first});
  struct kept : checkpoint_io {
    snapshot held;
    explicit kept(const snapshot& from) : held(from) {}
    std::vector<checkpoint_file> encode(const snapshot&) const override { return {}; }
    std::string commit_file() const override { return "none"; }
    checkpoint_facts facts(std::span<const std::byte>, const std::string&) const override {
      return {};
    }
    snapshot read(const std::string&) const override { return held; }
    void remove(const std::string&) const override {}
    found_checkpoint latest(const std::string&) const override { return {}; }
  };
  torch_plugins plugins;
  plugins.checkpoints = std::make_shared<kept>(*half[0].snapshot);
  const auto rest =
      run_good_job({.recipe = make_recipe([] { return std::make_shared<recurrent>(); },
                                          std::make_shared<sequences>(9), plugins),
                    .options = options,
                    .resume = "here"});
  CHECK(whole[0].snapshot->weights_digest == rest[0].snapshot->weights_digest);
  CHECK(rest[0].loop == whole[0].loop);
}

TEST_CASE("truncated back-propagation: the error names the user's mistake") {
  struct forgets : recurrent {
    step_output training_step(const batch& b, std::int64_t) override {
      return pass(b[0], b[1], {}).first;
    }
  };
  CHECK_THAT(refusal_of(recipe_with<forgets>(), split_options(2, 1, 4)),
             Catch::Contains("return a map with \"loss\" and \"hiddens\""));
  CHECK_THAT(refusal_of(recipe_with<recurrent>(), split_options(2, 1, 0)),
             Catch::Contains("returned hiddens, but batches are not split in time"));
  struct uneven : recurrent {
    std::vector<value> tbptt_split_batch(const value& whole, std::int64_t steps) override {
      return split_in_time(whole, steps + rank() * 3);
    }
  };
  CHECK_THAT(refusal_of(recipe_with<uneven>(), split_options(2, 1, 4)),
             Catch::Contains("different numbers of parts in time (3, 2, by rank"));
  struct none : recurrent {
    std::vector<value> tbptt_split_batch(const value&, std::int64_t) override { return {}; }
  };
  CHECK_THAT(refusal_of(recipe_with<none>(), split_options(1, 1, 4)),
             Catch::Contains("tbptt_split_batch returned no part"));
  struct negative : recurrent {
    negative() : recurrent(-3) {}
  };
  CHECK_THAT(refusal_of(recipe_with<negative>(), split_options(1, 1, 0)),
             Catch::Contains("truncated_bptt_steps returned -3"));
  struct own_length : recurrent {
    own_length() : recurrent(4) {}
  };
  auto accumulates = split_options(2, 1, 0);
  accumulates.accumulate_grad_batches = 2;
  CHECK_THAT(refusal_of(recipe_with<own_length>(), accumulates),
             Catch::Contains("accumulate_grad_batches must be 1, not 2"));
}

// --- the default split ---------------------------------------------------------------------------

namespace {

value column(std::int64_t samples, std::int64_t steps) {
  return boxed(torch::arange(samples * steps).view({samples, steps}));
}

bool same(const value& a, const at::Tensor& b) { return unboxed(a).equal(b); }

std::string split_refusal(const value& whole) {
  try {
    split_in_time(whole, 2);
  } catch (const user_error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("split_in_time: tensors along dimension 1, sequences in their elements, kinds kept") {
  const value ragged = value_list{{column(3, 2), column(3, 2)}};  // two samples of three steps
  const value words = value_tuple{{value_list{{1, 2, 3}}, value_list{{4, 5, 6}}}};
  const value whole = value_tuple{{column(2, 3), ragged, words, "name", 7}};
  const auto parts = split_in_time(whole, 2);
  REQUIRE(parts.size() == 2);
  const auto& first = parts[0].get_if<value_tuple>()->items;
  const auto& last = parts[1].get_if<value_tuple>()->items;
  CHECK(same(first[0], torch::tensor({{0, 1}, {3, 4}})));
  CHECK(same(last[0], torch::tensor({{2}, {5}})));
  CHECK(same(first[1].get_if<value_list>()->items[1], torch::tensor({{0, 1}, {2, 3}})));
  CHECK(same(last[1].get_if<value_list>()->items[1], torch::tensor({{4, 5}})));
  CHECK(first[2] == value{value_tuple{{value_list{{1, 2}}, value_list{{4, 5}}}}});
  CHECK(last[2] == value{value_tuple{{value_list{{3}}, value_list{{6}}}}});
  CHECK(last[3] == value{"name"});
  CHECK(last[4] == value{7});
}

TEST_CASE("split_in_time: a map keeps its keys, a single tensor stays one") {
  value_map map;
  map.items = {{"x", column(2, 4)}, {"id", value{3}}};
  const auto parts = split_in_time(map, 3);
  REQUIRE(parts.size() == 2);
  CHECK(same(parts[1].get_if<value_map>()->items.at("x"), torch::tensor({{3}, {7}})));
  CHECK(parts[1].get_if<value_map>()->items.at("id") == value{3});
  CHECK(same(split_in_time(column(2, 4), 3)[1], torch::tensor({{3}, {7}})));
}

TEST_CASE("split_in_time: values without time, or with different lengths, are refused") {
  CHECK(split_refusal(boxed(torch::ones({3}))) ==
        "tbptt_split_batch: a tensor of 1 dimensions has no time in dimension 1: give it one, or "
        "override tbptt_split_batch");
  CHECK_THAT(split_refusal(value_tuple{{column(2, 3), column(2, 4)}}),
             Catch::Contains("have 3 and 4 steps in time"));
  CHECK_THAT(split_refusal(value_tuple{{"a", 1}}), Catch::Contains("has no steps in time"));
  CHECK_THAT(split_refusal(boxed(torch::ones({2, 0, 3}))), Catch::Contains("no steps in time"));
  CHECK_THAT(split_refusal(value_list{{value_list{{column(3, 1), column(2, 1)}}}}),
             Catch::Contains("differ in length"));
  CHECK_THAT(split_refusal(value_list{{value_list{{1, 2}}}}),
             Catch::Contains("is no sequence in time"));
}

namespace {

/// Trains each batch twice, as two parts of it. `fails`: an exception in the second part.
struct in_parts : regression {
  explicit in_parts(std::shared_ptr<std::atomic<bool>> fails = nullptr)
      : regression({.dropout = 0.2}), fails_(std::move(fails)) {}
  std::int64_t truncated_bptt_steps() const override { return 2; }
  std::vector<value> tbptt_split_batch(const value& whole, std::int64_t) override {
    return {whole, whole};
  }
  step_output training_step(const batch& b, std::int64_t index) override {
    if (fails_ && rank() == 1 && at().split == 1 && at().step == 2 && fails_->exchange(false))
      throw std::runtime_error("injected");
    const auto loss = regression::training_step(b, index).loss();
    return std::map<std::string, at::Tensor>{{"loss", loss}, {"hiddens", loss}};
  }
  std::shared_ptr<std::atomic<bool>> fails_;
};

}  // namespace

TEST_CASE("a failure before the first part of a batch: the job ends with the same bits",
          "[recovery]") {
  const auto recipe =
      make_recipe([] { return std::make_shared<in_parts>(); }, std::make_shared<table_data>(40));
  const auto undisturbed = run_recovering(recipe, quick(3, 4, 6));
  for (const auto* hook : {"batch_to_device", "on_train_batch_start", "tbptt_split_batch"})
    for (const bool lost : {true, false}) {
      CAPTURE(hook, lost);
      const injected failure{.rank = 1, .hook = hook, .step = 3, .lost = lost};
      const auto now = run_recovering(recipe, quick(3, 4, 6), &failure);
      check_same(now, undisturbed);
      CHECK(now.generations == 2);
    }
}

TEST_CASE("an abort between two parts of a batch leaves no rank with a state", "[recovery]") {
  const auto fails = std::make_shared<std::atomic<bool>>(true);
  const auto recipe = make_recipe([=] { return std::make_shared<in_parts>(fails); },
                                  std::make_shared<table_data>(40));
  const injected failure{.rank = 1};
  CHECK_THROWS_WITH(run_recovering(recipe, quick(3, 4, 9), &failure), "no rank holds a point");
  CHECK(run_recovering(recipe, quick(3, 4, 9)).generations == 1);
}
