// Goal: jobs whose ranks run behind links end like jobs with local ranks under any schedule. A
// process that dies at any moment is the first cause, and nothing is left over.
#include "actors/remote_rank.hpp"

#include <set>

#include "actors/rank_process.hpp"
#include "apps/testing/scripted_simulation.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/wire/link_codec.hpp"
#include "tests/support/integer_learner.hpp"

#include "tests/support/catch.hpp"

using namespace troupe;
using namespace troupe::testing;

namespace {

// Encodes and decodes every message that crosses the link.
link_message across(const link_message& m) {
  const auto packed = pack(m, nullptr);
  return unpack(packed.head, packed.attachments, nullptr);
}

// Simulates a process: a rank in the same simulation, behind a link that can be cut.
class made_up_process : public launcher_client {
public:
  made_up_process(process_identity who, process_sink sink, const rank_process_options& home,
                  caf::actor_system& system)
      : who_(who), sink_(std::move(sink)), link_(*this), home_(home), system_(system) {
    resident_ = std::make_unique<rank_host>(*this, home_, system_);
  }

  const process_identity& who() const override { return who_; }
  troupe::link& control() override { return link_; }
  const std::vector<int>& descriptors() const override { return none_; }
  void carry(const tensor_bytes*) override {}
  void enter(std::int32_t rank, const hook& what) noexcept override {
    last_ = {rank, std::string{name(what)}};
  }
  bool serve(std::function<void(link_message&&)>) override { return true; }

  void receive(const link_message& m) {
    if (resident_) resident_->receive(across(m));
  }
  void release() {
    process_end end;
    end.clean = resident_ && resident_->ended();
    end.given_up = !end.clean;
    end.what = make_failure(failure_kind::exit, "");
    end_with(std::move(end));
  }
  bool lives() const { return resident_ != nullptr; }
  void die() {
    process_end end;
    end.what = make_failure(failure_kind::signal, "");
    end.what.signal = "SIGKILL";
    end.hooks = {last_};
    end_with(std::move(end));
  }
  void forget() {
    sink_ = {};
    resident_.reset();
  }

  std::function<bool()> full;  // whether the link refuses messages that may be dropped
  int finished = 0;            // reports of the end that have crossed the link

private:
  struct to_parent : troupe::link {
    explicit to_parent(made_up_process& o) : owner(o) {}
    void listen(link_sink) override {}
    bool send(link_message what, keep how, std::uint64_t) override {
      if (how == keep::if_room && owner.full && owner.full()) return false;
      owner.finished += std::holds_alternative<rank_finished>(what) ? 1 : 0;
      if (owner.resident_ && owner.sink_.received) owner.sink_.received(across(what));
      return true;
    }
    bool withdraw(std::uint64_t) override { return false; }  // this link has no queue
    void close() override {}
    made_up_process& owner;
  };

  void end_with(process_end end) {
    if (!resident_) return;
    resident_.reset();
    if (sink_.ended) sink_.ended(std::move(end));
  }

  process_identity who_;
  process_sink sink_;
  to_parent link_;
  rank_process_options home_;
  caf::actor_system& system_;
  std::vector<int> none_;
  last_hook last_;
  std::unique_ptr<rank_host> resident_;
};

class made_up_launcher : public rank_launcher {
public:
  made_up_launcher(rank_process_options home, caf::actor_system& system)
      : home_(std::move(home)), system_(system) {}

  std::unique_ptr<rank_process> start(process_start what, process_sink sink) override {
    if (refused.contains(what.who.number)) throw user_error(errc::job_failed, "no descriptor left");
    started.push_back(std::make_shared<made_up_process>(what.who, std::move(sink), home_, system_));
    started.back()->full = full;
    return std::make_unique<handle>(started.back());
  }

  std::set<std::int32_t> refused;
  std::function<bool()> full;
  std::vector<std::shared_ptr<made_up_process>> started;

private:
  struct handle : rank_process {
    explicit handle(std::shared_ptr<made_up_process> h) : held(std::move(h)) {}
    ~handle() override { held->forget(); }
    void send(link_message what) override { held->receive(what); }
    void release(std::chrono::nanoseconds) override { held->release(); }
    std::shared_ptr<made_up_process> held;
  };

  rank_process_options home_;
  caf::actor_system& system_;
};

class shared_inproc : public rendezvous_kind {
public:
  explicit shared_inproc(std::shared_ptr<communicator_backend> all) : all_(std::move(all)) {}
  std::string_view name() const override { return "shared"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override {
    return std::make_shared<rendezvous>();
  }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>&) const override {
    return all_;
  }

private:
  std::shared_ptr<communicator_backend> all_;
};

struct remote_ranks_script {
  explicit remote_ranks_script(std::uint64_t seed)
      : script{{.seed = seed, .schedule = scheduling::random}},
        launcher(std::make_shared<made_up_launcher>(
            rank_process_options{[](const std::string&) {
                                   return std::make_shared<integer_recipe>(integer_options{});
                                 },
                                 [this] { return here; }},
            script.in().system())) {
    inproc_options one_core;
    one_core.cores = 1;
    const auto together = std::make_shared<inproc_backend>(one_core);
    const auto cost = [this](std::int32_t, std::span<const hook> all) {
      std::chrono::nanoseconds sum{0};
      for (std::size_t i = 0; i < all.size(); ++i)
        sum += std::chrono::nanoseconds{1 + script.in().draws().draw(site::compute, 0, 100'000)};
      return sum;
    };
    script.sim_job().before_start = [=, this](supervisor_setup& setup) {
      auto& in = script.in();
      here = setup.world;
      here.communicators = {together};
      here.lanes =
          std::make_shared<inline_lanes>(inline_lane_options{in.later_of(0), in.clock_of(0), cost});
      here.rendezvous_kinds = {std::make_shared<shared_inproc>(together)};
      setup.world = here;
      setup.world.children = launcher;
      setup.process_count = setup.what.options.ranks;
      setup.processes = std::make_shared<job_processes>(setup.world, setup.id, setup.what);
      setup.bring_rank = remote_ranks(setup.processes);
    };
  }

  static job integers(std::int32_t ranks) {
    job what;
    what.options.ranks = ranks;
    what.options.batch_size = 2;
    what.options.max_epochs = 2;
    what.options.placement = placement_kind::processes;
    what.recipe = std::make_shared<integer_recipe>(integer_options{});
    what.run_folder = "run";
    return what;
  }

  scripted_simulation script;
  ports here;
  std::shared_ptr<made_up_launcher> launcher;
};

struct received_events {
  std::uint64_t progress = 0;
  std::uint64_t hooks = 0;  // and collectives
  std::uint64_t dropped = 0;
};

class listener : public observer {
public:
  listener(received_events& to, bool hooks) : to_(to), hooks_(hooks) {}
  bool wants_hooks() const override { return hooks_; }
  void on(const observation& what) override {
    if (std::holds_alternative<seen::progress>(what)) ++to_.progress;
    if (is_detail(what)) ++to_.hooks;
  }
  void finish(std::uint64_t dropped) override { to_.dropped = dropped; }

private:
  received_events& to_;
  const bool hooks_;
};

// Two observers of three remote ranks: one wants hooks, one does not. `prepare` may fill the link.
std::pair<received_events, received_events> watch(
    std::uint64_t seed, const std::function<void(remote_ranks_script&)>& prepare) {
  remote_ranks_script far(seed);
  prepare(far);
  std::pair<received_events, received_events> all;
  auto what = remote_ranks_script::integers(3);
  what.run_folder.clear();  // on a rare path a checkpoint is refused, which would fail the job
  what.observers = {[&] { return std::make_unique<listener>(all.first, true); },
                    [&] { return std::make_unique<listener>(all.second, false); }};
  const auto outcome = far.script.run(what);
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  REQUIRE(far.script.in().actors() == 0);
  return all;
}

}  // namespace

TEST_CASE("three remote ranks train to the expected weights and save them", "[simulated]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    remote_ranks_script far(seed);
    const auto what = remote_ranks_script::integers(3);
    const auto outcome = far.script.run(what);
    if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
    CHECK(integers_of(outcome.result) ==
          expected_integers({}, 3, what.options, outcome.loop.steps));
    CHECK(outcome.last_checkpoint.ends_with(checkpoint_folder_name(outcome.loop.steps)));
    CHECK(outcome.survivors.empty());
    CHECK(outcome.late.empty());
    REQUIRE(far.script.in().actors() == 0);
  }
}

TEST_CASE("process dies at any moment: its death is the first cause", "[simulated]") {
  std::int64_t died = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    INFO("seed " << seed);
    remote_ranks_script far(seed);
    const auto at = 3 * seed;
    bool dead = false;
    std::int32_t victim = -1;
    const auto outcome = far.script.run(
        remote_ranks_script::integers(3), [&](std::uint64_t event, const supervisor_actor&) {
          if (event < at || dead || far.launcher->started.size() < 3) return;
          dead = true;
          if (!far.launcher->started[1]->lives()) return;
          victim = far.launcher->started[1]->who().number;
          far.launcher->started[1]->die();
          ++died;
        });
    if (outcome.failed_with) {
      const auto& f = outcome.failed_with->record;
      CHECK(f.type == "signal");
      CHECK(f.signal == "SIGKILL");
      CHECK(f.rank == victim);
    }
    CHECK(outcome.survivors.empty());
    REQUIRE(far.script.in().actors() == 0);
  }
  CHECK(died > 100);
}

TEST_CASE("a rendezvous without descriptors: a process that dies is replaced", "[simulated]") {
  remote_ranks_script far(1);
  auto what = remote_ranks_script::integers(3);
  what.options.elastic.max_restarts = 1;
  bool dead = false;
  const auto outcome = far.script.run(what, [&](std::uint64_t, const supervisor_actor&) {
    if (dead || far.launcher->started.size() < 3) return;
    dead = true;
    far.launcher->started[1]->die();
  });
  if (!outcome.ok()) FAIL(render(outcome.failed_with->record));
  CHECK(outcome.restarts == 1);
  CHECK(far.launcher->started.size() == 4);
  CHECK(integers_of(outcome.result) == expected_integers({}, 3, what.options, outcome.loop.steps));
}

TEST_CASE("process cannot be started: the failure names rank and reason", "[simulated]") {
  remote_ranks_script far(1);
  far.launcher->refused = {2};
  const auto outcome = far.script.run(remote_ranks_script::integers(3));
  REQUIRE(outcome.failed_with);
  CHECK(outcome.failed_with->record.type == "start_failed");
  CHECK(outcome.failed_with->record.rank == 2);
  CHECK(outcome.failed_with->record.what.find("no descriptor left") != std::string::npos);
  CHECK(far.script.in().actors() == 0);
}

TEST_CASE("a remote rank that is asked again sends its final state once", "[simulated]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    remote_ranks_script far(seed);
    far.script.in().marks().draw_rare();
    far.script.in().marks().let_rare(true);
    far.script.run(remote_ranks_script::integers(3));
    for (const auto& one : far.launcher->started) CHECK(one->finished <= 1);
  }
}

TEST_CASE("observers receive the number of dropped observations of remote ranks", "[simulated]") {
  const auto whole = watch(0, [](remote_ranks_script&) {});
  CHECK(whole.first.dropped == 0);
  CHECK(whole.second.dropped == 0);
  REQUIRE(whole.first.hooks > 50);
  REQUIRE(whole.second.progress > 5);

  std::uint64_t lacking = 0;  // sum over all runs
  const auto check = [&](const std::pair<received_events, received_events>& some) {
    const auto& [both, progress] = some;
    CHECK(both.progress + both.hooks + both.dropped == whole.first.progress + whole.first.hooks);
    CHECK(progress.progress + progress.dropped == whole.second.progress);
    lacking += both.dropped;
  };
  SECTION("at a link that is half full every third time") {
    check(watch(0, [n = 0](remote_ranks_script& far) mutable {
      far.launcher->full = [&n] { return ++n % 3 == 0; };
    }));
    CHECK(lacking > whole.first.hooks / 4);
  }
  SECTION("in the queue of the rank's own process, and in those of the observers") {
    for (std::uint64_t seed = 0; seed < 40; ++seed)
      check(watch(seed, [](remote_ranks_script& far) {
        auto& marks = far.script.in().marks();
        marks.draw_rare();
        marks.let_rare(true);
      }));
  }
  CHECK(lacking > 0);
}
