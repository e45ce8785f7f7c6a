// Goal: a trainer takes what a session takes: ports, plug-ins by name, observers and events.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <future>

#include "tests/support/integer_learner.hpp"
#include "tests/support/temporary_folder.hpp"
#include "troupe/session.hpp"
#include "troupe/trainer.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;

namespace {

// A communicator of the program's own: it counts its handles.
class counting_backend : public communicator_backend {
public:
  explicit counting_backend(std::shared_ptr<communicator_backend> inner)
      : inner_(std::move(inner)) {}
  std::string_view name() const override { return "counting"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description& group) override {
    ++opened;
    return inner_->open(group);
  }
  std::atomic<int> opened = 0;

private:
  std::shared_ptr<communicator_backend> inner_;
};

class life_observer : public observer {
public:
  explicit life_observer(std::shared_ptr<std::vector<lifecycle_kind>> seen)
      : seen_(std::move(seen)) {}
  void on(const observation& what) override {
    if (const auto* life = std::get_if<seen::lifecycle>(&what)) seen_->push_back(life->event);
  }

private:
  std::shared_ptr<std::vector<lifecycle_kind>> seen_;
};

recipe_ptr integers() {
  return std::make_shared<integer_recipe>(integer_options{.can_wait = true});
}

}  // namespace

TEST_CASE("a trainer's jobs use its ports and reach its observers and its event stream") {
  asio::io_context loop;
  auto world = local_ports();
  const auto own = std::make_shared<counting_backend>(world.communicators.front());
  world.communicators = {own};
  const auto seen = std::make_shared<std::vector<lifecycle_kind>>();
  const auto events = std::make_shared<event_stream>(loop.get_executor());
  trainer t{
      {.ranks = 2, .max_epochs = 1, .batch_size = 2, .communicator = own_name{"counting"}},
      {.observers = {[=] { return std::make_unique<life_observer>(seen); }}, .events = events},
      world};

  CHECK(t.run(stage::train, integers()).ok());
  CHECK(own->opened == 2);
  REQUIRE_FALSE(seen->empty());
  CHECK(seen->back() == lifecycle_kind::job_ended);
  auto first = events->async_next(asio::use_future);
  loop.run();
  REQUIRE(first.get());

  // The stream has followed the first job; the second one runs without it.
  seen->clear();
  CHECK(t.context().events == nullptr);
  CHECK(t.run(stage::train, integers()).ok());
  CHECK(own->opened == 4);
  CHECK_FALSE(seen->empty());
}

TEST_CASE("a communicator that the trainer's ports lack is refused by its name") {
  trainer t{{.ranks = 2, .communicator = own_name{"counting"}}};
  const auto outcome = t.run(stage::train, integers());
  REQUIRE(outcome.failed_with);
  CHECK_THAT(outcome.failed_with->record.what,
             Catch::Contains("there is no communicator \"counting\""));
}

TEST_CASE("resume or initial is set after a fit: the trainer evaluates that") {
  const temporary_folder folder;
  const auto world = local_ports();
  std::vector<std::string> loaded;
  snapshot_ptr initial;
  integer_options options{.can_wait = true};
  options.load = [&](const std::string& path) {
    loaded.push_back(path);
    return world.checkpoints->read(path);
  };
  options.at_hook = [&](const learner_context& who, const hook&) { initial = who.initial; };
  const auto recipe = std::make_shared<integer_recipe>(std::move(options));
  trainer t{{.ranks = 1, .max_epochs = 1, .batch_size = 2},
            {.run_folder = (folder.path() / "run").string()},
            world};
  const auto fitted = t.run(stage::train, recipe);
  REQUIRE(fitted.ok());
  CHECK(t.run(stage::test, recipe).ok());
  CHECK(loaded.empty());
  CHECK(initial == fitted.weights);

  t.context().resume = fitted.last_checkpoint;
  CHECK(t.run(stage::test, recipe).ok());
  CHECK(loaded == std::vector{fitted.last_checkpoint});
  CHECK(initial == nullptr);

  t.context().resume.reset();
  const auto other = std::make_shared<const snapshot>(*fitted.weights);
  t.context().initial = other;
  CHECK(t.run(stage::test, recipe).ok());
  CHECK(initial == other);
}
