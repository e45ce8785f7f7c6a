// Goal: the snippets of docs/callbacks.md compile, and do in real jobs what the page says.
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/unit/torch_strategy/small_models.hpp"
#include "troupe/callbacks.hpp"
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
