// Goal: simulated collectives: correct results, one cost each, every ending that the port defines,
// and members that are blocked or vanish.
#include "backends/simulated/fabric.hpp"

#include "troupe/learner.hpp"

#include <map>
#include <vector>

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// A heap of events on one thread.
struct clockwork {
  std::multimap<std::chrono::nanoseconds, later_call> events;
  std::chrono::nanoseconds now{0};
  later_fn later() {
    return later_fn{[this](std::chrono::nanoseconds delay) {
      return &events.emplace(now + delay, later_call{})->second;
    }};
  }
  void run() {
    while (!events.empty()) {
      auto first = events.extract(events.begin());
      now = first.key();
      first.mapped()();
    }
  }
};

struct ranks {
  explicit ranks(std::int32_t world, std::chrono::nanoseconds deadline = 0ns)
      : fabric(time.later(), [this] { return time.now; }) {
    for (std::int32_t r = 0; r < world; ++r) {
      bells.push_back(std::make_shared<lane_bell>());
      backends.push_back(
          fabric.at({time.later(), bells.back(), {}, static_cast<std::uint32_t>(r), {}}));
      handles.push_back(backends.back()->open({job_id{1}, generation_id{1}, r, world, deadline}));
    }
  }
  communicator& operator[](std::size_t r) { return *handles[r]; }

  clockwork time;
  simulated_fabric fabric;
  std::vector<std::shared_ptr<lane_bell>> bells;
  std::vector<std::shared_ptr<communicator_backend>> backends;
  std::vector<std::shared_ptr<communicator>> handles;
};

buffer view(std::vector<std::int64_t>& v) { return {v.data(), v.size(), dtype::i64}; }

}  // namespace

TEST_CASE("simulated collectives return what the port promises", "[fabric]") {
  ranks all(3);
  std::vector<std::vector<std::int64_t>> sum{{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  std::vector<std::vector<std::int64_t>> root{{7}, {8}, {9}};
  std::vector<std::vector<std::int64_t>> mine{{1}, {2}, {3}};
  std::vector<std::vector<std::int64_t>> gathered(3, std::vector<std::int64_t>(3));
  std::vector<std::vector<std::int64_t>> scattered(3, std::vector<std::int64_t>(1));
  std::vector<std::vector<std::int64_t>> whole(3, {1, 2, 3});
  std::vector<work_ptr> works;
  for (std::size_t r = 0; r < 3; ++r) {
    works.push_back(all[r].all_reduce(view(sum[r]), reduction::sum));
    works.push_back(all[r].broadcast(view(root[r]), 2));
    works.push_back(all[r].all_gather(view(mine[r]), view(gathered[r])));
    works.push_back(all[r].reduce_scatter(view(whole[r]), view(scattered[r]), reduction::sum));
    works.push_back(all[r].barrier("here"));
  }
  CHECK(works.front()->poll().status == work_status::pending);
  CHECK_THROWS_AS(works.front()->wait(), not_yet);
  all.time.run();
  for (const auto& w : works) CHECK(w->poll().status == work_status::ok);
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(sum[r] == std::vector<std::int64_t>{111, 222, 333});
    CHECK(root[r] == std::vector<std::int64_t>{9});
    CHECK(gathered[r] == std::vector<std::int64_t>{1, 2, 3});
    CHECK(scattered[r] == std::vector<std::int64_t>{3 * (static_cast<std::int64_t>(r) + 1)});
    CHECK(all[r].quiescent());
  }
  CHECK(all.time.now > 0ns);
}

TEST_CASE("an operation too many is refused and does not count", "[fabric]") {
  constexpr int most = 4096;
  ranks two(2);
  std::vector<work_ptr> works;
  for (int i = 0; i < most; ++i) works.push_back(two[0].barrier(std::to_string(i)));
  CHECK_THROWS_AS(two[0].barrier("too many"), user_error);
  works.push_back(two[1].barrier("0"));
  two.time.run();
  works.push_back(two[0].barrier(std::to_string(most)));
  for (int i = 1; i <= most; ++i) works.push_back(two[1].barrier(std::to_string(i)));
  two.time.run();
  for (const auto& one : works) REQUIRE(one->poll().status == work_status::ok);
}

TEST_CASE("a repeated decide continues the first one", "[fabric]") {
  ranks all(2);
  CHECK_THROWS_AS(all[0].decide(true, decision::all), not_yet);
  CHECK_THROWS_AS(all[1].decide(false, decision::all), not_yet);
  CHECK_THROWS_AS(all[0].decide(true, decision::all), not_yet);
  all.time.run();
  CHECK_FALSE(all[0].decide(true, decision::all));
  CHECK_FALSE(all[1].decide(false, decision::all));
}

TEST_CASE("a bell rings when an operation has ended or was aborted", "[fabric]") {
  ranks all(2);
  int rung = 0;
  all[0].barrier("a");
  all.bells[0]->wait([&] { ++rung; });
  CHECK(all[0].waiting());
  all[1].barrier("a");
  all.time.run();
  CHECK(rung == 1);
  CHECK_FALSE(all[0].waiting());
  const auto pending = all[0].barrier("b");
  all.bells[0]->wait([&] { ++rung; });
  all[1].abort("enough");
  all.time.run();
  CHECK(rung == 2);
  CHECK(pending->poll().status == work_status::aborted);
  CHECK(pending->poll().text == "enough");
  CHECK_THROWS_AS(pending->wait(), generation_closed);
  CHECK(all[0].aborted());
}

TEST_CASE("a deadline names missing ranks; a disagreement names the calls", "[fabric]") {
  ranks late(3, 2s);
  const auto first = late[0].barrier("x");
  const auto second = late[2].barrier("x");
  late.time.run();
  CHECK(late.time.now >= 2s);
  CHECK(first->poll().status == work_status::timed_out);
  CHECK(first->poll().missing == std::vector<std::int32_t>{1});
  CHECK_THROWS_AS(second->wait(), collective_timeout);

  ranks apart(2);
  apart[0].barrier("x");
  const auto other = apart[1].barrier("y");
  CHECK(other->poll().status == work_status::mismatch);
  CHECK_THROWS_AS(other->wait(), collective_mismatch);
}

TEST_CASE("a blocked rank stalls an operation until it is unblocked", "[fabric]") {
  ranks all(2);
  all.fabric.cut(1, true);
  const auto a = all[0].barrier("x");
  const auto b = all[1].barrier("x");
  all.time.run();
  CHECK(a->poll().status == work_status::pending);
  all.fabric.cut(1, false);
  all.time.run();
  CHECK(a->poll().status == work_status::ok);
  CHECK(b->poll().status == work_status::ok);
}

TEST_CASE("handles of a vanished rank have no effect", "[fabric]") {
  ranks all(2);
  const auto a = all[0].barrier("x");
  all.fabric.vanish(1);
  all[1].abort("a dead rank has no say");
  all.handles[1].reset();
  all.time.run();
  CHECK_FALSE(all[0].aborted());
  CHECK(a->poll().status == work_status::pending);
  CHECK(all.fabric.handles() == 1);
}

TEST_CASE("a closed handle ends operations that wait for it", "[fabric]") {
  ranks all(2);
  const auto a = all[0].barrier("x");
  all.handles[1].reset();
  all.time.run();
  CHECK(a->poll().status == work_status::aborted);
  CHECK(a->poll().text.find("rank 1 closed its communicator") != std::string::npos);
}

TEST_CASE("a buffer without memory costs the time of its size and moves nothing", "[fabric]") {
  const auto took = [](std::size_t floats) {
    ranks all(4);
    std::vector<work_ptr> works;
    for (std::size_t r = 0; r < 4; ++r) {
      works.push_back(all[r].all_reduce({nullptr, floats, dtype::f32}, reduction::sum));
      works.push_back(all[r].broadcast({nullptr, floats, dtype::f32}, 1));
    }
    all.time.run();
    for (const auto& w : works) CHECK(w->poll().status == work_status::ok);
    return all.time.now;
  };
  CHECK(took(1'000'000) > took(1000));
  ranks mixed(2);
  std::vector<std::int64_t> some{1, 2};
  mixed[0].all_reduce(view(some), reduction::sum);
  CHECK_THROWS_AS(mixed[1].all_reduce({nullptr, 2, dtype::i64}, reduction::sum), internal_error);
}

TEST_CASE("a second generation of a job: the first one reaches only its own members", "[fabric]") {
  ranks all(2);
  std::vector<std::int64_t> old_memory{1};
  const auto old_sum = all[0].all_reduce(view(old_memory), reduction::sum);
  // Rank 0 closes the generation; rank 1 does not receive the order and goes on later.
  all[0].abort("the generation is over");
  const auto open = [&](std::size_t r) {
    return all.backends[r]->open(
        {job_id{1}, generation_id{2}, static_cast<std::int32_t>(r), 2, 0ns});
  };
  const auto again = open(0);
  std::vector<std::int64_t> late{10};
  const auto late_sum = all[1].all_reduce(view(late), reduction::sum);
  const auto other = open(1);
  std::vector<std::vector<std::int64_t>> sum{{5}, {7}};
  const auto a = again->all_reduce(view(sum[0]), reduction::sum);
  const auto b = other->all_reduce(view(sum[1]), reduction::sum);
  all.time.run();
  CHECK(old_sum->poll().status == work_status::aborted);
  CHECK(late_sum->poll().status == work_status::aborted);
  CHECK(old_memory == std::vector<std::int64_t>{1});
  CHECK(late == std::vector<std::int64_t>{10});
  CHECK(a->poll().status == work_status::ok);
  CHECK(b->poll().status == work_status::ok);
  CHECK(sum == std::vector<std::vector<std::int64_t>>{{12}, {12}});
  CHECK_FALSE(again->aborted());
}

TEST_CASE("a process vanishes: only its own incarnation of the rank does", "[fabric]") {
  ranks all(2);
  constexpr std::uint32_t replacement = 7;
  std::vector<std::uint64_t> opened;
  const auto bell = std::make_shared<lane_bell>();
  const auto backend =
      all.fabric.at({all.time.later(), bell, {}, replacement, [&](const group_description& who) {
                       opened.push_back(who.generation.value());
                     }});
  const group_description second{job_id{1}, generation_id{2}, 1, 2, 0ns};
  const auto fresh = backend->open(second);
  const auto survivor = all.backends[0]->open({job_id{1}, generation_id{2}, 0, 2, 0ns});
  all.fabric.vanish(1);  // the first incarnation
  const auto a = fresh->barrier("x");
  const auto b = survivor->barrier("x");
  all.time.run();
  CHECK(a->poll().status == work_status::ok);
  CHECK(b->poll().status == work_status::ok);
  CHECK(opened == std::vector<std::uint64_t>{2});
  CHECK_THROWS_AS(backend->open(second), internal_error);  // a rank joins a generation once
}
