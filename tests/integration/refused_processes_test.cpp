// Goal: a program that does not call run_rank_if_child starts no processes. The main of this
// program does not call it.
#include <boost/asio/io_context.hpp>

#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("placement processes is refused in a program without run_rank_if_child") {
  boost::asio::io_context loop;
  session s{loop.get_executor()};
  job what;
  what.options.ranks = 2;
  what.options.placement = placement_kind::processes;
  what.recipe = std::make_shared<integer_recipe>(integer_options{});
  const auto outcome = s.run(what);
  REQUIRE(outcome.failed_with);
  const auto& f = outcome.failed_with->record;
  CHECK(f.code == errc::bad_configuration);
  CHECK_THAT(f.what, Catch::Contains("main of this program does not begin with"));
  CHECK_THAT(f.what, Catch::Contains("troupe::run_rank_if_child(argc, argv, make_recipe)"));
  CHECK_THAT(f.what, Catch::Contains("placement \"threads\""));
  CHECK_THROWS_AS(outcome.rethrow(), user_error);
}
