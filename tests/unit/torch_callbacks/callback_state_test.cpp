// Goal: the states of callbacks are saved with checkpoints, loaded by a resumed fit, and exact in
// jobs that lose ranks.
#include <mutex>

#include "tests/unit/torch_callbacks/listeners.hpp"
#include "tests/unit/torch_callbacks/resumed.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "troupe/callbacks.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// What the ranks' callbacks end with, by rank.
struct last_states {
  std::mutex guard;
  std::map<std::int32_t, std::string> by_rank;
};

/// Counts batches that began and ended; sums the steps in a tensor.
struct counts : callback {
  explicit counts(std::shared_ptr<last_states> last = nullptr) : last_(std::move(last)) {}
  std::string state_key() const override { return "counts"; }
  bool reads_gradients() const override { return false; }
  void on_train_batch_start(module& m, const batch&, std::int64_t) override {
    ++began_;
    m.log("began", static_cast<double>(began_), {.reduce = log_reduction::max});
  }
  void on_train_batch_end(module& m, const step_output&, const batch&, std::int64_t) override {
    ++ended_;
    steps_ += m.at().step;
  }
  void on_validation_start(module&) override { ++ended_; }
  void on_train_end(module& m) override {
    if (!last_) return;
    const std::lock_guard lock{last_->guard};
    last_->by_rank[m.rank()] = text();
  }
  std::string text() const {
    return "[" + std::to_string(began_) + "," + std::to_string(ended_) + "," +
           std::to_string(steps_.item<std::int64_t>()) + "]";
  }
  callback_state save_state() const override {
    return {.json = text(), .tensors = {{"steps", steps_}}};
  }
  void load_state(module&, const callback_state& from) override {
    if (std::sscanf(from.json.c_str(), "[%d,%d,", &began_, &ended_) != 2)
      throw std::runtime_error("not a state: " + from.json);
    steps_ = from.tensors.at("steps");
  }

private:
  std::shared_ptr<last_states> last_;
  int began_ = 0;
  int ended_ = 0;
  at::Tensor steps_ = at::zeros({}, at::kLong);
};

torch_plugins with(std::vector<callback_factory> callbacks) {
  torch_plugins plugins;
  plugins.callbacks = std::move(callbacks);
  return plugins;
}

// Each copy begins with a tensor of its own.
callback_factory counting(std::shared_ptr<last_states> last = nullptr) {
  return [=] { return std::make_shared<counts>(last); };
}

}  // namespace

TEST_CASE("a resumed fit goes on with the states of its callbacks") {
  const data_ptr data = std::make_shared<table_data>(30, 4, 8);
  const auto options = quick(2, 3, 13);  // 5 steps per epoch
  const auto whole = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = options});
  const auto cut = GENERATE(3, 5, 8);
  const auto last = std::make_shared<last_states>();
  const auto half = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = until(options, cut)});
  const auto rest = resumed<regression>(half[0].snapshot, with({counting(last)}), data, options);
  CAPTURE(cut);
  CHECK(whole[0].snapshot->state == rest[0].snapshot->state);
  CHECK(whole[0].snapshot->state.find("counts") != std::string::npos);
  CHECK(bytes_of(whole[0].snapshot->optimizer) == bytes_of(rest[0].snapshot->optimizer));
  REQUIRE(last->by_rank.size() == 2);  // 13 batches and 2 validations, 1 + ... + 13
  for (const auto& [rank, text] : last->by_rank) CHECK(text == "[13,15,91]");
}

TEST_CASE("a fit resumes with other callbacks than its checkpoint was made with") {
  const data_ptr data = std::make_shared<table_data>(30);
  const auto options = quick(2, 3, 8);
  const auto with_state = run_good_job(
      {.recipe = recipe_for<regression>(with({counting()}), data), .options = until(options, 4)});
  const auto without = resumed<regression>(with_state[0].snapshot, {}, data, options);
  CHECK(without[0].snapshot->state.find("counts") == std::string::npos);
  for (const auto& blob : without[0].snapshot->optimizer)
    CHECK_FALSE(blob.name.starts_with("callbacks/"));
  const auto last = std::make_shared<last_states>();
  resumed<regression>(until_step<regression>(data, options, 4), with({counting(last)}), data,
                      options);
  CHECK(last->by_rank.at(0) == "[4,4,26]");  // new, from step 5 on
}

TEST_CASE("two callbacks with states under one key are a user_error that names it") {
  const auto ends =
      run_job({.recipe = recipe_for<regression>(with({counting(), counting()}),
                                                data_ptr{std::make_shared<table_data>(16)}),
               .options = quick(2, 4, 2)});
  CHECK_THAT(text_of(ends[0].error), Catch::Contains("another callback has a state under the key "
                                                     "counts, too: override state_key"));
}

// --- jobs that lose ranks ------------------------------------------------------------------------

namespace {

recovered_job recovering(const std::vector<callback_factory>& callbacks,
                         const injected* failure = nullptr) {
  auto options = quick(3, 4, 9);  // epochs of 4 steps, with a validation
  options.log_every_n_steps = 1;
  return run_recovering(
      recipe_for<regression>(with(callbacks), data_ptr{std::make_shared<table_data>(42, 4, 6)}),
      options, failure);
}

constexpr const char* hooks_of_a_step[] = {
    "batch_to_device", "on_train_batch_start", "optimizer_step",    "training_step",
    "backward",        "on_after_backward",    "on_train_batch_end"};

}  // namespace

TEST_CASE("a failure in any hook of a step: the callbacks' states are exact", "[recovery]") {
  const auto states = std::make_shared<last_states>();
  const auto undisturbed = recovering({counting(states)});
  REQUIRE(states->by_rank == std::map<std::int32_t, std::string>{
                                 {0, "[9,11,45]"}, {1, "[9,11,45]"}, {2, "[9,11,45]"}});
  const auto expected = states->by_rank;
  for (const auto* hook : hooks_of_a_step)
    for (const bool lost : {true, false}) {
      CAPTURE(hook, lost);
      states->by_rank.clear();
      const injected failure{.rank = 1, .hook = hook, .step = 3, .lost = lost};
      const auto now = recovering({counting(states)}, &failure);
      CHECK(states->by_rank == expected);
      CHECK(now.digest == undisturbed.digest);
      CHECK(now.generations == 2);
      // The failing rank's callback has not seen the end of its step.
      const bool behind = std::string_view{hook} == "on_train_batch_end";
      CHECK(now.survivors_with_state == (lost || behind ? 2 : 3));
    }
}

TEST_CASE("a rank is lost in a validation: the callbacks' states are exact", "[recovery]") {
  const auto states = std::make_shared<last_states>();
  recovering({counting(states)});
  const auto expected = states->by_rank;
  for (const auto* hook :
       {"on_train_epoch_end", "on_validation_start", "validation_step", "on_train_epoch_start"}) {
    CAPTURE(hook);
    states->by_rank.clear();
    const injected failure{.rank = 0, .hook = hook, .step = 4};
    CHECK(recovering({counting(states)}, &failure).generations == 2);
    CHECK(states->by_rank == expected);
  }
}

TEST_CASE("a job with averaged weights that loses a rank ends in the same bits", "[recovery]") {
  const std::vector<callback_factory> callbacks{exponential_moving_average{{.decay = 0.8}}};
  const auto undisturbed = recovering(callbacks);
  CHECK(undisturbed.rows != recovering({}).rows);  // the validations' values differ
  for (const auto* hook : {"training_step", "on_train_batch_end", "on_validation_start",
                           "validation_step", "on_validation_epoch_end", "on_save_checkpoint"})
    for (const std::int32_t rank : {0, 1}) {
      CAPTURE(hook, rank);
      const injected failure{.rank = rank, .hook = hook, .step = 4};
      const auto now = recovering(callbacks, &failure);
      CHECK(now.digest == undisturbed.digest);
      CHECK(now.rows == undisturbed.rows);
      CHECK(now.survivors_with_state == 2);
    }
}
