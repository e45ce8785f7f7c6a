// Goal: faults befall hosts, the supervisor's process and a test's own processes as well as ranks,
// and who is struck is struck.
#include <caf/all.hpp>

#include "apps/testing/explore.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

using ms = std::chrono::milliseconds;

// Says once per step of rank 0 to an actor elsewhere what that was, and asks for a stop when told.
class stop_asker final : public guest {
public:
  explicit stop_asker(std::int64_t behind) : behind_(behind) {}

  void begins(world& in, rehearsal& stage) override {
    leave();
    actor_ = in.system().spawn([behind = behind_](caf::event_based_actor* self) {
      self->set_down_handler([](const caf::down_msg&) {});
      return caf::behavior{[=](const caf::actor& to) {
                             self->monitor(to);
                             self->become([=](std::int64_t step) {
                               if (step == behind)
                                 self->send(to, request_stop{stop_reason::caller});
                             });
                           },
                           [](std::int64_t) {}};
    });
    in.settle(caf::actor_cast<caf::strong_actor_ptr>(actor_), in.add_place(50, "asker"));
    caf::anon_send(actor_, caf::actor_cast<caf::actor>(stage.linked(actor_, stage.supervisor())));
  }
  void stepped(const field_step& what, const complain_fn&) override {
    if (what.rank == 0) caf::anon_send(actor_, what.step);
  }
  void ended(const job_outcome&, const complain_fn&) override { leave(); }

private:
  void leave() {
    if (actor_) caf::anon_send_exit(actor_, caf::exit_reason::user_shutdown);
    actor_ = nullptr;
  }
  const std::int64_t behind_;
  caf::actor actor_;
};

constexpr std::uint64_t at_time = 400'000'000;  // of the only strike
constexpr std::uint64_t whom_of[]{0, 4, 5, 7};  // draws: rank, host, program, guest

run_report struck_by(fault what, target whom, std::uint64_t amount, bool with_guest) {
  const field_job job{.ranks = 4, .steps = 30};
  run_plan plan;
  plan.world.schedule = scheduling::fifo;
  plan.world.record = true;
  plan.around.ranks_per_host = 2;
  plan.faults.may.add(what);
  plan.faults.swarm = false;
  plan.faults.strikes = 1;
  if (with_guest) plan.guests = {[] { return std::make_unique<stop_asker>(1000); }};
  const std::vector<choice> list{{site::fault, 0, 0, 1},
                                 {site::detail, 256, 2, at_time},
                                 {site::detail, 256, 3, 2},
                                 {site::detail, 256, 4, amount},
                                 {site::detail, 256, 6, whom_of[static_cast<std::size_t>(whom)]}};
  auto reference = reference_of(job);
  return run_field(job, plan, choices::of_list(1, list), reference);
}

// How many events befell places of that name in a span behind the strike.
std::size_t events_in(const run_report& r, const std::string& place, ms from, ms to) {
  const auto struck =
      std::ranges::find_if(r.notes, [](const noted& n) { return n.what.starts_with("fault: "); });
  REQUIRE(struck != r.notes.end());
  const auto since = [&](const footprint& f) {
    return std::chrono::nanoseconds{f.at - struck->at};
  };
  return static_cast<std::size_t>(std::ranges::count_if(r.trail, [&](const footprint& f) {
    return r.places[static_cast<std::size_t>(f.place)] == place && since(f) > from && since(f) < to;
  }));
}

}  // namespace

TEST_CASE("a pause strikes a rank, its host, the program or a guest", "[simulated][strikes]") {
  constexpr std::uint64_t amount = 3;  // 500 ms * 10 / 24
  const std::map<target, std::vector<std::string>> silent{{target::rank, {"rank 2"}},
                                                          {target::host, {"rank 2", "rank 3"}},
                                                          {target::program, {"supervisor"}},
                                                          {target::guest, {"asker"}}};
  for (const auto& [whom, places] : silent) {
    INFO(to_string(whom));
    const auto r = struck_by(fault::pause, whom, amount, true);
    CHECK(r.violations.empty());
    CHECK(r.finished);
    CHECK(r.attempts == 1);
    CHECK(r.faults[static_cast<std::size_t>(fault::pause)] == 1);
    for (const auto* place : {"supervisor", "rank 0", "rank 2", "rank 3", "asker"}) {
      INFO(place);
      const bool stands = std::ranges::find(places, place) != places.end();
      CHECK((events_in(r, place, ms{0}, ms{200}) == 0) == stands);
      CHECK(events_in(r, place, ms{200}, ms{400}) > 0);
    }
  }
}

TEST_CASE("a fault that has no such target befalls the rank, and a guest only where there is one",
          "[simulated][strikes]") {
  const auto befell = [](const run_report& r) {
    const auto struck =
        std::ranges::find_if(r.notes, [](const noted& n) { return n.what.starts_with("fault: "); });
    return struck == r.notes.end() ? std::string{} : r.places[static_cast<std::size_t>(struck->to)];
  };
  CHECK(befell(struck_by(fault::data_cut, target::program, 1, true)) == "rank 2");
  CHECK(befell(struck_by(fault::cut, target::program, 1, true)) == "rank 2");
  CHECK(befell(struck_by(fault::pause, target::guest, 1, false)) == "rank 2");
  CHECK(befell(struck_by(fault::pause, target::guest, 1, true)) == "asker");
  CHECK(befell(struck_by(fault::cut, target::guest, 1, true)) == "asker");
  CHECK(befell(struck_by(fault::crash_rank, target::guest, 1, true)) == "asker");
  for (const auto what : {fault::pause, fault::slow, fault::skew, fault::late_timers})
    CHECK(befell(struck_by(what, target::program, 1, true)) == "supervisor");
}

TEST_CASE("a program that stands still for too long loses its ranks, and the job goes on",
          "[simulated][strikes]") {
  const auto r = struck_by(fault::pause, target::program, 8, false);
  CHECK(r.violations.empty());
  CHECK(r.finished);
  CHECK(r.attempts == 2);
  CHECK(r.product[static_cast<std::size_t>(coverage_point::link_silent)] >= 4);
  CHECK(r.product[static_cast<std::size_t>(coverage_point::rank_orphaned)] == 4);
}

TEST_CASE("a crash of a guest is nobody's failure, and what it does not ask is not done",
          "[simulated][strikes]") {
  const auto r = struck_by(fault::crash_rank, target::guest, 1, true);
  CHECK(r.violations.empty());
  CHECK(r.finished);
  CHECK(r.attempts == 1);
  CHECK(events_in(r, "asker", ms{0}, ms{10'000}) == 0);
}

TEST_CASE("swarms strike hosts, programs and guests, and nothing breaks", "[simulated][strikes]") {
  run_plan plan;
  plan.faults.may = fault_set::parse(
      "pause, slow, cut, one_way_cut, skew, late_timers, crash_rank, lose, repeat, reorder");
  plan.guests = {[] { return std::make_unique<stop_asker>(7); }};
  std::uint64_t stopped = 0;
  const auto r = explore({.ranks = 4, .steps = 12}, plan, {.runs = 300});
  for (const auto& bad : r.violating) FAIL(bad.violations.front() << " of seed " << bad.seed);
  stopped += r.marks.at("stopped at a step");
  CHECK(r.clean());
  CHECK(stopped > 100);
  CHECK(r.met("a rank ends because its supervisor is gone"));
}
