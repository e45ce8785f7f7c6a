// Goal: the fault scenarios of docs/scenarios.md in which processes leave, join, wait as spares, or
// write checkpoints, each as one named case.
#include <caf/send.hpp>

#include "tests/simulated/restarts.hpp"

using namespace troupe;
using namespace troupe::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;
using kind = lifecycle_kind;

namespace {

constexpr std::uint64_t change_seeds = 12;
constexpr std::int32_t world = restarting_job::ranks;
using loss = elastic_options::loss;

// As the launcher sends it when the process gets SIGTERM.
void terminate(restarting_job& job, std::int32_t process) {
  failure why;
  why.what = "SIGTERM";
  caf::anon_send(job.script.supervisor(), process_changed{job.script.sim_job().running(), process,
                                                          process_changed::change::leaves, why});
}
void scale(restarting_job& job, std::int32_t processes) {
  caf::anon_send(job.script.supervisor(), caller_request{request_scale{processes}});
}

// The job ends as undisturbed, and did no step twice.
const job_outcome& ends_unharmed(restarting_job& job) {
  const auto& end = job.ends_as_reference();
  CHECK(end.restarts == 0);
  for (const auto& g : end.generations) CHECK(g.steps_redone == 0);
  for (std::int64_t s = 1; s <= restarting_job::steps; ++s)
    for (std::int32_t r = 0; r < job.size(); ++r) CHECK(job.times(s, r) == 1);
  return end;
}

// Moments of a job without failures, in their order.
enum class moment { start, prepared, set_up, step, sum, saved, last_step, ending, count_ };
bool comes(restarting_job& job, moment when) {
  switch (when) {
    case moment::start: return job.until(kind::generation_forming, 1);
    case moment::prepared: return job.until(kind::rank_started, 1);
    case moment::set_up: return job.until(0, "on_train_start");
    case moment::step: return job.until(1, "on_train_batch_start", 4);
    case moment::sum: return job.until(1, "backward", 4);
    case moment::saved: return job.until(0, "save_checkpoint");
    case moment::last_step: return job.until(2, "backward", restarting_job::steps - 1);
    case moment::ending:
      return job.script.run_until([&] {
        return std::ranges::count(job.life, kind::teardown, &seen::lifecycle::event) > 0;
      });
    case moment::count_: break;
  }
  return false;
}
constexpr auto moments = static_cast<std::uint64_t>(moment::count_);

}  // namespace

TEST_CASE("SIGTERM to one process at each phase of a job: no step is done again",
          "[simulated][scenario]") {
  std::set<std::size_t> generations;
  for (std::uint64_t seed = 0; seed < 3 * moments; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .checkpoint_every = 5}};
    REQUIRE(comes(job, static_cast<moment>(seed % moments)));
    terminate(job, static_cast<std::int32_t>(seed / moments));
    const auto& end = ends_unharmed(job);
    generations.insert(end.generations.size());
    if (end.generations.size() == 2) CHECK(end.generations[0].changed == membership_change::left);
  }
  CHECK(generations == std::set<std::size_t>{1, 2});  // 1: the job was over before
}

TEST_CASE("SIGTERM to a process while the job recovers from a failure of another one",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < 3 * change_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    REQUIRE(job.recovers(seed % 3));
    terminate(job, seed % 2 == 0 ? 0 : 2);
    const auto& end = job.ends_as_reference();
    CHECK(end.restarts == 1);
    CHECK(job.script.sim_job().life_of(seed % 2 == 0 ? 0 : 2)->process->who().number >= world);
  }
}

TEST_CASE("SIGTERM to all processes, twice: all ranks move, and no step is done again",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "backward", 2));
    for (int i = 0; i < 2; ++i)
      for (std::int32_t p = 0; p < world; ++p) terminate(job, p);
    ends_unharmed(job);
    for (std::int32_t r = 0; r < world; ++r)
      CHECK(job.script.sim_job().life_of(r)->process->who().number >= world);
  }
}

TEST_CASE("SIGTERM to all processes and a stop of the job: it stops with a checkpoint",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "backward", 2));
    for (std::int32_t p = 0; p < world; ++p) terminate(job, p);
    caf::anon_send(job.script.supervisor(), caller_request{request_stop{stop_reason::caller}});
    const auto& end = job.script.run();
    REQUIRE(end.ok());
    CHECK(end.status == job_outcome::ending::stopped);
    CHECK(end.restarts == 0);
    CHECK_THAT(end.last_checkpoint, Catch::Matchers::EndsWith(std::to_string(end.loop.steps)));
    job.nothing_is_left();
  }
}

TEST_CASE("a process joins at each phase of a job: at a step boundary, without a lost step",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < 2 * moments; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .checkpoint_every = 5}};
    const auto when = static_cast<moment>(seed % moments);
    if (when > moment::set_up) {
      REQUIRE(job.until(0, "on_train_batch_start", 0));
      scale(job, 2);
      REQUIRE(job.until(kind::generation_active, 2));
      if (when == moment::step) REQUIRE(job.until(1, "on_train_batch_start", 4));
    } else {
      REQUIRE(comes(job, when));
    }
    if (when > moment::step) REQUIRE(comes(job, when));
    scale(job, seed < moments ? 3 : 1);
    ends_unharmed(job);
  }
}

TEST_CASE("a process joins while another one receives the state: both changes happen",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(0, "on_train_batch_start", 1));
    scale(job, 1);
    REQUIRE(job.until(kind::generation_active, 2));
    scale(job, 2);
    REQUIRE(job.until(kind::generation_forming, 3));
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "restore_state"));
    scale(job, 3);
    const auto& end = ends_unharmed(job);
    REQUIRE(end.generations.size() == 4);
    CHECK(end.generations.back().ranks == 3);
  }
}

TEST_CASE("processes leave, join and are killed all the time: the job ends as undisturbed",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < 2 * change_seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .max_restarts = 50}};
    auto draws = choices::of_seed(seed);
    for (std::int64_t step = 1; step + 1 < restarting_job::steps; ++step) {
      if (!job.script.run_until([&] { return job.finished(step) > 0; })) break;
      const auto whom = static_cast<std::int32_t>(draws.bits(0) % world);
      const auto* life = job.script.sim_job().life_of(whom);
      switch (draws.bits(0) % 4) {
        case 0: job.script.crash(whom); break;
        case 1: terminate(job, life->process->who().number); break;
        case 2: scale(job, 1 + whom); break;
        default: break;
      }
    }
    job.ends_as_reference();
  }
}

TEST_CASE("fewer processes than min_ranks: the job waits without work, and goes on with the next",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    elastic_options elastic;
    elastic.on_loss = loss::shrink;
    elastic.min_ranks = 3;
    restarting_job job{{.seed = seed, .elastic = elastic, .start = seconds{9}}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    REQUIRE(job.until(kind::generation_forming, 2));
    const auto began = job.script.in().events();
    const auto parked = job.script.in().time();
    REQUIRE(job.until(kind::generation_active, 2));
    CHECK(job.script.in().time() - parked > seconds{8});
    CHECK(job.script.in().events() - began < 2000);  // heartbeats, and no other work
    const auto& end = job.ends_well(2);
    CHECK(end.generations[1].ranks == 3);
  }
}

TEST_CASE("fewer processes than min_ranks, and none comes: the job ends and says why",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    elastic_options elastic;
    elastic.on_loss = loss::shrink;
    elastic.min_ranks = 3;
    elastic.wait = seconds{20};
    restarting_job job{
        {.seed = seed, .max_restarts = 50, .elastic = elastic, .start = std::chrono::hours{1}}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    const auto died = job.script.in().time();
    const auto& end = job.script.run();
    CHECK(end.status == job_outcome::ending::failed);
    REQUIRE(end.failed_with);
    INFO(render(end.failed_with->record));
    CHECK(end.failed_with->record.code == errc::membership);
    CHECK(job.script.in().time() - died < seconds{60});
  }
}

TEST_CASE("a spare dies while it takes a rank: another process takes it", "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < 3 * change_seeds; ++seed) {
    INFO("seed " << seed);
    elastic_options elastic;
    elastic.spares = 1;
    restarting_job job{{.seed = seed, .elastic = elastic}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    REQUIRE(job.until(kind::generation_forming, 2));
    const auto spare = job.script.sim_job().life_of(1);
    if (seed % 3 == 1) REQUIRE(job.until(1, "setup"));
    if (seed % 3 == 2) REQUIRE(job.until(1, "restore_state"));
    REQUIRE(job.script.run_until([&] {
      const auto* now = job.script.sim_job().life_of(1);
      return now != spare || now->process->who().number == world;
    }));
    job.script.crash(1);
    const auto& end = job.ends_as_reference();
    CHECK(end.restarts >= 1);
    CHECK(job.script.sim_job().life_of(1)->process->who().number > world);
  }
}

TEST_CASE("no spare is left: with shrink the other processes take the ranks",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    elastic_options elastic;
    elastic.on_loss = loss::shrink;
    elastic.spares = 1;
    restarting_job job{{.seed = seed, .elastic = elastic}};
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "backward", 5));
    job.script.crash(1);
    job.script.crash(0);  // the spare takes the place of one of them
    const auto& end = job.ends_well(2);
    CHECK(end.generations[1].ranks == 2);
  }
}

TEST_CASE("the program is killed at each operation on the disk: its next run ends as undisturbed",
          "[simulated][scenario]") {
  std::int64_t begun_again = 0;
  std::int64_t resumed = 0;
  for (std::uint64_t last = 0; last < 60; ++last) {
    INFO("killed after " << last << " operations");
    restarting_job job{{.seed = last, .checkpoint_every = 3}};
    std::uint64_t operations = 0;
    job.script.files().set_fault([&](const storage_op&) {
      ++operations;
      return storage_fault{};
    });
    job.script.run_until([&] { return operations > last; });
    job.done.clear();
    job.script.train_again();
    (job.script.steps_of(0) == 0 ? begun_again : resumed) += 1;
    const auto& end = job.script.run();
    if (!end.ok()) FAIL(render(end.failed_with->record));
    CHECK(job.script.weights() == job.script.reference_weights());
  }
  CHECK(begun_again > 0);
  CHECK(resumed > 0);
}

TEST_CASE("a run of 8 ranks is resumed by 5 and by 12 in mid-epoch: each sample once",
          "[simulated][scenario]") {
  for (std::uint64_t seed = 0; seed < change_seeds; ++seed) {
    INFO("seed " << seed);
    constexpr std::int64_t samples = 1000;
    std::map<std::int64_t, piece> consumed;  // by step
    script_options how;
    how.seed = seed;
    how.schedule = scheduling::random;
    how.stepped = [&](const finished_step& s) { consumed[s.step] = s.consumed; };
    scripted_simulation script{how};
    job_spec what{.ranks = 8, .samples = samples, .batch_size = 3, .checkpoint_every = 4};
    for (const std::int32_t now : {8, 5, 12}) {
      what.ranks = now;
      what.steps = 30;
      script.train_again(what);
      const auto from = script.steps_of(0);
      CHECK((now == 8 || from > 0));
      consumed.erase(consumed.upper_bound(from), consumed.end());
      if (now == 12) break;
      REQUIRE(script.run_until([&] { return script.steps_of(0) == from + 9; }));
    }
    REQUIRE(script.run().ok());
    std::int64_t next = 0;
    for (const auto& [step, of] : consumed) {
      CHECK(of.first == next);
      next = (of.first + of.count) % samples;
    }
    CHECK(consumed.size() == 30);
  }
}
