// One job in one world: the production supervisor, ranks and checkpointer, each rank in a place of
// its own behind a link, on simulated lanes, collectives and storage.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/supervisor.hpp"
#include "apps/testing/control_link.hpp"
#include "apps/testing/world.hpp"
#include "backends/simulated/fabric.hpp"
#include "backends/simulated/inline_lane.hpp"

namespace troupe::testing {

/// What things cost, and how ranks are spread.
struct surroundings {
  std::uint32_t ranks_per_host = 1;  ///< 0: all beside the supervisor, without links
  nanoseconds compute = std::chrono::milliseconds{20};  ///< a training step, mean
  nanoseconds control_latency = std::chrono::microseconds{50};
  network_cost network;
  bool lanes_in_spans = true;
  bool lane_threads = false;  ///< inline_lane_options::thread
};

/// One life of one rank.
struct rank_life {
  world::place place = 0;
  std::int32_t rank = 0;
  job_id job;
  caf::strong_actor_ptr actor;
  std::shared_ptr<control_link> link;  ///< null: beside the supervisor
  std::int64_t slow_per_cent = 100;    ///< its hooks take so much of their cost
};

/// Runs jobs one after the other, in the one world it is given.
class rehearsal {
public:
  rehearsal(world& in, surroundings around);
  ~rehearsal();

  /// What the supervisor gets of the outside besides what the rehearsal makes itself: files and
  /// checkpoint IO.
  struct files {
    std::shared_ptr<storage> disk;
    std::shared_ptr<const checkpoint_io> checkpoints;
  };
  void use(files what) { files_ = std::move(what); }
  /// Hears what the supervisors of all jobs announce, at once.
  void listen(std::function<void(const seen::lifecycle&)> announced) {
    announced_ = std::move(announced);
  }

  /// Asked for each control message between the supervisor and a rank that has crossed its link;
  /// true: nobody hears it. For tests that hold one back.
  std::function<bool(std::int32_t rank, bool to_supervisor, const caf::message& what,
                     const caf::strong_actor_ptr& to)>
      door;
  /// The most observations that wait for an observer, and who hears where it lives, before it has
  /// run: in a place of its own, with the supervisor's program.
  std::size_t observations = observation_queue::limit_default;
  std::function<void(world::place where)> observer_came;
  /// Called with each job's set-up before its supervisor is born: another port, another part.
  std::function<void(supervisor_setup& setup)> before_start;

  /// Brings a supervisor to life, in a new place on host 0 (a program that is started), and lets it
  /// begin. `path`: what its control links meet.
  void begin(job what, path_faults path = {});
  /// Where the supervisor of the job that runs lives.
  world::place home() const { return home_; }
  job_id running() const { return job_; }
  bool ended() const { return outcome_.has_value(); }
  const std::optional<job_outcome>& outcome() const { return outcome_; }
  const supervisor_actor& supervisor() const { return supervisor_; }

  std::vector<rank_life>& lives() { return lives_; }
  /// The life of that rank in the job that runs; null before it was brought.
  rank_life* life_of(std::int32_t rank);
  /// Its process dies (with the whole program, where it lives in it). `host_too`: nobody is left to
  /// say so, silence has to.
  void crash(std::int32_t rank, bool host_too);
  /// Names of the places of the program that was begun last in which somebody lives.
  std::vector<std::string> left_at_home() const;
  /// The program that was begun last dies, with all that lives in it.
  void crash_program();
  simulated_fabric& fabric() { return fabric_; }
  const path_counts& path() const { return counts_; }

private:
  rank_actor bring(caf::actor_system& system, actor_trouble trouble, rank_setup setup);
  nanoseconds cost_of(const rank_life& life, std::span<const hook> what);

  world& world_;
  surroundings around_;
  simulated_fabric fabric_;
  files files_;
  std::function<void(const seen::lifecycle&)> announced_;
  path_counts counts_;
  std::vector<rank_life> lives_;
  std::size_t first_life_ = 0;           // of the job that runs
  std::vector<world::place> observers_;  // of the job that runs
  link_limits limits_;
  world::place home_ = 0;
  job_id job_;
  path_faults path_;
  supervisor_actor supervisor_;
  std::optional<job_outcome> outcome_;
};

}  // namespace troupe::testing
