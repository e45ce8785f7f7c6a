// Which process a rank goes to, and what the supervisor machine does with processes.
#include "actors/placements.hpp"

#include <map>

#include "actors/supervisor_machine.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

using numbers = std::vector<std::int32_t>;
using loss = elastic_options::loss;

// A rank holds the point after the step of `at`.
closed_generation closed_at(const fence& at, bool last) {
  closed_generation m;
  m.last = last;
  m.at = at;
  m.digest = "same";
  m.held.loop.steps = at.step.value();
  m.held.number = static_cast<std::uint64_t>(at.step.value()) + 1;
  return m;
}

// A job of which each message is answered as the ranks would, with its processes.
struct placed_job {
  placed_job(std::int32_t shards, elastic_options elastic, std::int32_t processes,
             bool fixed = false)
      : machine(job_id{1}, shards, derive({}),
                {.elastic = elastic, .processes = processes, .fixed = fixed}) {
    supervision::begin all;
    for (std::int32_t r = 0; r < shards; ++r)
      all.incarnations.push_back(incarnation_id{static_cast<std::uint64_t>(20 + r)});
    lives.resize(all.incarnations.size());
    homes.resize(all.incarnations.size());
    on(all);
    form();
  }

  template <class Event>
  void on(Event e) {
    machine.at(now);
    last = machine.on(e);
    for (const auto& a : last) {
      if (const auto* x = std::get_if<supervision::start_process>(&a)) processes[x->number] = true;
      if (const auto* x = std::get_if<supervision::end_process>(&a)) ended.push_back(x->number);
      if (const auto* x = std::get_if<supervision::start_rank>(&a)) {
        lives.at(static_cast<std::size_t>(x->rank)) = x->incarnation;
        homes.at(static_cast<std::size_t>(x->rank)) = x->process;
      }
      if (const auto* x = std::get_if<supervision::arm>(&a)) deadline = x->id;
      if (const auto* x = std::get_if<supervision::complete>(&a)) outcome = *x;
      if (const auto* order = std::get_if<supervision::send>(&a))
        if (const auto* close = std::get_if<close_generation>(&order->what)) over = close->last;
      if (const auto* x = std::get_if<supervision::announce>(&a))
        if (x->what.event == lifecycle_kind::trouble)
          troubles.push_back(x->what.details.at("what"));
    }
  }
  closed_generation closed(const fence& at) const { return closed_at(at, over); }
  fence of(std::int32_t rank, std::int64_t step = 0) const {
    fence at;
    at.job = job_id{1};
    at.generation = machine.generation();
    at.incarnation = lives.at(static_cast<std::size_t>(rank));
    at.step = step_id{step};
    return at;
  }
  std::int32_t shards() const { return static_cast<std::int32_t>(lives.size()); }
  void change(std::int32_t number, process_changed::change how, failure why = {}) {
    if (how == process_changed::change::gone) processes.erase(number);
    on(process_changed{job_id{1}, number, how, std::move(why)});
  }
  void ready() {
    for (const auto& [number, lives_] : std::map{processes}) {
      change(number, process_changed::change::ready);
      change(number, process_changed::change::warm);
    }
  }
  void form() {
    const auto digest = machine.generation() == generation_id{1} ? "" : "same";
    for (std::int32_t r = 0; r < shards(); ++r) on(prepared{of(r), digest});
  }
  void step(std::int64_t step) {
    for (std::int32_t r = 0; r < shards(); ++r) on(step_done{of(r, step)});
  }
  // The process dies; the ranks elsewhere hold the point of `steps`.
  void kill(std::int32_t number, std::int64_t steps, failure_kind why = failure_kind::signal) {
    std::vector<std::int32_t> lost;
    for (std::int32_t r = 0; r < shards(); ++r)
      if (homes[static_cast<std::size_t>(r)] == number) lost.push_back(r);
    auto what = make_failure(why, "killed");
    if (why == failure_kind::signal) what.signal = "SIGKILL";
    change(number, process_changed::change::gone, what);
    const auto generation = machine.generation();
    for (const auto r : lost) {
      auto at = of(r);
      at.generation = generation_id{};
      on(rank_failed{at, without_exception(what), true});
    }
    for (std::int32_t r = 0; r < shards(); ++r) {
      if (machine.phase() != supervision::phase::closing) break;
      if (homes[static_cast<std::size_t>(r)] == number) continue;
      const auto m = closed(of(r, steps));
      on(m);
    }
    if (machine.phase() == supervision::phase::closing && generation == machine.generation())
      on(deadline_passed{deadline});
  }

  std::chrono::nanoseconds now{0};
  std::vector<incarnation_id> lives;
  numbers homes;
  std::map<std::int32_t, bool> processes;
  numbers ended;
  std::uint64_t deadline = 0;
  bool over = false;  // the newest close_generation is the last one
  std::optional<supervision::complete> outcome;
  std::vector<std::string> troubles;
  supervisor_machine machine;
  std::vector<supervision::action> last;
};

}  // namespace

TEST_CASE("processes of the start compute contiguous runs of shards", "[placements]") {
  CHECK(placements{{.processes = 3}}.begin(8) == numbers{0, 0, 0, 1, 1, 1, 2, 2});
  CHECK(placements{{.processes = 4}}.begin(4) == numbers{0, 1, 2, 3});
  CHECK(placements{}.begin(2) == numbers{0, 0});
}

TEST_CASE("a lost process is replaced by a new one with all of its shards", "[placements]") {
  placed_job s{4, {.max_restarts = 3}, 2};
  s.step(1);
  s.kill(1, 1);
  CHECK(s.machine.phase() == supervision::phase::forming);
  CHECK(s.homes == numbers{0, 0, 2, 2});
  CHECK(s.processes.contains(2));
}

TEST_CASE("with shrink the shards of a lost process go to those that are left", "[placements]") {
  placed_job s{4, {.max_restarts = 9, .on_loss = loss::shrink}, 4};
  s.step(1);
  s.kill(1, 1);
  CHECK(s.homes == numbers{0, 0, 2, 3});
  s.form();
  s.step(2);
  s.kill(0, 2);
  CHECK(s.homes == numbers{2, 3, 2, 3});
  s.form();
  s.step(3);
  s.kill(2, 3);
  CHECK(s.homes == numbers{3, 3, 3, 3});
  CHECK(s.processes.size() == 1);
  s.form();
  s.step(4);
  s.kill(3, 4);  // none is left: a new one
  CHECK(s.homes == numbers{4, 4, 4, 4});
}

TEST_CASE("with shrink a job keeps its least number of processes", "[placements]") {
  placed_job s{4, {.max_restarts = 9, .on_loss = loss::shrink, .min_ranks = 3}, 4};
  s.step(1);
  s.kill(1, 1);
  CHECK(s.homes == numbers{0, 0, 2, 3});
  s.form();
  s.step(2);
  s.kill(2, 2);
  CHECK(s.homes == numbers{0, 0, 4, 3});
}

TEST_CASE("a launcher's processes: those that are left take the shards, and none is started",
          "[placements]") {
  placed_job s{4, {.max_restarts = 9, .min_ranks = 2, .spares = 1}, 3, true};
  CHECK(s.homes == numbers{0, 0, 1, 2});
  CHECK(s.processes.size() == 4);
  s.ready();
  s.step(1);
  s.kill(1, 1);  // the spare comes first
  CHECK(s.homes == numbers{0, 0, 3, 2});
  s.form();
  s.step(2);
  s.kill(0, 2);
  CHECK(s.homes == numbers{2, 3, 3, 2});
  CHECK(s.processes.size() == 2);
  s.form();
  s.step(3);
  s.kill(3, 3);  // fewer than min_ranks
  CHECK(s.machine.phase() == supervision::phase::tearing);
  CHECK(s.processes.size() == 1);
}

TEST_CASE("a launcher's spare that is slow takes the shards of a lost process in any case",
          "[placements]") {
  placed_job s{2, {.max_restarts = 9, .spares = 1}, 2, true};
  s.now = std::chrono::hours{1};
  s.step(1);
  s.kill(1, 1);
  CHECK(s.homes == numbers{0, 2});
}

TEST_CASE("with shrink a launcher's slow spare keeps its place, and another one is not started",
          "[placements]") {
  placed_job s{2, {.max_restarts = 9, .on_loss = loss::shrink, .spares = 1}, 2, true};
  s.now = std::chrono::hours{1};
  s.step(1);
  s.kill(1, 1);
  CHECK(s.homes == numbers{0, 0});
  s.form();
  s.change(2, process_changed::change::warm);
  s.step(2);
  s.kill(0, 2);
  CHECK(s.homes == numbers{2, 2});
  CHECK(s.processes.size() == 1);
  s.form();
  s.step(3);
  s.kill(2, 3);
  CHECK(s.machine.phase() == supervision::phase::flushing_checkpointer);  // no process is left
}

TEST_CASE("a launcher's spare that is lost while the job runs is not replaced", "[placements]") {
  placed_job s{2, {.max_restarts = 9, .spares = 1}, 2, true};
  s.ready();
  s.step(1);
  s.change(2, process_changed::change::gone);
  s.step(2);
  s.kill(1, 2);
  CHECK(s.homes == numbers{0, 0});
  CHECK(s.processes.size() == 1);
}

TEST_CASE("a launcher's process that does not close in time: too few are left, the job ends",
          "[placements]") {
  placed_job s{2, {.max_restarts = 9, .min_ranks = 2}, 2, true};
  s.step(1);
  auto what = make_failure(failure_kind::exception, "bad");
  what.rank = 0;
  s.on(rank_failed{s.of(0), without_exception(what)});
  s.on(s.closed(s.of(0, 1)));
  REQUIRE(s.machine.phase() == supervision::phase::closing);
  s.on(deadline_passed{s.deadline});  // process 1 is given up
  s.on(s.closed(s.of(0, 1)));
  s.on(deadline_passed{s.deadline});
  CHECK(s.machine.phase() == supervision::phase::tearing);
  CHECK(s.processes.size() == 2);
}

TEST_CASE("a shard that holds the last step: its process is kept while another shard runs a hook",
          "[placements]") {
  placed_job s{4, {.max_restarts = 9}, 2};
  s.step(1);
  s.step(2);
  s.on(supervision::durable{{1}});
  s.change(1, process_changed::change::gone);
  for (const auto r : {2, 3}) {
    auto killed = make_failure(failure_kind::signal, "killed");
    killed.signal = "SIGKILL";
    killed.rank = r;
    s.on(rank_failed{s.of(r), without_exception(killed), true});
  }
  s.on(s.closed(s.of(0, 2)));
  s.on(rank_busy{s.of(1, 2), "training_step for 2.0 s"});
  s.on(deadline_passed{s.deadline});
  CHECK(s.machine.phase() == supervision::phase::closing);
  s.on(s.closed(s.of(1, 2)));
  CHECK(s.machine.phase() == supervision::phase::forming);
  CHECK(s.machine.committed() == 2);
  CHECK(s.homes == numbers{0, 0, 2, 2});
}

TEST_CASE("a launcher's process that runs a long hook is waited for", "[placements]") {
  placed_job s{3, {.max_restarts = 9}, 3, true};
  s.step(1);
  auto what = make_failure(failure_kind::exception, "bad");
  what.rank = 0;
  s.on(rank_failed{s.of(0), without_exception(what)});
  for (const auto r : {0, 1}) s.on(s.closed(s.of(r, 1)));
  s.on(rank_busy{s.of(2, 1), "training_step for 2.0 s"});
  s.on(deadline_passed{s.deadline});
  CHECK(s.machine.phase() == supervision::phase::closing);
  s.on(s.closed(s.of(2, 1)));
  CHECK(s.machine.phase() == supervision::phase::forming);
  CHECK(s.homes == numbers{0, 1, 2});
}

TEST_CASE("a spare that ends before it is ready is reported, and another one is started",
          "[placements]") {
  placed_job s{2, {.max_restarts = 2, .spares = 1}, 2};
  s.change(2, process_changed::change::gone);
  CHECK(s.troubles.size() == 1);
  CHECK(s.processes.contains(3));
}

TEST_CASE("a spare that ends while ranks form is reported, and the next generation has another",
          "[placements]") {
  placed_job s{2, {.max_restarts = 2, .spares = 2}, 2};
  s.ready();
  s.step(1);
  s.kill(0, 1);  // spare 2 takes its shards
  REQUIRE(s.machine.phase() == supervision::phase::forming);
  s.change(3, process_changed::change::gone);
  CHECK(s.troubles.size() == 1);
  s.form();
  CHECK(s.processes.contains(5));
}

TEST_CASE("a spare takes the shards of a lost process, and another spare is started",
          "[placements]") {
  placed_job s{2, {.max_restarts = 9, .spares = 1}, 2};
  CHECK(s.processes.size() == 3);
  s.ready();
  s.step(1);
  s.kill(0, 1);
  CHECK(s.homes == numbers{2, 1});
  CHECK(s.processes.size() == 2);  // the next spare would compete with the recovery
  s.form();
  CHECK(s.processes.contains(3));
  s.step(2);
  s.change(3, process_changed::change::ready);
  s.change(3, process_changed::change::gone);  // a spare that ends is no failure
  CHECK(s.machine.phase() == supervision::phase::active);
  CHECK(s.processes.contains(4));
}

TEST_CASE(
    "spares that end one after the other: each is reported, and no more than max_restarts "
    "are replaced",
    "[placements]") {
  placed_job s{2, {.max_restarts = 2, .spares = 1}, 2};
  failure killed;
  killed.what = "it was killed by SIGKILL";
  for (const auto spare : {2, 3, 4}) {
    s.change(spare, process_changed::change::ready);
    s.change(spare, process_changed::change::gone, killed);
  }
  CHECK_FALSE(s.processes.contains(5));
  REQUIRE(s.troubles.size() == 3);
  CHECK(s.troubles[1] == "a spare process ended: it was killed by SIGKILL; another one is started");
  CHECK_THAT(s.troubles[2], Catch::Contains("as many spares as elastic.max_restarts"));
  s.ready();
  s.step(1);
  s.kill(1, 1);
  s.form();
  CHECK(s.processes.contains(6));  // of the next generation
}

TEST_CASE("with shrink a spare that is not warm takes no shards, unless a process is needed",
          "[placements]") {
  placed_job s{4, {.max_restarts = 9, .on_loss = loss::shrink, .min_ranks = 2, .spares = 1}, 3};
  s.change(3, process_changed::change::ready);
  s.now = derive({}).form + std::chrono::nanoseconds{1};
  s.step(1);
  s.kill(2, 1);
  CHECK(s.homes == numbers{0, 0, 1, 1});
  s.form();
  s.step(2);
  s.kill(1, 2);  // one is left, and two are the least
  CHECK(s.homes == numbers{0, 0, 3, 3});
  CHECK(s.ended.empty());
}

TEST_CASE("a spare that is not ready in time is given up, and a new process is started",
          "[placements]") {
  const auto how = GENERATE(loss::replace, loss::shrink);
  placed_job s{2, {.max_restarts = 9, .on_loss = how, .min_ranks = 2, .spares = 1}, 2};
  s.step(1);
  s.now = derive({}).form;
  s.kill(0, 1);
  CHECK(s.homes == numbers{2, 1});  // just in time
  s.form();
  REQUIRE(s.processes.contains(3));
  s.step(2);
  s.now += derive({}).form + std::chrono::nanoseconds{1};
  s.kill(1, 2);
  CHECK(s.homes == numbers{2, 4});
  CHECK(s.ended == numbers{3});
  s.form();
  CHECK(s.processes.contains(5));  // another spare
}

TEST_CASE("a spare that wants to leave ends at once, and another one is started", "[placements]") {
  placed_job s{2, {.max_restarts = 1, .spares = 1}, 2};
  s.change(2, process_changed::change::leaves);
  CHECK(s.ended == numbers{2});
  CHECK(s.machine.phase() == supervision::phase::active);
  CHECK(s.processes.contains(3));
  s.change(2, process_changed::change::gone);
  s.change(3, process_changed::change::leaves);  // more often than max_restarts
  CHECK_FALSE(s.processes.contains(4));
}

// The ranks pause after `step`, and hold its point.
void change_at(placed_job& s, std::int64_t step) {
  for (std::int32_t r = 0; r < s.shards(); ++r) s.on(stop_vote{s.of(r, step - 1)});
  s.step(step);
  for (std::int32_t r = 0; r < s.shards(); ++r) {
    const auto m = s.closed(s.of(r, step));
    if (s.machine.phase() == supervision::phase::closing) s.on(m);
  }
  s.form();
}

TEST_CASE("the shards of a process that leaves go where those of a lost one would",
          "[placements]") {
  const auto how = GENERATE(loss::replace, loss::shrink);
  placed_job s{4, {.max_restarts = 1, .on_loss = how}, 2};
  s.change(1, process_changed::change::leaves);
  change_at(s, 3);
  CHECK(s.homes == (how == loss::replace ? numbers{0, 0, 2, 2} : numbers{0, 0, 0, 0}));
  CHECK(s.ended == numbers{1});
  CHECK(s.machine.phase() == supervision::phase::active);
}

TEST_CASE("a job that is scaled has the same number of shards in each process, or one more",
          "[placements]") {
  const auto how = GENERATE(loss::replace, loss::shrink);
  placed_job s{8, {.max_restarts = 1, .on_loss = how}, 1};
  std::int64_t step = 0;
  for (const std::int32_t processes : {3, 8, 2, 5, 1, 4}) {
    CAPTURE(processes);
    s.on(request_scale{processes});
    change_at(s, step += 3);
    REQUIRE(s.machine.phase() == supervision::phase::active);
    std::map<std::int32_t, std::int32_t> shards;
    for (const auto home : s.homes) ++shards[home];
    CHECK(shards.size() == static_cast<std::size_t>(processes));
    for (const auto& [home, count] : shards) {
      CHECK(count >= 8 / processes);
      CHECK(count <= (8 + processes - 1) / processes);
    }
    const auto ended = std::exchange(s.ended, {});
    for (const auto number : ended) s.change(number, process_changed::change::gone);
  }
}

TEST_CASE("all processes end with the job, spares included", "[placements]") {
  placed_job s{2, {.max_restarts = 9, .spares = 1}, 2};
  for (std::int32_t r = 0; r < 2; ++r) s.on(rank_finished{s.of(r, 5)});
  CHECK(s.ended == numbers{0, 1, 2});
  for (std::int32_t r = 0; r < 2; ++r) {
    s.on(torn_down{s.of(r)});
    s.change(r, process_changed::change::gone);
    s.on(supervision::rank_down{r, "", s.lives[static_cast<std::size_t>(r)]});
  }
  CHECK(s.machine.phase() == supervision::phase::tearing);  // the spare is still there
  s.change(2, process_changed::change::gone);
  CHECK(s.machine.phase() == supervision::phase::flushing_checkpointer);
}

TEST_CASE("an abandoned rank takes the other ranks of its process with it", "[placements]") {
  placed_job s{4, {.max_restarts = 9}, 2};
  s.step(1);
  auto what = make_failure(failure_kind::exception, "bad");
  what.rank = 0;
  s.on(rank_failed{s.of(0), without_exception(what)});
  for (const auto r : {0, 1, 3}) {  // rank 2 is stuck
    const auto m = s.closed(s.of(r, 1));
    s.on(m);
  }
  s.on(deadline_passed{s.deadline});
  CHECK(s.machine.phase() == supervision::phase::forming);
  CHECK(s.homes == numbers{0, 0, 2, 2});
}

TEST_CASE("a restart stops to count after its window and a committed step", "[placements]") {
  using std::chrono::seconds;
  placed_job s{2, {.max_restarts = 1, .window = seconds{60}}, 2};
  std::int64_t steps = 0;
  for (int i = 0; i < 5; ++i) {
    s.step(++steps);
    s.kill(s.homes[0], steps);
    REQUIRE(s.machine.phase() == supervision::phase::forming);
    s.form();
    s.step(++steps);
    s.now += seconds{61};
  }
  s.kill(s.homes[0], steps);
  s.form();
  s.step(++steps);
  s.now += seconds{59};
  s.kill(s.homes[0], steps);
  CHECK(s.machine.phase() == supervision::phase::tearing);
}

TEST_CASE("a process that cannot be started: the job goes on in those that are left, or waits",
          "[placements]") {
  using std::chrono::seconds;
  const auto fails = failure_kind::start_failed;
  SECTION("processes are left") {
    placed_job s{2, {.max_restarts = 1}, 2};
    s.step(1);
    s.kill(1, 1);
    REQUIRE(s.homes == numbers{0, 2});
    s.kill(2, 1, fails);
    CHECK(s.homes == numbers{0, 0});
    s.form();
    CHECK(s.machine.phase() == supervision::phase::active);
  }
  SECTION("too few are left: it waits, and says so") {
    placed_job s{2, {.max_restarts = 1, .min_ranks = 2, .wait = seconds{10}}, 2};
    s.step(1);
    s.kill(1, 1);
    std::int32_t next = 2;
    for (; s.now < seconds{10}; s.now += seconds{2}) {
      REQUIRE(s.homes == numbers{0, next});
      s.kill(next++, 1, fails);
    }
    REQUIRE(s.troubles.size() == 1);
    CHECK_THAT(s.troubles[0], Catch::Contains("waits at most 10 s for a process"));
    SECTION("until one starts") {
      s.form();
      CHECK(s.machine.phase() == supervision::phase::active);
    }
    SECTION("or its time is over") {
      s.kill(next, 1, fails);
      CHECK(s.machine.phase() == supervision::phase::tearing);
    }
  }
}

TEST_CASE("of two spares the one that is warm takes the ranks", "[placements]") {
  placements two({.processes = 2, .spares = 2});
  CHECK(two.begin(2) == numbers{0, 1});
  CHECK(two.refill() == numbers{2, 3});
  two.ready(2);
  two.warm(3);
  two.lost(1);
  numbers started;
  CHECK(two.homes_for(1, {0}, placements::starting::by_loss, started) == numbers{3});
  CHECK(started.empty());
}
