// A world in one thread: CAF's test scheduler, virtual time, inline lanes, the inproc communicator.
// What is runnable is chosen by a seed, so that another seed is another schedule.
#pragma once

#include <caf/scheduler/test_coordinator.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "actors/spawn.hpp"
#include "actors/supervisor.hpp"
#include "backends/inproc/inproc.hpp"
#include "backends/simulated/inline_lane.hpp"
#include "tests/support/memory_disk.hpp"

namespace troupe::testing {

class one_thread_world {
public:
  explicit one_thread_world(std::uint64_t seed) : config_(0), system_(config_), random_(seed) {}
  ~one_thread_world();

  ports make_ports();
  /// Runs the job to its end in virtual time. `at_event` is called before each event with its
  /// number; a supervisor handle allows to speak to it. Fails the test when nothing is left to do
  /// and the job has not ended.
  job_outcome run(job what, std::function<void(std::int64_t, supervisor_actor)> at_event = {});

  /// Called with what the supervisor is about to be given; empty: nothing to change.
  std::function<void(supervisor_setup& setup)> prepare;

  caf::actor_system& system() { return system_; }
  /// What jobs with a run folder write to; each operation takes its time.
  memory_storage& files() { return *files_; }
  std::chrono::nanoseconds now();
  std::int64_t events() const { return events_; }

private:
  caf::scheduler::test_coordinator& scheduler();
  bool step();

  seam::system_config config_;
  caf::actor_system system_;
  std::mt19937_64 random_;
  std::multimap<std::chrono::nanoseconds, std::function<void()>> later_;
  std::int64_t events_ = 0;
  std::shared_ptr<memory_storage> files_ = std::make_shared<memory_storage>();
};

}  // namespace troupe::testing
