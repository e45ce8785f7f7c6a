// Goal: observers learn of each collective that a lane calls, once, with its size and its time.
#include "backends/announcing_communicator.hpp"
#include "backends/solo_communicator.hpp"
#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

struct reported {
  std::vector<seen::collective> all;
  std::chrono::nanoseconds now{0};
  std::shared_ptr<communicator> inner =
      solo_communicator({job_id{1}, generation_id{4}, 0, 1, std::chrono::seconds{1}});
  announcing_communicator announcing{
      inner, [this] { return now += std::chrono::nanoseconds{10}; },
      [this](seen::collective what) { all.push_back(std::move(what)); }};
  communicator& world = announcing;
};

}  // namespace

TEST_CASE("each collective is reported once with its kind, its bytes and its time") {
  reported t;
  std::vector<float> data(8), more(8);
  const buffer in{data.data(), data.size(), dtype::f32};
  const buffer out{more.data(), more.size(), dtype::f32};
  const auto work = t.world.all_reduce(in, reduction::sum);
  CHECK(t.all.empty());  // the lane has not waited yet
  work->wait();
  work->wait();
  work->poll();
  t.world.broadcast(in, 0)->wait();
  t.world.all_gather(in, out)->wait();
  t.world.reduce_scatter(in, out, reduction::sum)->wait();
  t.world.barrier("pre_setup")->poll();
  CHECK(t.world.decide(true, decision::all));
  t.world.all_reduce(in, reduction::sum, subgroup{{0}})->wait();
  const std::vector<collective_kind> kinds{
      collective_kind::all_reduce,     collective_kind::broadcast, collective_kind::all_gather,
      collective_kind::reduce_scatter, collective_kind::barrier,   collective_kind::decide,
      collective_kind::all_reduce};
  REQUIRE(t.all.size() == kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CHECK(t.all[i].kind == kinds[i]);
    CHECK(t.all[i].generation == 4);
    CHECK(t.all[i].number == (i < 6 ? i + 1 : 0));  // the last one is of a subgroup
    CHECK(t.all[i].took == std::chrono::nanoseconds{10});
    CHECK_FALSE(t.all[i].failed);
  }
  CHECK(t.all[0].bytes == 32);
  CHECK(t.all[4].label == "pre_setup");
}

TEST_CASE("a collective of an aborted group is reported as failed") {
  reported t;
  float x = 0;
  t.world.abort("another rank failed");
  CHECK_THROWS_AS(t.world.all_reduce({&x, 1, dtype::f32}, reduction::sum)->wait(),
                  generation_closed);
  REQUIRE(t.all.size() == 1);
  CHECK(t.all[0].failed);
  CHECK_THROWS_AS(t.world.decide(true, decision::all), generation_closed);
  REQUIRE(t.all.size() == 2);
  CHECK(t.all[1].failed);
}
