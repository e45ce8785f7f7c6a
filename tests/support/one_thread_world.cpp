#include "tests/support/one_thread_world.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "actors/checkpointer.hpp"
#include "backends/checkpoint/safetensors_io.hpp"

namespace troupe::testing {

namespace {

class seeded_entropy : public entropy {
public:
  explicit seeded_entropy(std::uint64_t seed) : random_(seed) {}
  std::uint64_t draw() override { return random_(); }

private:
  std::mt19937_64 random_;
};

class at_once : public process_control {
public:
  void start(const rank_start&, std::function<void()> body,
             std::function<void(std::string)>) override {
    body();
  }
};

}  // namespace

caf::scheduler::test_coordinator& one_thread_world::scheduler() {
  return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
}

// Jobs first, then timers, until both are empty: the other way round an actor that has not run yet
// arms its timer afterwards.
one_thread_world::~one_thread_world() {
  later_.clear();
  do {
    scheduler().run();
    scheduler().clock().cancel_all();
  } while (scheduler().has_job() || scheduler().has_pending_timeout());
  if (system_.registry().running() > 0) system_.await_actors_before_shutdown(false);
}

std::chrono::nanoseconds one_thread_world::now() {
  return scheduler().clock().now().time_since_epoch();
}

ports one_thread_world::make_ports() {
  ports world;
  inproc_options one_core;
  one_core.cores = 1;
  world.communicators.push_back(std::make_shared<inproc_backend>(one_core));
  const auto time = [this] { return now(); };
  const auto later = [this](std::chrono::nanoseconds delay, std::function<void()> what) {
    later_.emplace(now() + delay, std::move(what));
  };
  auto costs = std::make_shared<std::mt19937_64>(random_());
  const auto cost = [costs](std::int32_t, const hook&) {
    return std::chrono::nanoseconds{1 + (*costs)() % 100'000};
  };
  world.lanes = std::make_shared<inline_lanes>(later, time, cost);
  files_->submitted = [this, later, costs] {
    later(std::chrono::nanoseconds{1 + (*costs)() % 1'000'000}, [this] { files_->step(); });
  };
  world.files = files_;
  world.checkpoints = safetensors_checkpoints({});
  world.processes = std::make_shared<at_once>();
  world.random = std::make_shared<seeded_entropy>(random_());
  world.now = time;
  return world;
}

// One event: a runnable actor chosen by the seed, else the earliest lane event or timer.
bool one_thread_world::step() {
  auto& caf_side = scheduler();
  if (const auto n = caf_side.jobs.size()) {
    const auto chosen = caf_side.jobs.begin() + static_cast<std::ptrdiff_t>(random_() % n);
    std::rotate(caf_side.jobs.begin(), chosen, chosen + 1);
    return caf_side.try_run_once();
  }
  if (later_.empty()) return caf_side.trigger_timeout();
  const auto due = later_.begin()->first;
  if (due > now() && caf_side.advance_time(due - now()) > 0) return true;
  auto what = std::move(later_.begin()->second);
  later_.erase(later_.begin());
  what();
  return true;
}

job_outcome one_thread_world::run(job what,
                                  std::function<void(std::int64_t, supervisor_actor)> at_event) {
  constexpr std::int64_t events_max = 1'000'000;
  std::optional<job_outcome> ended;
  supervisor_setup setup;
  setup.id = job_id{random_()};
  setup.what = std::move(what);
  setup.world = make_ports();
  setup.spawn_checkpointer = checkpointers(setup.world.checkpoints);
  setup.complete = [&](job_outcome outcome) { ended = std::move(outcome); };
  if (prepare) prepare(setup);
  auto supervisor = spawn_supervisor(system_, std::move(setup));
  caf::anon_send(supervisor, begin_job{});
  for (; !ended; ++events_) {
    if (at_event) at_event(events_, supervisor);
    if (!step()) throw std::runtime_error("nothing is left to do, and the job has not ended");
    if (events_ > events_max)
      throw std::runtime_error("the job has not ended after 1,000,000 events");
  }
  supervisor = nullptr;
  while (scheduler().has_job()) scheduler().try_run_once();
  return *ended;
}

}  // namespace troupe::testing
