// Goal: threads that pass one baton. Calls continue where they rested, throw to the caller, and are
// ended when they are abandoned; collectives wait by resting.
#include "backends/simulated/baton.hpp"

#include "backends/simulated/blocking_communicator.hpp"
#include "backends/simulated/fabric.hpp"
#include "troupe/learner.hpp"

#include <deque>
#include <memory>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;

TEST_CASE("a call continues where it rested, in its own thread", "[baton]") {
  std::vector<int> order;  // used by both, one at a time
  baton_thread lane;
  const auto owner = std::this_thread::get_id();
  CHECK_FALSE(lane.run([&] {
    order.push_back(1);
    CHECK(lane.inside());
    CHECK(std::this_thread::get_id() != owner);
    lane.rest();
    order.push_back(3);
    lane.rest();
    order.push_back(5);
  }));
  CHECK(lane.resting());
  CHECK_FALSE(lane.inside());
  order.push_back(2);
  CHECK_FALSE(lane.go_on());
  order.push_back(4);
  CHECK(lane.go_on());
  CHECK_FALSE(lane.resting());
  CHECK(order == std::vector<int>{1, 2, 3, 4, 5});
  CHECK(lane.run([&] { order.clear(); }));
  CHECK(order.empty());
}

TEST_CASE("an exception of a call is thrown to the owner", "[baton]") {
  baton_thread lane;
  CHECK_THROWS_AS(lane.run([] { throw std::out_of_range("far"); }), std::out_of_range);
  CHECK_FALSE(lane.run([&] {
    lane.rest();
    throw std::domain_error("later");
  }));
  CHECK_THROWS_AS(lane.go_on(), std::domain_error);
  CHECK(lane.run([] {}));
  CHECK_THROWS_AS(lane.go_on(), internal_error);  // no call rests
  CHECK_THROWS_AS(lane.rest(), internal_error);   // not from outside the thread
}

TEST_CASE("coverage points in a call report to the owner's sink", "[baton][marks]") {
  class counting final : public coverage_sink {
  public:
    bool rare(coverage_point) override { return true; }
    void hit(coverage_point) override { ++hits; }
    void broken(coverage_point) override {}
    int hits = 0;
  };
  baton_thread lane;
  counting watcher;
  const auto call = [&] {
    sometimes(rare(coverage_point::early_look), coverage_point::link_silent);
    lane.rest();
    sometimes(true, coverage_point::link_silent);
  };
  {
    const coverage_scope scope{&watcher};
    CHECK_FALSE(lane.run(call));
    CHECK(watcher.hits == 1);
    CHECK(lane.go_on());
    CHECK(watcher.hits == 2);
  }
  CHECK_FALSE(lane.run(call));  // the owner has no sink
  CHECK(lane.go_on());
  CHECK(watcher.hits == 2);
}

TEST_CASE("a call rests: a second call is refused", "[baton]") {
  baton_thread lane;
  CHECK_FALSE(lane.run([&] { lane.rest(); }));
  CHECK_THROWS_AS(lane.run([] {}), internal_error);
  CHECK(lane.go_on());
}

TEST_CASE("an abandoned call ends, however often it rests", "[baton]") {
  int thrown = 0;
  bool unwound = false;
  {
    baton_thread lane;
    CHECK_FALSE(lane.run([&] {
      const std::shared_ptr<void> guard{nullptr, [&](void*) { unwound = true; }};
      for (int i = 0; i < 3; ++i) {
        try {
          lane.rest();
        } catch (const generation_closed&) {
          ++thrown;
        }
      }
      throw std::runtime_error("never caught");
    }));
    lane.abandon();
    CHECK(unwound);
    CHECK(thrown == 3);
    CHECK(lane.run([&] { thrown = 0; }));  // a call that does not rest still runs
  }
  CHECK(thrown == 0);
  { baton_thread resting_to_its_end; }
  baton_thread another;
  CHECK_FALSE(another.run([&] { another.rest(); }));
}

namespace {

// Two lanes on one fabric without delays: events happen when no lane can run.
struct two_lanes {
  std::deque<later_call> due;
  simulated_fabric fabric{later(), [] { return std::chrono::nanoseconds{0}; }};
  std::vector<std::shared_ptr<baton_thread>> threads;
  std::vector<std::shared_ptr<communicator>> ends;

  two_lanes() {
    for (std::int32_t r = 0; r < 2; ++r) {
      fabric_endpoint seat{later(), std::make_shared<lane_bell>(), {}};
      threads.push_back(std::make_shared<baton_thread>());
      ends.push_back(blocking_communicator(
          fabric.at(std::move(seat))->open({job_id{1}, generation_id{1}, r, 2, {}}),
          threads.back()));
    }
  }
  later_fn later() {
    return later_fn{[this](std::chrono::nanoseconds) { return &due.emplace_back(); }};
  }
  void run_all() {
    while (!due.empty()) {
      auto next = std::move(due.front());
      due.pop_front();
      next();
    }
    for (const auto& t : threads)
      if (t->resting()) t->go_on();
  }
};

}  // namespace

TEST_CASE("lanes wait for each other in the middle of a call", "[baton]") {
  two_lanes all;
  std::vector<std::int64_t> sums{1, 2};
  std::vector<int> agreed(2, -1);
  for (std::size_t r = 0; r < 2; ++r)
    CHECK_FALSE(all.threads[r]->run([&all, &sums, &agreed, r] {
      auto& world = *all.ends[r];
      world.all_reduce({&sums[r], 1, dtype::i64}, reduction::sum)->wait();
      agreed[r] = world.decide(r == 0, decision::any) ? 1 : 0;
      world.barrier("end")->wait();
    }));
  for (int i = 0; i < 3; ++i) all.run_all();
  CHECK(sums == std::vector<std::int64_t>{3, 3});
  CHECK(agreed == std::vector<int>{1, 1});
  for (const auto& t : all.threads) CHECK_FALSE(t->resting());
}

TEST_CASE("an abort ends a wait", "[baton]") {
  two_lanes all;
  std::string why;
  CHECK_FALSE(all.threads[0]->run([&] {
    try {
      all.ends[0]->barrier("alone")->wait();
    } catch (const generation_closed& e) {
      why = e.what();
    }
  }));
  all.ends[0]->abort("enough");
  all.run_all();
  CHECK(why == "enough");
}

TEST_CASE("an abandoned lane does not wait", "[baton]") {
  two_lanes all;
  CHECK_FALSE(all.threads[1]->run([&] { all.ends[1]->barrier("alone")->wait(); }));
  CHECK_FALSE(all.ends[1]->quiescent());
  all.threads[1]->abandon();
  CHECK(all.ends[1]->quiescent());
  CHECK(all.ends[1]->aborted());
}
