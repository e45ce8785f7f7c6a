// Goal: a job loses ranks at any moment and restarts inside itself. It ends in the weights of the
// undisturbed run, each sample is used once, and nothing is left. Each case prints its seed.
#include <array>
#include <stdexcept>

#include "apps/testing/case.hpp"
#include "tests/simulated/restarts.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::uint64_t seeds = 20;
using kind = lifecycle_kind;

// Keeps the names of the hooks of one rank.
class hook_listener final : public observer {
public:
  hook_listener(std::int32_t rank, std::vector<std::string_view>& to) : rank_(rank), to_(to) {}
  bool wants_hooks() const override { return true; }
  void on(const observation& what) override {
    const auto* x = std::get_if<seen::hook>(&what);
    if (x && x->rank == rank_) to_.push_back(name(x->what));
  }

private:
  std::int32_t rank_;
  std::vector<std::string_view>& to_;
};

// A job whose ranks have died when the first checkpoint is durable, the next one is being written,
// and another one waits for the disk.
struct job_without_ranks : restarting_job {
  explicit job_without_ranks(std::uint64_t seed, std::int32_t max_restarts = 3)
      : restarting_job({.seed = seed, .max_restarts = max_restarts, .checkpoint_every = 1}) {
    script.files().set_fault([](const storage_op&) {
      return storage_fault{storage_fault::kind::slow, 0, std::chrono::milliseconds{3}};
    });
    REQUIRE(script.run_until([&] { return written() == 1; }));
    REQUIRE(until(0, "backward", script.steps_of(0) + 2));
    for (std::int32_t r = 0; r < ranks; ++r) script.crash(r);
  }
  std::ptrdiff_t written() const {
    return std::ranges::count(life, kind::checkpoint_written, &seen::lifecycle::event);
  }
  /// Checkpoints that are on the disk, and are not about to be removed.
  std::ptrdiff_t kept() {
    const auto all = script.files().disk().entries();
    return std::ranges::count_if(all, [](const auto& one) {
      return one.path.substr(one.path.rfind('/') + 1).starts_with("step-");
    });
  }
};

}  // namespace

TEST_CASE("a rank is killed in its forward pass: the step is done again", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "on_train_batch_start", 5));
    job.script.crash(1, seed % 2 == 1);
    const auto& end = job.ends_well(2);
    CHECK(end.generations[0].ended_by->rank == 1);
    CHECK(end.generations[1].base_step == 5);
    CHECK(end.generations[1].steps_redone == 0);
  }
}

TEST_CASE("rank 0 is killed: the job ends like any other", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .buffers = seed % 2 == 0}};
    REQUIRE(job.until(0, "backward", 4));
    job.script.crash(0);
    const auto& end = job.ends_well(2);
    CHECK(end.generations[0].ended_by->rank == 0);
    REQUIRE(end.weights);
    CHECK(end.weights->loop.steps == restarting_job::steps);
  }
}

TEST_CASE("a rank is killed in an all-reduce before any peer has finished it",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(static_cast<std::int32_t>(seed % 3), "backward", 5));
    REQUIRE(job.finished(6) == 0);
    job.script.crash(static_cast<std::int32_t>(seed % 3));
    const auto& end = job.ends_well(2);
    CHECK(end.generations[1].steps_redone <= 1);
  }
}

TEST_CASE("a rank is killed when some ranks have finished an all-reduce", "[simulated][restart]") {
  std::map<std::int64_t, int> bases;
  std::map<std::int64_t, int> redone;
  for (std::uint64_t seed = 0; seed < 3 * seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .buffers = seed % 3 == 0}};
    // One rank has applied step 6, or two have.
    const auto some = 1 + seed % 2;
    REQUIRE(job.script.run_until([&] { return job.finished(6) == some; }));
    std::int32_t has = -1;
    std::int32_t has_not = -1;
    for (std::int32_t r = 0; r < restarting_job::ranks; ++r)
      (job.script.steps_of(r) == 6 ? has : has_not) = r;
    REQUIRE(has_not >= 0);
    job.script.crash(seed % 4 < 2 ? has : has_not);
    const auto& end = job.ends_well(2);
    ++bases[end.generations[1].base_step];
    ++redone[end.generations[1].steps_redone];
  }
  // The step survives with a rank that holds it; it never happened if all of them died.
  CHECK(bases[5] + bases[6] == static_cast<int>(3 * seeds));
  CHECK(bases[6] > 0);
  CHECK(redone[0] > 0);
}

TEST_CASE("the only rank that has applied a step dies: the step is done again",
          "[simulated][restart]") {
  int redone = 0;
  for (std::uint64_t seed = 0; seed < 10 * seeds && redone < 3; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.script.run_until([&] { return job.finished(6) == 1; }));
    std::int32_t has = 0;
    while (job.script.steps_of(has) != 6) ++has;
    job.script.crash(has);  // in some runs its peers receive the end before the sum
    const auto& end = job.script.run();
    REQUIRE(end.ok());
    CHECK(job.script.weights() == job.script.reference_weights());
    redone += static_cast<int>(job.times(6, has) > 1);
  }
  CHECK(redone > 0);
}

TEST_CASE("ranks die while the first generation forms: it forms again from the beginning",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < 3 * seeds; ++seed) {
    INFO("seed " << seed);
    const auto rank = static_cast<std::int32_t>(seed / 3 % 3);
    restarting_job job{{.seed = seed}};
    const std::array moments{kind::generation_forming, kind::rank_started};
    REQUIRE((seed % 3 < 2 ? job.until(moments[seed % 3], 1) : job.until(rank, "setup")));
    REQUIRE(job.script.run_until([&] { return job.script.sim_job().life_of(rank) != nullptr; }));
    job.script.crash(rank);
    job.ends_well(2);
  }
}

TEST_CASE("a rank dies after some ranks were activated", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    const auto held = job.script.hold<activate_generation>(2);
    REQUIRE(job.script.run_until([&] { return held->caught(); }));
    REQUIRE(job.until(0, "setup"));
    job.script.crash(seed % 2 == 0 ? 2 : 1);
    job.script.release(held);
    job.ends_well(2);
  }
}

TEST_CASE("two ranks die at the same time, and one more during the recovery",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .ranks = 5}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    job.script.crash(3);
    if (seed % 4 == 0) {
      job.ends_well(2);
      continue;
    }
    REQUIRE(job.recovers(seed % 4 - 1));
    job.script.crash(seed % 8 < 4 ? 0 : 4);
    job.ends_well(seed % 4 == 1 ? 2 : 3);
  }
}

TEST_CASE("all ranks but one die: the last one gives its state to the others",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .buffers = seed % 2 == 1}};
    const auto last = static_cast<std::int32_t>(seed % 3);
    REQUIRE(job.until(last, "on_train_batch_start", 7));
    for (std::int32_t r = 0; r < restarting_job::ranks; ++r)
      if (r != last) job.script.crash(r);
    const auto& end = job.ends_well(2);
    CHECK(end.generations[1].base_step == 7);
  }
}

TEST_CASE("all ranks die: the job goes on from its checkpoint, or from the beginning",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    const bool saves = seed % 2 == 0;
    restarting_job job{{.seed = seed, .checkpoint_every = saves ? 3 : 100}};
    REQUIRE(job.until(0, "backward", 8));
    if (saves) REQUIRE(job.announced(kind::checkpoint_written, 1));
    for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
    job.ends_well(2);
    const auto again = std::ranges::find(job.done, 2U, &finished_step::generation);
    REQUIRE(again != job.done.end());
    CHECK(again->step == (saves ? 7 : 1));
  }
}

TEST_CASE("all ranks die: the record names the step of the checkpoint", "[simulated][restart]") {
  restarting_job job{{.seed = 0, .checkpoint_every = 3}};
  REQUIRE(job.until(0, "backward", 8));
  for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
  const auto& end = job.ends_well(2);
  CHECK(end.generations[1].base_step == 6);
  CHECK(end.generations[1].steps_redone == 2);
}

TEST_CASE("all ranks die and no restart is left: the outcome has what the checkpoint had come to",
          "[simulated][restart]") {
  restarting_job job{{.seed = 0, .max_restarts = 1, .checkpoint_every = 3}};
  REQUIRE(job.until(0, "backward", 8));
  REQUIRE(job.announced(kind::checkpoint_written, 1));
  for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
  REQUIRE(job.until(kind::rank_started, 2));
  for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
  job.fails(1);
  const auto& end = *job.script.sim_job().outcome();
  CHECK(end.loop.steps == 6);
  CHECK(end.loop.samples > 0);
  CHECK(end.loop.samples % 6 == 0);  // as many in each step
}

TEST_CASE("the checkpoint to go on from is removed: ranks begin at a newer one, for free",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    job_without_ranks job{seed, 1};
    std::vector<std::shared_ptr<held_message>> orders;
    for (std::int32_t r = 0; r < restarting_job::ranks; ++r)
      orders.push_back(job.script.hold<form_generation>(r));
    REQUIRE(job.script.run_until([&] { return job.written() == 3 && job.kept() == 2; }));
    for (const auto& o : orders) job.script.release(o);
    const auto& end = job.ends_well(3);
    CHECK(end.generations[1].ended_by->hook == hooks::load_checkpoint::name);
    CHECK(end.generations[2].base_step > end.generations[1].base_step);
  }
}

// The link of a process that has never sent anything shows nothing.
TEST_CASE("a host is lost while a process starts there: it is named at the first deadline",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "on_train_batch_start", 5));
    const auto life = [&] { return job.script.sim_job().life_of(1)->incarnation; };
    const auto before = life();
    job.script.crash(1);
    REQUIRE(job.script.run_until([&] { return life() != before; }));
    job.script.crash(1, true);
    const auto& end = job.ends_well(3);
    const auto& why = *end.generations[1].ended_by;
    CHECK(why.kind == failure_kind::deadline);
    CHECK_THAT(why.what, Catch::EndsWith("did not form in 10000 ms: no answer from rank 1"));
  }
}

TEST_CASE("all ranks of a resumed job die: the record names the step of its checkpoint",
          "[simulated][restart]") {
  restarting_job job{{.seed = 0, .checkpoint_every = 3}};
  REQUIRE(job.until(0, "backward", 8));
  job.script.train_again();
  REQUIRE(job.until(0, "backward", 8));
  for (std::int32_t r = 0; r < restarting_job::ranks; ++r) job.script.crash(r);
  const auto& end = job.ends_well(2);
  CHECK(end.generations[1].base_step == 6);
  CHECK(end.generations[1].steps_redone == 2);
}

TEST_CASE("a rank dies in the orderly teardown: the job has finished", "[simulated][restart]") {
  restarting_job job{{.seed = 0}};
  REQUIRE(job.until(kind::teardown, 1));
  job.script.crash(2);
  const auto& end = job.script.run();
  CHECK(end.status == job_outcome::ending::finished);
  CHECK(job.script.weights() == job.script.reference_weights());
}

TEST_CASE("a receiver or a donor dies while the state is transferred", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < 2 * seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .ranks = 4}};
    REQUIRE(job.until(2, "backward", 5));
    job.script.crash(2);
    REQUIRE(job.until(kind::generation_closing, 1));
    job.script.crash(3);
    const auto whom = static_cast<std::int32_t>(std::array{0, 1, 3}[seed % 3]);  // 3 receives
    REQUIRE(job.until(whom, "restore_state"));
    job.script.crash(whom);
    if (seed % 6 == 4) job.script.crash(3);
    job.ends_well(3);
  }
}

TEST_CASE("an exception in any hook: the job goes on, and its text is in the record",
          "[simulated][restart]") {
  constexpr std::string_view hooks[]{
      "setup",           "on_train_start", "on_train_epoch_start", "on_train_batch_start",
      "training_step",   "backward",       "optimizer_step",       "optimizer_zero_grad",
      "save_checkpoint", "barrier",        "on_train_epoch_end",   "on_train_batch_end",
      "model_to_device", "on_fit_start"};
  for (const auto hook : hooks) {
    for (std::int32_t rank = 0; rank < restarting_job::ranks; ++rank) {
      INFO(hook << " on rank " << rank);
      restarting_job job{
          {.seed = static_cast<std::uint64_t>(rank), .checkpoint_every = 4, .accumulate = 2}};
      bool thrown = false;
      job.at_hook = [&](const learner_context& who, const troupe::hook& h) {
        if (who.rank != rank || name(h) != hook || thrown) return;
        if (where(h).step != undefined && where(h).step > 0 && where(h).step < 5) return;
        thrown = true;
        throw std::domain_error("disk full");
      };
      const auto& end = job.ends_well(2);
      CHECK(thrown);
      const auto& why = *end.generations[0].ended_by;
      CHECK(why.what == "disk full");
      CHECK(why.type == "std::domain_error");
      CHECK(why.rank == rank);
      CHECK(why.hook == hook);
      CHECK(std::ranges::none_of(job.entered, [](const hook_seen& h) {
        return h.hook == "on_exception";  // for the end of a job only
      }));
    }
  }
}

TEST_CASE("a rank that cannot rewind receives the state from the others", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    bool thrown = false;
    job.at_hook = [&](const learner_context& who, const hook& h) {
      if (who.rank != 1 || !h.is<hooks::rewind>() || std::exchange(thrown, true)) return;
      throw std::runtime_error("no copy");
    };
    REQUIRE(job.until(2, "on_train_batch_start", 5));
    job.script.crash(2);
    const auto& end = job.ends_well(2);
    CHECK(thrown);
    CHECK(end.generations[1].base_step >= 4);  // rank 0 may not have applied step 5
  }
}

TEST_CASE("exceptions on two ranks: the job goes on, and one is the cause",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    std::set<std::int32_t> thrown;
    job.at_hook = [&](const learner_context& who, const hook& h) {
      if (who.rank == 0 || !h.is<hooks::backward>() || where(h).step != 5) return;
      if (job.entered.back().generation > 1) return;  // the order came before its hook
      if (thrown.insert(who.rank).second)
        throw std::domain_error("rank " + std::to_string(who.rank));
    };
    const auto& end = job.ends_well(2);
    const auto& why = *end.generations[0].ended_by;
    CHECK(why.what == "rank " + std::to_string(why.rank));
  }
}

TEST_CASE("the same failure at the same step ends the job with the first cause",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed, .max_restarts = 50}};
    int thrown = 0;
    job.at_hook = [&](const learner_context& who, const hook& h) {
      if (who.rank != 1 || !h.is<hooks::training_step>() || where(h).step != 5) return;
      throw std::domain_error("attempt " + std::to_string(++thrown));
    };
    const auto& end = job.script.run();
    REQUIRE(end.status == job_outcome::ending::failed);
    const auto& first = end.failed_with->record;
    CHECK(first.what == "attempt " + std::to_string(thrown));
    CHECK(first.rank == 1);
    CHECK(thrown == 2);
    CHECK(end.generations.front().ended_by->what == "attempt 1");
    job.nothing_is_left();
  }
}

TEST_CASE("the budget is spent: the job fails with its first cause", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    const auto most = static_cast<std::int32_t>(1 + seed % 3);
    restarting_job job{{.seed = seed, .max_restarts = most}};
    for (std::int64_t step = 2; step <= 2 * (most + 1); step += 2) {
      REQUIRE(job.until(1, "on_train_batch_start", step));
      job.script.crash(1);
    }
    CHECK(job.fails(most).rank == 1);
    CHECK(job.script.sim_job().outcome()->generations.size() == static_cast<std::size_t>(most) + 1);
  }
}

TEST_CASE("a stop during the recovery: the job stops at a step, with a checkpoint",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    REQUIRE(job.recovers(seed % 3));
    caf::anon_send(job.script.supervisor(), caller_request{request_stop{stop_reason::caller}});
    const auto& end = job.script.run();
    REQUIRE(end.ok());
    CHECK(end.status == job_outcome::ending::stopped);
    CHECK(end.restarts == 1);
    CHECK(end.loop.steps >= 5);
    CHECK(end.loop.steps < restarting_job::steps);
    CHECK_THAT(end.last_checkpoint, Catch::Matchers::EndsWith(std::to_string(end.loop.steps)));
    job.nothing_is_left();
  }
}

TEST_CASE("an abort during the recovery ends the job at once", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "backward", 5));
    job.script.crash(1);
    REQUIRE(job.recovers(seed % 3));
    caf::anon_send(job.script.supervisor(), caller_request{request_abort{"enough"}});
    const auto& end = job.script.run();
    CHECK(end.status == job_outcome::ending::failed);
    CHECK(end.restarts <= 1);
    job.nothing_is_left();
  }
}

TEST_CASE("messages of old generations and incarnations change nothing", "[simulated][restart]") {
  const auto late = [](auto message, std::int32_t rank, std::uint64_t seed) {
    using word = decltype(message);
    INFO("seed " << seed << ", rank " << rank);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(rank) == 4; }));
    const auto held = job.script.template hold<word>(rank);
    REQUIRE(job.until(1, "on_train_batch_start", 6));
    job.script.crash(1);
    REQUIRE(job.script.run_until(
        [&] { return held->caught() && job.announced(kind::generation_active, 2); }));
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(0) == 8; }));
    const auto refused = job.script.marks_hit(coverage_point::fence_refused);
    job.script.release(held);
    job.script.release(held);
    job.ends_well(2);
    CHECK(job.script.marks_hit(coverage_point::fence_refused) >= refused + 2);
  };
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    late(step_done{}, 1, seed);  // of the incarnation that died
    late(step_done{}, 2, seed);  // of a survivor's old generation
  }
}

TEST_CASE("a rank that wakes after it was replaced changes nothing", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(2) == 5; }));
    const auto node = job.script.sim_job().life_of(2)->node;
    const auto wakes =
        job.script.in().time() + std::chrono::milliseconds{seed % 2 == 0 ? 2500 : 700};
    job.script.in().pause(node, wakes);
    const auto& end = job.ends_well(2);
    CHECK(end.generations[0].ended_by->rank == 2);
    CHECK(job.script.sim_job().life_of(2)->node != node);
  }
}

// The orders to the abandoned rank are late: it rewinds when its replacement trains.
TEST_CASE("an abandoned rank goes on: observers receive nothing more of it",
          "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    std::vector<std::string_view> notified;
    const auto make = [&] { return std::make_unique<hook_listener>(2, notified); };
    restarting_job job{{.seed = seed, .observer = make}};
    REQUIRE(job.until(1, "on_train_batch_start", 5));
    std::vector<std::shared_ptr<held_message>> orders;
    for (int i = 0; i < 8; ++i) orders.push_back(job.script.hold<close_generation>(2));
    const auto link = job.script.sim_job().life_of(2)->process->stream();
    job.script.crash(1);
    REQUIRE(job.script.run_until([&] { return link->over(0); }));
    link->cut(simulated_stream::cut_of::near_to_far);  // the end of the link does not reach it yet
    REQUIRE(job.until(2, "on_train_batch_start", 8));
    const auto before = notified.size();
    job.script.release(orders.front());
    REQUIRE(job.until(2, "rewind"));
    REQUIRE(job.until(2, "on_train_batch_start", 9));
    link->cut(simulated_stream::cut_of::none);
    job.ends_well(2);
    CHECK(notified.size() > before);
    CHECK(std::ranges::count(notified, "rewind") == 0);
  }
}

TEST_CASE("a pause that is shorter than the detection time is no failure", "[simulated][restart]") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(2) == 5; }));
    const auto node = job.script.sim_job().life_of(2)->node;
    job.script.in().pause(node, job.script.in().time() + std::chrono::milliseconds{200});
    job.ends_well(1);
  }
}

TEST_CASE("an order of the supervisor comes twice in any phase: the job ends as undisturbed",
          "[simulated][restart]") {
  const auto twice = [](auto order, std::uint64_t seed) {
    using word = decltype(order);
    INFO("seed " << seed);
    restarting_job job{{.seed = seed}};
    REQUIRE(job.until(1, "on_train_batch_start", 5));
    const auto held = job.script.template hold<word>(0);
    job.script.crash(1);
    REQUIRE(job.script.run_until([&] { return held->caught(); }));
    job.script.release(held);
    job.script.release(held);
    REQUIRE(job.script.run_until([&] { return job.script.steps_of(0) == 8; }));
    job.script.release(held);  // and much later
    job.ends_well(2);
  };
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    twice(close_generation{}, seed);
    twice(form_generation{}, seed);
    twice(activate_generation{}, seed);
  }
}

TEST_CASE("jobs that restart end in the reference's bytes under each kind of fault",
          "[simulated][restart][campaign]") {
  for (const auto faults : {"crash_rank", "crash_host", "pause", "throw_in_hook", "not_a_number",
                            "old_word, crash_rank", "disconnect, crash_rank"}) {
    run_plan plan;
    plan.faults.may = fault_set::parse(faults);
    plan.faults.swarm = false;
    const auto r = explore({.ranks = 3, .steps = 12, .max_restarts = 3}, plan, {.runs = 60});
    INFO(faults);
    for (const auto& v : r.violating) UNSCOPED_INFO(to_text(case_of(v, r.variants.front())));
    CHECK(r.held("the end equals the fault-free one"));
    CHECK(r.held("state equals the reference"));
    CHECK(r.held("each sample once"));
    CHECK(r.held("steps are one chain"));
    CHECK(r.held("a step is the same on all ranks"));
    CHECK(r.held("restarts stay within their budget"));
    CHECK(r.held("one generation is active"));
    CHECK(r.met("a generation followed another"));
  }
}

TEST_CASE("a rank is killed at every moment of a step", "[simulated][restart]") {
  for (std::uint64_t moment = 0; moment < 90; ++moment) {
    for (std::int32_t rank = 0; rank < restarting_job::ranks; ++rank) {
      INFO("rank " << rank << ", " << moment << " events after the step began");
      restarting_job job{{.seed = moment, .buffers = true}};
      REQUIRE(job.until(1, "on_train_batch_start", 5));
      for (std::uint64_t i = 0; i < moment; ++i) job.script.in().step();
      job.script.crash(rank);
      job.ends_well(2);
    }
  }
}

// The step is applied in an earlier run of the lane than the one that fails.
TEST_CASE("one hook per run: an exception after the update keeps the step",
          "[simulated][restart]") {
  restarting_job job{{.seed = 0, .schedule = scheduling::fifo, .one_hook_per_run = true}};
  std::set<std::int32_t> thrown;
  job.at_hook = [&](const learner_context& who, const hook& h) {
    if (!h.is<hooks::on_train_batch_end>() || job.script.steps_of(who.rank) != 6) return;
    if (thrown.insert(who.rank).second) throw std::domain_error("after the update");
  };
  job.ends_well(2);
  CHECK(thrown.size() == 3);
}
