// Goal: a program that does not call run_rank_if_child starts no processes. The main of this
// program does not call it. And a job with more ranks than a communicator carries.
#include <boost/asio/io_context.hpp>

#include "actors/job_check.hpp"
#include "tests/support/integer_learner.hpp"
#include "troupe/session.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("more ranks than a communicator between processes carries: auto takes the next one") {
  struct kind : rendezvous_kind {
    kind(std::string_view name, std::int32_t most) : name_(name), most_(most) {}
    std::string_view name() const override { return name_; }
    std::string unusable() const override { return {}; }
    std::int32_t most_ranks() const override { return most_; }
    std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override { return {}; }
    std::shared_ptr<communicator_backend> join(const std::string&,
                                               const std::vector<int>&) const override {
      return {};
    }
    std::string_view name_;
    std::int32_t most_;
  };
  ports world;
  world.rendezvous_kinds = {std::make_shared<kind>("small", 256),
                            std::make_shared<kind>("large", 4096)};
  CHECK(choose_rendezvous(world, "auto", 256)->name() == "small");
  CHECK(choose_rendezvous(world, "auto", 257)->name() == "large");
  CHECK_THROWS_WITH(choose_rendezvous(world, "small", 257),
                    Catch::Contains("256 ranks (shards) at most, and the job has 257") &&
                        Catch::Contains("--communicator tcp"));
}

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
