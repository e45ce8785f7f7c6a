// Goal: each fault of a node has the effect that its name says: crashes, pauses, clocks, timers,
// cuts, and slow ranks.
#include <caf/event_based_actor.hpp>
#include <caf/send.hpp>

#include "apps/testing/scripted_simulation.hpp"
#include "troupe/failure.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using ms = std::chrono::milliseconds;

// An actor that records messages with their times.
struct witness {
  std::vector<std::int64_t> received;
  std::vector<std::chrono::nanoseconds> when;
  simulation& in;
  simulation::node_id where;
  caf::actor actor;

  witness(simulation& of, std::uint32_t host) : in(of), where(of.add_node(host, "witness")) {
    actor = in.system().spawn([this](caf::event_based_actor*) {
      return caf::behavior{[this](std::int64_t n) {
        received.push_back(n);
        when.push_back(in.time());
      }};
    });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(actor), where);
  }
  ~witness() { caf::anon_send_exit(actor, caf::exit_reason::kill); }
  witness(const witness&) = delete;
  witness& operator=(const witness&) = delete;

  void say(std::int64_t n) { caf::anon_send(actor, n); }
  // Sends itself a delayed message.
  void say_after(std::chrono::nanoseconds delay, std::int64_t n) {
    in.system().clock().schedule_message(
        in.system().clock().now() + delay, caf::actor_cast<caf::strong_actor_ptr>(actor),
        caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, n));
  }
};

void go_on_for(simulation& in, std::chrono::nanoseconds span) {
  bool there = false;
  in.at(0, span, [&] { there = true; });
  while (!there && in.step()) continue;
}

void go_on(simulation& in) {
  for (int n = 0; n < 10'000 && in.step(); ++n) continue;
  REQUIRE(in.idle());
}

// Number of messages over a rank's link since it began.
struct words {
  std::size_t to_rank = 0;
  std::size_t to_supervisor = 0;
};
words words_of(scripted_simulation& s, std::int32_t rank) {
  const auto home = static_cast<std::int32_t>(s.sim_job().supervisor_node());
  const auto there = static_cast<std::int32_t>(s.sim_job().life_of(rank)->node);
  words all;
  for (const auto& n : s.in().notes()) {
    if (!n.what.starts_with("get ")) continue;
    if (n.from == home && n.to == there) ++all.to_rank;
    if (n.from == there && n.to == home) ++all.to_supervisor;
  }
  return all;
}

std::size_t said(scripted_simulation& s, std::string_view what) {
  return static_cast<std::size_t>(std::ranges::count_if(
      s.in().notes(), [&](const trace_note& n) { return n.what.find(what) != std::string::npos; }));
}

}  // namespace

TEST_CASE("a crash drops inbox, timers and events of its node and of no other",
          "[simulated][node]") {
  simulation in{choices::of_seed(1), {}};
  witness gone{in, 1};
  witness stays{in, 1};
  int happened = 0;
  for (auto* w : {&gone, &stays}) {
    w->say(1);
    go_on(in);
    w->say(2);               // waits in its inbox
    w->say_after(ms{5}, 3);  // a timer
    in.at(w->where, ms{5}, [&] { ++happened; });
    if (w == &gone) in.crash(w->where);
    w->say(4);  // to a dead actor
  }
  go_on(in);
  CHECK(gone.received == std::vector<std::int64_t>{1});
  CHECK(stays.received == std::vector<std::int64_t>{1, 2, 4, 3});
  CHECK(happened == 1);
  CHECK_FALSE(in.alive(gone.where));
  CHECK_FALSE(in.has_actors(gone.where));
  CHECK(in.actors() == 1);
}

TEST_CASE("a paused node handles nothing, and after the pause everything in order",
          "[simulated][node]") {
  for (const auto schedule : {scheduling::fifo, scheduling::random, scheduling::pct}) {
    INFO(to_string(schedule));
    simulation in{choices::of_seed(1), {.schedule = schedule}};
    witness paused{in, 1};
    witness other{in, 1};
    std::vector<std::chrono::nanoseconds> happened;
    in.pause(paused.where, in.time() + ms{100});
    const auto until = in.time() + ms{100};
    for (auto* w : {&paused, &other}) {
      w->say(1);
      w->say(2);
      w->say_after(ms{10}, 3);
      w->say_after(ms{20}, 4);
    }
    in.at(paused.where, ms{30}, [&] { happened.push_back(in.time()); });
    go_on_for(in, ms{99});
    CHECK(paused.received.empty());
    CHECK(happened.empty());
    CHECK(other.received == std::vector<std::int64_t>{1, 2, 3, 4});
    go_on(in);
    CHECK(paused.received == std::vector<std::int64_t>{1, 2, 3, 4});
    for (const auto at : paused.when) CHECK(at == until);
    CHECK(happened == std::vector<std::chrono::nanoseconds>{until});
  }
}

TEST_CASE("a skewed clock runs fast or slow with its timers and never jumps", "[simulated][node]") {
  simulation in{choices::of_seed(1), {.schedule = scheduling::fifo}};
  witness fast{in, 1};
  witness slow{in, 1};
  witness right{in, 1};
  const auto began = in.time();
  in.skew(fast.where, 250);
  in.skew(slow.where, -200);
  for (auto* w : {&fast, &slow, &right}) w->say_after(ms{1000}, 1);
  go_on(in);
  CHECK(fast.when.front() - began == ms{800});
  CHECK(slow.when.front() - began == ms{1250});
  CHECK(right.when.front() - began == ms{1000});
  const auto passed = in.time() - began;
  CHECK(in.clock_of(fast.where)() - began == passed * 5 / 4);
  CHECK(in.clock_of(slow.where)() - began == passed * 4 / 5);
  CHECK(in.clock_of(right.where)() - began == passed);
  const auto before = in.clock_of(fast.where)();
  in.skew(fast.where, -500);
  CHECK(in.clock_of(fast.where)() == before);
  go_on_for(in, ms{100});
  CHECK(in.clock_of(fast.where)() - before == ms{50});
}

TEST_CASE("late timers are late by at most the given time; messages are not late",
          "[simulated][node]") {
  simulation in{choices::of_seed(2), {.schedule = scheduling::random}};
  witness late{in, 1};
  witness right{in, 1};
  in.late_timers(late.where, ms{64});
  const auto began = in.time();
  for (std::int64_t n = 0; n < 100; ++n)
    for (auto* w : {&late, &right}) w->say_after(ms{100}, n);
  late.say(100);
  go_on(in);
  REQUIRE(late.when.size() == 101);
  CHECK(late.received.front() == 100);
  CHECK(late.when.front() == began);
  for (std::size_t i = 1; i < late.when.size(); ++i) {
    CHECK(late.when[i] - began >= ms{100});
    CHECK(late.when[i] - began <= ms{164});
  }
  CHECK(late.when.back() - began > ms{140});
  for (const auto at : right.when) CHECK(at - began == ms{100});
}

TEST_CASE("a slow node handles its events one after the other, in order", "[simulated][node]") {
  for (const auto schedule : {scheduling::fifo, scheduling::random, scheduling::pct}) {
    INFO(to_string(schedule));
    simulation in{choices::of_seed(3), {.schedule = schedule}};
    witness slow{in, 1};
    in.slow(slow.where, ms{10});
    go_on(in);
    const auto began = in.time();
    for (std::int64_t n = 0; n < 5; ++n) slow.say(n);
    go_on(in);
    CHECK(slow.received == std::vector<std::int64_t>{0, 1, 2, 3, 4});
    for (std::size_t i = 1; i < slow.when.size(); ++i)
      CHECK(slow.when[i] - slow.when[i - 1] == ms{10});
    CHECK(slow.when.back() - began >= ms{40});
  }
}

TEST_CASE("each event that waits for a slow node is moved once", "[simulated][node]") {
  constexpr std::uint64_t many = 1000;
  simulation in{choices::of_seed(4), {.schedule = scheduling::fifo}};
  const auto node = in.add_node(1, "slow");
  in.slow(node, ms{1});
  std::vector<std::uint64_t> happened;
  for (std::uint64_t n = 0; n < many; ++n)
    in.at(node, ms{0}, [&happened, n] { happened.push_back(n); });
  const auto began = in.time();
  std::uint64_t turns = 0;
  while (in.step()) ++turns;
  CHECK(turns <= 4 * many);  // postponing all of them at each turn would take half a million
  REQUIRE(happened.size() == many);
  CHECK(std::ranges::is_sorted(happened));
  CHECK(in.time() - began == ms{many - 1});
}

TEST_CASE("crash of a paused node: its waiting events are dropped", "[simulated][node]") {
  simulation in{choices::of_seed(4), {.schedule = scheduling::fifo}};
  const auto node = in.add_node(1, "paused");
  const auto held = std::make_shared<int>(0);
  in.pause(node, in.time() + ms{100});
  for (int n = 0; n < 3; ++n) in.at(node, ms{n}, [held] { ++*held; });
  go_on_for(in, ms{50});
  CHECK(held.use_count() == 4);
  in.crash(node);
  go_on(in);
  CHECK(in.idle());
  CHECK(*held == 0);
  CHECK(held.use_count() == 1);
}

TEST_CASE("heartbeats and limits of a link follow the clocks and timers of its ends",
          "[simulated][node]") {
  const auto lives_for = [](auto apply) {
    scripted_simulation s{{.seed = 1}};
    witness a{s.in(), 7};
    witness b{s.in(), 8};
    const auto there = s.sim_job().linked(a.actor, b.actor);
    go_on_for(s.in(), ms{250});
    const auto began = s.in().time();
    apply(s.in(), a, b, *s.sim_job().own_links().front()->stream());
    while (s.in().time() - began < ms{3000} && !s.sim_job().own_links().empty() && s.in().step())
      continue;
    return std::chrono::duration_cast<ms>(s.in().time() - began);
  };
  const auto cut = [](simulated_stream& link) { link.cut(simulated_stream::cut_of::both); };
  const auto plain =
      lives_for([&](simulation&, witness&, witness&, simulated_stream& link) { cut(link); });
  CHECK(plain > ms{400});
  CHECK(plain <= ms{600});
  // Both clocks run at double speed, so silence is too long after half the time.
  const auto fast = lives_for([&](simulation& in, witness& a, witness& b, simulated_stream& link) {
    in.skew(a.where, 1000), in.skew(b.where, 1000);
    cut(link);
  });
  CHECK(fast > ms{150});
  CHECK(fast <= ms{350});
  // Nothing is cut, but one end hardly ever sends.
  CHECK(lives_for([](simulation&, witness&, witness&, simulated_stream&) {}) >= ms{3000});
  const auto late = lives_for([](simulation& in, witness& a, witness&, simulated_stream&) {
    in.late_timers(a.where, ms{1500});
  });
  CHECK(late < ms{3000});
}

TEST_CASE("a dead process is reported by its host; a dead host is noticed by silence",
          "[simulated][node]") {
  for (const bool host : {false, true}) {
    INFO("host " << host);
    scripted_simulation s{{.seed = 1, .record = true}};
    s.train({.ranks = 3, .steps = 40});
    REQUIRE(s.run_until([&] { return s.steps_of(1) == 5; }));
    s.crash(1, host);
    go_on_for(s.in(), ms{5});
    CHECK(said(s, "link ended: the other side has closed the link") == (host ? 0U : 1U));
    CHECK(said(s, "send close_generation") == (host ? 0U : 2U));
    go_on_for(s.in(), ms{290});
    const auto stand = s.steps_of(0);
    CHECK(stand <= 6);  // its collective never completes
    CHECK(said(s, "send closed_generation") == (host ? 0U : 2U));
    const auto& end = s.run();
    REQUIRE(end.failed_with);
    CHECK(end.failed_with->record.rank == 1);
    CHECK(said(s, "link ended: the other side was silent for too long") >= (host ? 1U : 0U));
    CHECK(s.steps_of(0) == stand);
  }
}

TEST_CASE("crash during a collective: peers wait until they are notified", "[simulated][node]") {
  scripted_simulation s{{.seed = 1, .record = true}};
  s.train({.ranks = 3, .steps = 40});
  REQUIRE(s.run_until([&] { return s.steps_of(1) == 5; }));
  const auto handles = s.sim_job().fabric().handles();
  s.crash(2, true);
  CHECK(s.sim_job().fabric().handles() == handles - 1);
  go_on_for(s.in(), ms{300});
  CHECK(said(s, "send rank_failed") == 0);
  CHECK(s.steps_of(0) == s.steps_of(1));
  CHECK(s.steps_of(0) <= 6);
  CHECK(s.run().failed_with->record.rank == 2);
}

TEST_CASE("each direction of a rank's link can be cut", "[simulated][node]") {
  using cut_of = simulated_stream::cut_of;
  for (const auto cut : {cut_of::both, cut_of::near_to_far, cut_of::far_to_near}) {
    const bool to_rank = cut != cut_of::far_to_near;
    const bool to_supervisor = cut != cut_of::near_to_far;
    INFO("to rank " << to_rank << ", to supervisor " << to_supervisor);
    scripted_simulation s{{.seed = 1, .record = true}};
    s.train({.ranks = 3, .steps = 60});
    REQUIRE(s.run_until([&] { return s.steps_of(1) == 5; }));
    s.sim_job().life_of(1)->process->stream()->cut(cut);
    const auto before = words_of(s, 1);
    const auto others = words_of(s, 2);
    caf::anon_send(s.supervisor(),
                   caller_request{request_stop{stop_reason::caller}});  // received and acknowledged
    go_on_for(s.in(), ms{200});
    CHECK((words_of(s, 1).to_rank > before.to_rank) == !to_rank);
    CHECK((words_of(s, 1).to_supervisor > before.to_supervisor) == !to_supervisor);
    CHECK(words_of(s, 2).to_rank > others.to_rank);
    CHECK(words_of(s, 2).to_supervisor > others.to_supervisor);
    s.sim_job().life_of(1)->process->stream()->cut(simulated_stream::cut_of::none);
    const auto& end = s.run();  // what was held back arrives
    CHECK(end.status == job_outcome::ending::stopped);
    CHECK(end.loop.steps < 60);
    CHECK(words_of(s, 1).to_rank > before.to_rank);
    CHECK(words_of(s, 1).to_supervisor > before.to_supervisor);
  }
}

TEST_CASE("a lasting cut of either direction ends the link", "[simulated][node]") {
  using cut_of = simulated_stream::cut_of;
  for (const auto cut : {cut_of::both, cut_of::near_to_far, cut_of::far_to_near}) {
    const bool to_rank = cut != cut_of::far_to_near;
    const bool to_supervisor = cut != cut_of::near_to_far;
    INFO("to rank " << to_rank << ", to supervisor " << to_supervisor);
    scripted_simulation s{{.seed = 1}};
    s.train({.ranks = 3, .steps = 60});
    REQUIRE(s.run_until([&] { return s.steps_of(1) == 5; }));
    s.sim_job().life_of(1)->process->stream()->cut(cut);
    const auto& end = s.run();
    REQUIRE(end.failed_with);
    CHECK(end.failed_with->record.rank == 1);
  }
}

TEST_CASE("a rank with blocked collectives delays its peers, and nothing is lost",
          "[simulated][node]") {
  scripted_simulation s{{.seed = 1}};
  s.train({.ranks = 3, .steps = 20});
  REQUIRE(s.run_until([&] { return s.steps_of(1) == 5; }));
  s.sim_job().fabric().cut(1, true);
  go_on_for(s.in(), ms{200});
  const auto stand = s.steps_of(0);
  go_on_for(s.in(), std::chrono::seconds{1});  // control links work, so no rank is abandoned
  CHECK(s.steps_of(0) == stand);
  CHECK(s.steps_of(1) <= stand + 1);
  s.sim_job().fabric().cut(1, false);
  CHECK(s.run().ok());
  CHECK(s.weights() == s.reference_weights());
}

TEST_CASE("a slow rank slows every step", "[simulated][node]") {
  scripted_simulation s{{.seed = 1, .cluster = {.compute = ms{20}}}};
  s.train({.ranks = 3, .steps = 40});
  const auto time_of = [&](std::int64_t step) {
    REQUIRE(s.run_until([&] { return s.steps_of(0) == step; }));
    return s.in().time();
  };
  const auto at_5 = time_of(5);
  const auto at_10 = time_of(10);
  s.sim_job().life_of(2)->slow_per_cent = 1000;
  const auto at_15 = time_of(15);
  const auto at_20 = time_of(20);
  const auto factor =
      static_cast<double>((at_20 - at_15).count()) / static_cast<double>((at_10 - at_5).count());
  CHECK(factor > 9);
  CHECK(factor < 11);
  CHECK(s.run().ok());
}

TEST_CASE("rank paused until its run has ended: its messages are ignored", "[simulated][node]") {
  scripted_simulation s{{.seed = 7, .record = true}};
  s.train({.ranks = 3, .steps = 20, .checkpoint_every = 2});
  REQUIRE(s.run_until([&] { return s.steps_of(2) == 7; }));
  auto* zombie = s.sim_job().life_of(2);
  const auto node = zombie->node;
  const auto wakes = s.in().time() + std::chrono::seconds{2};
  s.in().pause(node, wakes);
  CHECK(s.run().failed_with->record.rank == 2);
  REQUIRE(s.in().time() < wakes);
  s.train_again();
  const auto& end = s.run();
  CHECK(end.ok());
  CHECK(s.in().has_actors(node));  // still paused, or just continued
  CHECK(s.weights() == s.reference_weights());
  s.settle();
  CHECK_FALSE(s.in().has_actors(node));  // its link has ended
  const auto from_zombie = [&](const trace_note& n) {
    return n.from == static_cast<std::int32_t>(node) && n.at >= wakes.count() &&
           n.what.starts_with("get ");
  };
  CHECK(std::ranges::none_of(s.in().notes(), from_zombie));
}
