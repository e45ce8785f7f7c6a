// Goal: a lost control message delays a job and never ends it. The supervisor sends its order again
// to silent ranks, a bounded number of times. Ranks repeat their last report.
#include "actors/rank_machine.hpp"
#include "actors/supervisor_machine.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;

namespace {

fence at_rank(std::uint64_t rank, std::int64_t step = 0) {
  fence at;
  at.job = job_id{9};
  at.generation = generation_id{1};
  at.incarnation = incarnation_id{100 + rank};
  at.step = step_id{step};
  return at;
}

// A supervisor with two active ranks. `deadline` is the deadline that it armed last.
struct active_supervisor {
  supervisor_machine machine{job_id{9}, 2, derive({})};
  std::uint64_t deadline = 0;
  std::vector<std::string> sent;  ///< orders caused by the last event, as "0 activate"

  active_supervisor() {
    receive(supervision::begin{{incarnation_id{100}, incarnation_id{101}}});
    receive(prepared{at_rank(0)});
    receive(prepared{at_rank(1)});
  }
  void receive(const supervision::event& what) {
    sent.clear();
    for (const auto& a : machine.on(what)) {
      if (const auto* arm = std::get_if<supervision::arm>(&a)) deadline = arm->id;
      if (const auto* message = std::get_if<supervision::send>(&a)) {
        static const std::vector<std::string> names{"form",    "activate", "propose",
                                                    "stop_at", "close",    "tear_down"};
        sent.push_back(std::to_string(message->rank) + " " + names.at(message->what.index()));
      }
    }
  }
  void wait() { receive(deadline_passed{deadline}); }
};

using texts = std::vector<std::string>;

rank_machine active_rank() {
  trainer_options how;
  how.ranks = 1;
  how.checkpoint.enabled = false;
  rank_machine rank{
      {job_id{9}, 0, incarnation_id{100}, make_plan(how, stage::call), derive(how.time)}};
  rank.on(form_generation{at_rank(0), 1});
  rank.on(ranks::opened{});
  rank.on(activate_generation{at_rank(0)});
  REQUIRE(rank.phase() == ranks::phase::active);
  return rank;
}

ranks::answered answer(const rank_machine& rank, std::uint64_t run, std::uint32_t hooks) {
  ranks::answered out;
  out.at = rank.mine();
  out.at.sequence = sequence_id{run};
  out.handled = hooks;
  return out;
}

}  // namespace

TEST_CASE("the supervisor repeats its order only to ranks that stay silent", "[supervisor]") {
  active_supervisor s;
  s.receive(step_done{at_rank(1, 1)});
  s.wait();
  CHECK(s.sent == texts{"0 activate"});
  s.wait();
  CHECK(s.sent == texts{"0 activate", "1 activate"});  // rank 1 has sent nothing since
  s.receive(step_done{at_rank(0, 1)});
  s.receive(step_done{at_rank(1, 2)});
  s.wait();
  CHECK(s.sent.empty());
}

TEST_CASE("repetitions are bounded and start again after a message arrives", "[supervisor]") {
  active_supervisor s;
  for (std::uint32_t i = 0; i < supervisor_machine::asks_max; ++i) {
    s.wait();
    CHECK(s.sent.size() == 2);
  }
  const auto last = s.deadline;
  s.receive(step_done{at_rank(0, 1)});
  CHECK(s.deadline > last);
  s.wait();
  CHECK(s.sent == texts{"1 activate"});
}

TEST_CASE("the supervisor repeats its request for a missing vote or a missing end",
          "[supervisor]") {
  active_supervisor s;
  s.receive(step_done{at_rank(0, 1)});
  s.receive(step_done{at_rank(1, 1)});
  s.receive(request_stop{stop_reason::caller});
  s.receive(stop_vote{at_rank(0, 2)});
  s.wait();
  CHECK(s.sent == texts{"1 propose"});
  s.receive(stop_vote{at_rank(1, 1)});
  CHECK(s.sent == texts{"0 stop_at", "1 stop_at"});
  s.receive(rank_finished{at_rank(0, 2), {}, stop_reason::caller, {}, {}});
  s.wait();
  CHECK(s.sent == texts{"1 stop_at"});
}

TEST_CASE("a failure report received twice counts as one failure", "[supervisor]") {
  active_supervisor s;
  failure what;
  what.id = {at_rank(1).incarnation, 1};
  what.type = "std::domain_error";
  what.rank = 1;
  s.receive(rank_failed{at_rank(1), without_exception(what)});
  CHECK(s.machine.phase() == supervision::phase::closing);
  const auto once = s.machine;
  s.receive(rank_failed{at_rank(1), without_exception(what)});
  CHECK(s.machine == once);
}

TEST_CASE("a failed rank that gets its order again repeats the same failure", "[rank]") {
  auto rank = active_rank();
  CHECK(rank.on(activate_generation{at_rank(0)}).empty());  // the rank is still working
  auto bad = answer(rank, 1, 0);
  bad.outcome.verdict = run_verdict::failed;
  auto& why = bad.what.emplace();
  why.type = "std::domain_error";
  why.what = "disk full";
  const auto id = rank.next_failure();
  rank.on(bad);
  REQUIRE(rank.phase() == ranks::phase::failed);
  const auto said = rank.on(activate_generation{at_rank(0)});
  REQUIRE(said.size() == 1);
  const auto& again = std::get<rank_failed>(std::get<ranks::report>(said.front()));
  CHECK(again.local->record.what == "disk full");
  CHECK(again.local->record.rank == 0);
  CHECK(again.local->record.id == id);
  CHECK(rank.next_failure() == failure_id{id.incarnation, id.sequence + 1});
}

TEST_CASE("two failures with equal texts but different ids are two failures", "[supervisor]") {
  active_supervisor s;
  failure what;
  what.type = "std::domain_error";
  what.rank = 1;
  for (const std::uint64_t sequence : {1, 2}) {
    what.id = {at_rank(1).incarnation, sequence};
    s.receive(rank_failed{at_rank(1), without_exception(what)});
  }
  what.id = {};  // as from a process that has ended: the supervisor assigns the number
  CHECK(s.machine.next_failure() == failure_id{incarnation_id{}, 3});
  s.receive(rank_failed{at_rank(1), without_exception(what)});
  CHECK(s.machine.next_failure() == failure_id{incarnation_id{}, 4});
}

TEST_CASE("a finished rank that gets its order again repeats its end", "[rank]") {
  auto rank = active_rank();
  std::vector<ranks::action> said;
  // A call consists of a few runs. The test answers each run whole.
  for (std::uint64_t run = 1; rank.phase() == ranks::phase::active; ++run) {
    REQUIRE(run < 10);
    for (std::uint32_t hooks = 1; hooks < 20; ++hooks) {
      auto copy = rank;
      said = copy.on(answer(rank, run, hooks));
      if (copy.phase() == ranks::phase::failed) continue;  // this run has another number of hooks
      rank = copy;
      break;
    }
  }
  REQUIRE(rank.phase() == ranks::phase::finished);
  const auto again = rank.on(activate_generation{at_rank(0)});
  REQUIRE(again.size() == 1);
  CHECK(std::holds_alternative<rank_finished>(std::get<ranks::report>(again.front())));
}
