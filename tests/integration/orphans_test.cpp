// Goal: ranks end when their supervisor is gone, which only a defect can cause.
#include <caf/actor_cast.hpp>
#include <caf/scoped_actor.hpp>

#include <future>

#include "actors/rank.hpp"
#include "actors/supervisor.hpp"
#include "tests/support/integer_learner.hpp"
#include "troupe/ports.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("ranks end when their supervisor ends before them", "[failures]") {
  constexpr std::int32_t ranks = 3;
  std::promise<void> reached, opened;
  std::vector<caf::actor> started;
  integer_options options;
  options.can_wait = true;
  options.at_hook = [&, gate = opened.get_future().share()](const learner_context& c,
                                                            const hook& h) {
    if (c.rank != 0 || name(h) != "on_fit_start") return;
    reached.set_value();
    gate.wait();
  };
  supervisor_setup setup;
  setup.id = job_id{1};
  setup.what.options.ranks = ranks;
  setup.what.recipe = std::make_shared<integer_recipe>(std::move(options));
  setup.world = local_ports();
  setup.bring_rank = [&](caf::actor_system& system, actor_error_handler trouble, rank_setup given) {
    auto rank = spawn_rank(system, std::move(trouble), std::move(given));
    started.push_back(caf::actor_cast<caf::actor>(rank));
    return rank;
  };
  setup.complete = [](job_outcome) {};
  seam::system_config config(2);
  caf::actor_system system(config);
  const auto supervisor = spawn_supervisor(system, std::move(setup));
  caf::anon_send(supervisor, begin_job{});
  reached.get_future().wait();
  REQUIRE(started.size() == ranks);
  caf::scoped_actor self{system};
  for (const auto& one : started) self->monitor(one);
  caf::anon_send_exit(supervisor, caf::exit_reason::kill);
  opened.set_value();
  std::size_t ended = 0;
  bool late = false;
  while (ended < started.size() && !late)
    self->receive([&](const caf::down_msg&) { ++ended; },
                  caf::after(std::chrono::seconds{20}) >> [&] { late = true; });
  for (const auto& one : started) caf::anon_send_exit(one, caf::exit_reason::kill);
  CHECK(ended == started.size());
}
