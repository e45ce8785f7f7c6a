// Goal: the snippets of docs/callbacks.md compile, and do in real jobs what the page says. A fit of
// a LibTorch module through the trainer writes a program's own checkpoint format, and a fit that
// resumes through that format ends in the bytes of a fit without an interruption. So does a fit on
// several datasets.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>

#include "backends/checkpoint/safetensors_io.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/torch_recovery/recovering_job.hpp"
#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
#include "troupe/datasets.hpp"
#include "troupe/session.hpp"
#include "troupe/trainer.hpp"

#include <boost/asio/system_executor.hpp>

#include "tests/support/catch.hpp"

namespace {

using classifier = troupe::testing::regression;

troupe::job_outcome train(troupe::data_ptr data) {
  using namespace std::chrono_literals;
  troupe::torch_plugins with{
      .callbacks = {troupe::learning_rate_monitor{}, troupe::timer{{.max_time = 2h}}}};
  troupe::trainer trainer{{.ranks = 2, .max_epochs = 3}};
  return trainer.fit<classifier>(with, data);
}

troupe::job averaged_job(troupe::data_ptr data) {
  troupe::torch_plugins with{.callbacks = {troupe::exponential_moving_average{{.decay = 0.99}}}};
  troupe::job job;
  job.options.ranks = 2;
  job.recipe = troupe::recipe_for<classifier>(with, data);
  return job;
}

troupe::callback_factory says_epochs(std::shared_ptr<std::vector<std::string>> into) {
  return troupe::lambda_callback{{.on_train_epoch_end = [=](troupe::module& m, std::int64_t epoch) {
    if (m.rank() == 0) into->push_back("epoch " + std::to_string(epoch));
  }}};
}

/// Ends the run when a loss is higher than `limit` for the second time.
class loss_limit : public troupe::callback {
public:
  explicit loss_limit(double limit) : limit_(limit) {}
  bool reads_gradients() const override { return false; }

  void on_train_batch_end(troupe::module& m, const troupe::step_output& output,
                          const troupe::batch&, std::int64_t) override {
    if (output.has_loss() && output.loss().item<double>() > limit_) ++higher_;
    m.log("higher", static_cast<double>(higher_), {.reduce = troupe::log_reduction::max});
    if (higher_ == 2) m.stop();
  }

  troupe::callback_state save_state() const override {
    return {.json = nlohmann::json(higher_).dump()};
  }
  void load_state(troupe::module&, const troupe::callback_state& from) override {
    higher_ = nlohmann::json::parse(from.json).get<int>();
  }

private:
  double limit_;
  int higher_ = 0;
};

}  // namespace

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("callbacks of a trainer's job log beside the module") {
  const auto outcome = train(std::make_shared<table_data>(512));
  INFO(text_of(outcome.failed_with ? outcome.failed_with->original : nullptr));
  REQUIRE(outcome.ok());
  CHECK(outcome.last.at("lr-SGD") == 0.05);
}

TEST_CASE("callbacks of a session's job change its final weights") {
  const data_ptr data = std::make_shared<table_data>(512);
  session own{boost::asio::system_executor{}};
  const auto averaged = own.run(averaged_job(data));
  REQUIRE(averaged.ok());
  auto plain = averaged_job(data);
  plain.recipe = recipe_for<classifier>(data);
  CHECK(averaged.weights->weights_digest != own.run(plain).weights->weights_digest);
}

TEST_CASE("a lambda callback and an own one take part in a job") {
  const auto said = std::make_shared<std::vector<std::string>>();
  torch_plugins with{.callbacks = {says_epochs(said), loss_limit{0}}};
  trainer t{{.ranks = 2, .max_epochs = 3, .batch_size = 8, .log_every_n_steps = 1}};
  const auto outcome = t.fit<classifier>(with, data_ptr{std::make_shared<table_data>(16)});
  REQUIRE(outcome.ok());
  CHECK(outcome.why == stop_reason::hook);
  CHECK(outcome.loop.steps == 2);
  CHECK(outcome.last.at("higher") == 2);
  CHECK(said->front() == "epoch 0");
}

// --- a program's own checkpoint format ----------------------------------------------------------

namespace {

/// The library's files with all bits inverted, which no other format can read.
class inverted : public checkpoint_io {
public:
  std::vector<checkpoint_file> encode(const snapshot& what) const override {
    ++encoded;
    auto files = inner_->encode(what);
    for (auto& file : files)
      for (auto& chunk : file.chunks)
        chunk = std::make_shared<const std::vector<std::byte>>(inverse(*chunk));
    return files;
  }
  std::string commit_file() const override { return inner_->commit_file(); }
  checkpoint_facts facts(std::span<const std::byte> commit,
                         const std::string& origin) const override {
    return inner_->facts(inverse(commit), origin);
  }
  snapshot read(const std::string& folder) const override {
    ++reads;
    const temporary_folder plain;
    const auto copy = plain.path() / std::filesystem::path{folder}.filename();
    std::filesystem::create_directory(copy);
    for (const auto& file : std::filesystem::directory_iterator{folder}) {
      auto text = read_text(file.path());
      std::ranges::transform(text, text.begin(), [](char c) { return static_cast<char>(~c); });
      write_text(copy / file.path().filename(), text);
    }
    return inner_->read(copy.string());
  }
  void remove(const std::string& folder) const override { inner_->remove(folder); }
  found_checkpoint latest(const std::string& run) const override {
    const auto checkpoints = std::filesystem::path{run} / checkpoints_folder;
    if (!std::filesystem::exists(checkpoints / latest_link))
      throw user_error(errc::checkpoint, run + " has no checkpoint");
    return {.path = std::filesystem::canonical(checkpoints / latest_link).string(), .refused = {}};
  }

  mutable std::atomic<int> encoded{0};
  mutable std::atomic<int> reads{0};

private:
  static std::vector<std::byte> inverse(std::span<const std::byte> bytes) {
    std::vector<std::byte> all{bytes.begin(), bytes.end()};
    for (auto& one : all) one = ~one;
    return all;
  }

  std::shared_ptr<const checkpoint_io> inner_ = safetensors_checkpoints({});
};

struct dropping : regression {
  dropping()
      : regression({.dropout = 0.2, .batch_norm = true, .optimize = [](regression& m) {
                      return optimizers{torch::optim::Adam(m.parameters(), 0.01)};
                    }}) {}
};

}  // namespace

TEST_CASE("a fit of the trainer writes a program's checkpoint format and resumes through it",
          "[session]") {
  const temporary_folder folder;
  const auto format = std::make_shared<inverted>();
  torch_plugins plugins;
  plugins.checkpoints = format;
  const auto data = std::make_shared<table_data>(40);
  const auto fitted = [&](std::int64_t steps, const std::string& run, const std::string& resume) {
    job_context where{.run_folder = (folder.path() / run).string()};
    if (!resume.empty()) where.resume = resume;
    auto outcome = trainer{quick(2, 4, steps), where}.fit<dropping>(plugins, data);
    outcome.rethrow();
    return outcome;
  };
  const auto digest = [&](const job_outcome& outcome) {
    return format->read(outcome.last_checkpoint).weights_digest;
  };

  const auto whole = fitted(12, "whole", "");
  const auto half = fitted(7, "parts", "");
  CHECK(format->encoded > 0);
  CHECK_THROWS_AS(safetensors_checkpoints({})->read(half.last_checkpoint), user_error);
  CHECK(digest(half) != digest(whole));
  const auto read_so_far = format->reads.load();
  const auto rest = fitted(12, "parts", "latest");
  CHECK(format->reads >= read_so_far + 2);  // once per rank
  CHECK(rest.loop == whole.loop);
  CHECK(digest(rest) == digest(whole));
}

// --- several datasets ----------------------------------------------------------------------------

namespace {

/// Trains on the members of a combined dataset, of which "more" may be missing.
struct of_both : regression {
  of_both() : regression({.dropout = 0.2}) {}
  step_output training_step(const batch& b, std::int64_t index) override {
    const auto loss = regression::training_step(part_of(b, "some"), index).loss();
    const auto more = part_of(b, "more");
    return more.empty() ? loss : loss + fn::mse_loss(net->forward(more[0]), more[1]);
  }
};

// An epoch of two ranks with batches of 4 has five steps. In them "more" begins anew once or more,
// or ends in the second one.
data_ptr both(combined_mode mode) {
  return make_data(
      {.name = "both",
       .train = combined_dataset({{.name = "some", .data = table_data(36).train()},
                                  {.name = "more", .data = table_data(37).train(), .samples = 3}},
                                 mode)});
}

}  // namespace

TEST_CASE("several datasets: resumed, failed and with fewer ranks, a fit ends in the same bytes",
          "[session]") {
  const auto data = both(GENERATE(combined_mode::max_size_cycle, combined_mode::max_size));
  const temporary_folder folder;
  const auto fitted = [&](const trainer_options& options, const std::string& run,
                          const std::string& resume = {}) {
    job_context where{.run_folder = (folder.path() / run).string()};
    if (!resume.empty()) where.resume = resume;
    auto outcome = trainer{options, where}.fit<of_both>(data);
    outcome.rethrow();
    return outcome;
  };
  const auto whole = fitted(quick(2, 4, 12), "whole");
  CHECK(whole.loop.samples == 36 + 36 + 16);
  const auto same = [&](const job_outcome& other) {
    CHECK(other.loop.samples == whole.loop.samples);
    CHECK(other.weights->weights_digest == whole.weights->weights_digest);
  };
  const auto half = fitted(quick(2, 4, 7), "parts");
  CHECK(half.weights->weights_digest != whole.weights->weights_digest);
  same(fitted(quick(2, 4, 12), "parts", "latest"));
  auto options = quick(2, 4, 12);
  options.elastic.max_restarts = 3;
  options.faults = {{.rank = 1, .hook = "backward", .step = 8}};
  const auto restarted = fitted(options, "restarted");
  CHECK(restarted.restarts == 1);
  same(restarted);
  options = quick(1, 4, 12);
  options.elastic.shards = 2;
  same(fitted(options, "one rank"));
}

TEST_CASE("several datasets: a rank is lost in any hook, and the job ends with the same bits",
          "[session]") {
  const auto recipe = recipe_for<of_both>(both(combined_mode::max_size_cycle));
  const auto options = quick(3, 2, 9);
  const auto undisturbed = run_recovering(recipe, options);
  for (const auto* hook : {"batch_to_device", "training_step", "backward", "on_train_batch_end"})
    for (const std::int64_t step : {2, 5, 6})
      for (const bool lost : {true, false}) {
        CAPTURE(hook, step, lost);
        const injected failure{.rank = 1, .hook = hook, .step = step, .lost = lost};
        const auto now = run_recovering(recipe, options, &failure);
        CHECK(now.digest == undisturbed.digest);
        CHECK(now.rows == undisturbed.rows);
      }
}
