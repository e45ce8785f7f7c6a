// Goal: the caller gets the exception of the failure that the record describes, also when another
// failure of the same rank has the same text.
#include <boost/asio/io_context.hpp>
#include <future>

#include "actors/supervisor.hpp"
#include "tests/support/integer_learner.hpp"
#include "troupe/ports.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;
namespace asio = boost::asio;

namespace {

struct numbered : std::runtime_error {
  explicit numbered(int number) : std::runtime_error("disk full"), which(number) {}
  int which;
};

struct failing_rank {
  static constexpr const char* name = "failing_rank";
};
using failing_pointer = rank_actor::stateful_pointer<failing_rank>;

rank_failed report_of(const fence& at, int which) {
  const auto error = std::make_exception_ptr(numbered(which));
  auto record = describe(error);
  record.id = {at.incarnation, static_cast<std::uint64_t>(which)};
  record.rank = 0;
  record.generation = at.generation.value();
  record.hook = "backward";
  return {at, std::make_shared<const caught>(caught{std::move(record), error})};
}

// A rank that fails twice with the same text and reports each failure twice.
rank_actor fail_twice(caf::actor_system& system, actor_error_handler trouble, rank_setup setup) {
  const auto supervisor = setup.supervisor;
  return seam::spawn<rank_actor, failing_rank>(
      system, std::move(trouble), [=](failing_pointer self) -> seam::one_way_handlers<rank_actor> {
        return {
            [=](const form_generation& m) { self->send(supervisor, prepared{m.at}); },
            [=](const activate_generation& m) {
              for (const auto which : {1, 2, 1, 2}) self->send(supervisor, report_of(m.at, which));
            },
            [](const propose_stop&) {},
            [](const stop_at&) {},
            [=](const close_generation& m) {
              self->send(supervisor, closed_generation{.at = m.at, .last = m.last});
            },
            [=](const tear_down& m) {
              self->send(supervisor, torn_down{m.at, {}, {}});
              self->quit();
            },
            [](const lane_answered&) {},
            [](const lane_closed&) {},
            [](tick) {},
        };
      });
}

}  // namespace

TEST_CASE("two failures with equal texts: the caller gets the exception of the first one",
          "[failures]") {
  std::promise<job_outcome> done;
  supervisor_setup setup;
  setup.id = job_id{1};
  setup.what.options.ranks = 1;
  setup.what.recipe = std::make_shared<integer_recipe>(integer_options{});
  setup.world = local_ports();
  setup.bring_rank = fail_twice;
  setup.complete = [&done](job_outcome o) { done.set_value(std::move(o)); };
  seam::system_config config(2);
  caf::actor_system system(config);
  caf::anon_send(spawn_supervisor(system, std::move(setup)), begin_job{});
  const auto outcome = done.get_future().get();
  REQUIRE_FALSE(outcome.ok());
  const auto& first = outcome.failed_with->record;
  CHECK(first.id.sequence == 1);
  CHECK(first.others.size() == 1);
  try {
    outcome.rethrow();
    FAIL("nothing was thrown");
  } catch (const numbered& error) {
    CHECK(error.which == 1);
  }
}

TEST_CASE("on_exception throws the same text: the first cause keeps its own exception",
          "[failures]") {
  asio::io_context loop;
  session s{loop.get_executor()};
  integer_options options;
  options.can_wait = true;
  options.at_hook = [](const learner_context&, const hook& h) {
    if (name(h) == "backward") throw numbered(1);
    if (name(h) == "on_exception") throw numbered(2);
  };
  job what;
  what.options.ranks = 1;
  what.options.batch_size = 2;
  what.recipe = std::make_shared<integer_recipe>(std::move(options));
  const auto outcome = s.run(what);
  REQUIRE_FALSE(outcome.ok());
  const auto& first = outcome.failed_with->record;
  CHECK(first.hook == "backward");
  CHECK(first.id.sequence == 1);
  REQUIRE(first.others.size() == 1);
  CHECK(first.others[0].hook == "on_exception");
  CHECK(first.others[0].id == failure_id{first.id.incarnation, 2});
  try {
    outcome.rethrow();
  } catch (const numbered& error) {
    CHECK(error.which == 1);
  }
}
