// Goal: observers learn of each collective that a lane calls, once, with its size and its time.
#include "backends/announcing_communicator.hpp"
#include "backends/solo_communicator.hpp"
#include "troupe/communicator.hpp"
#include "troupe/learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

std::shared_ptr<communicator> alone() {
  return solo_communicator({job_id{1}, generation_id{4}, 0, 1, std::chrono::seconds{1}});
}

struct reported {
  std::vector<seen::collective> all;
  std::chrono::nanoseconds now{0};
  std::shared_ptr<communicator> inner = alone();
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

namespace {

/// A communicator of one rank for memory of devices.
struct of_devices : forwarding_communicator, device_collectives {
  using forwarding_communicator::forwarding_communicator;
  std::string_view memory_of() const override { return "some"; }
  communicator& on_host() override { return *host; }
  work_ptr all_reduce(buffer, reduction, const subgroup&) override {
    return std::make_shared<on_its_way>();
  }
  struct point : device_event {
    bool done() const override { return false; }
    void wait() const override {}
  };
  struct on_its_way : work {
    work_result poll() override { return {}; }
    void wait() override {}
    device_event_ptr on_device() override { return std::make_shared<point>(); }
  };
  std::shared_ptr<communicator> host = alone();
};

}  // namespace

TEST_CASE("a communicator of devices that is announced carries their memory, and the host's") {
  std::vector<seen::collective> all;
  const auto inner = std::make_shared<of_devices>(alone());
  const auto world = announcing(
      inner, [] { return std::chrono::nanoseconds{0}; },
      [&](seen::collective what) { all.push_back(std::move(what)); });
  REQUIRE(carries(*world, "some"));
  const auto host = host_collectives(world);
  REQUIRE(host != world);
  host->barrier("ready")->wait();
  CHECK(world->all_reduce({nullptr, 0, dtype::f32}, reduction::sum)->on_device());
  REQUIRE(all.size() == 2);
  CHECK(all[0].kind == collective_kind::barrier);
  CHECK(all[1].kind == collective_kind::all_reduce);
  CHECK(all[1].number == 2);  // after the one on the host
  const auto plain = announcing(inner->host, {}, {});
  CHECK_FALSE(carries(*plain, "some"));
  CHECK(host_collectives(plain) == plain);
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

TEST_CASE("a lane that cannot wait asks again: its vote and its sum are reported once") {
  struct later : forwarding_communicator {
    using forwarding_communicator::forwarding_communicator;
    struct third_time : work {
      work_result poll() override { return {}; }
      void wait() override {
        if (++asked < 3) throw not_yet{};
      }
      int asked = 0;
    };
    work_ptr all_reduce(buffer, reduction, const subgroup&) override {
      return std::make_shared<third_time>();
    }
    bool decide(bool yes, decision, const subgroup&) override {
      vote.wait();
      return yes;
    }
    third_time vote;
  };
  std::vector<seen::collective> all;
  std::chrono::nanoseconds now{0};
  announcing_communicator world{std::make_shared<later>(alone()),
                                [&] { return now += std::chrono::nanoseconds{10}; },
                                [&](seen::collective what) { all.push_back(std::move(what)); }};
  const auto asked = [](auto ask) {
    CHECK_THROWS_AS(ask(), not_yet);
    CHECK_THROWS_AS(ask(), not_yet);
    ask();
  };
  bool agreed = false;
  asked([&] { agreed = world.decide(true, decision::all, {}); });
  CHECK(agreed);
  const auto sum = world.all_reduce({nullptr, 0, dtype::f32}, reduction::sum, {});
  asked([&] { sum->wait(); });
  REQUIRE(all.size() == 2);
  for (const auto& one : all) {
    CHECK_FALSE(one.failed);
    CHECK(one.took == std::chrono::nanoseconds{10});
  }
  CHECK(all[0].kind == collective_kind::decide);
  CHECK(all[0].number == 1);
  CHECK(all[1].number == 2);
}
