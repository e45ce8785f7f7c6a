// One job in one world: the production supervisor, ranks and checkpointer, each rank in a place of
// its own behind a link, on simulated lanes, collectives and storage. What a rank elsewhere tells
// observers travels through its link too, as it does between processes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/supervisor.hpp"
#include "apps/testing/control_link.hpp"
#include "apps/testing/lognormal.hpp"
#include "apps/testing/simulation.hpp"
#include "apps/testing/straggler_report.hpp"
#include "backends/simulated/fabric.hpp"
#include "backends/simulated/inline_lane.hpp"

namespace troupe::testing {

/// What things cost, and how ranks are spread.
struct cluster_model {
  std::uint32_t ranks_per_host = 1;  ///< 0: all beside the supervisor, without links
  nanoseconds compute = std::chrono::milliseconds{20};  ///< a training step, mean
  /// More than 0: a step's time is drawn from a lognormal distribution around `compute`, its
  /// median, whose logarithm deviates by so many thousandths. 0: what the schedule adds.
  std::int32_t compute_spread = 0;
  /// What ranks of a node (rank / ranks_per_host; without links each rank is one) need of all their
  /// hooks' times, in per cent; others need 100.
  std::map<std::int32_t, std::int64_t> slow_hosts;
  nanoseconds control_latency = std::chrono::microseconds{50};
  network_cost network;
  bool lanes_in_spans = true;
  bool lane_threads = false;  ///< inline_lane_options::thread
};
/// That any rank's training step takes when nothing befalls it.
nanoseconds longest_step(const cluster_model& cluster);

/// One life of one rank.
struct rank_incarnation {
  simulation::node_id node = 0;
  std::int32_t rank = 0;
  job_id job;
  caf::strong_actor_ptr actor;
  std::shared_ptr<control_link> link;  ///< null: beside the supervisor
  std::int64_t slow_per_cent = 100;    ///< its hooks take so much of their cost
  std::int64_t host_per_cent = 100;    ///< and besides, because of where it lives
};

/// A link of a test's own.
struct own_link {
  caf::strong_actor_ptr from;
  caf::strong_actor_ptr to;
  std::shared_ptr<control_link> link;
};

/// Runs jobs one after the other, in the one world it is given.
class simulated_job {
public:
  simulated_job(simulation& in, cluster_model cluster);
  ~simulated_job();

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
      message_filter;
  /// The most observations that wait for an observer, and who hears where it lives, before it has
  /// run: in a place of its own, with the supervisor's program.
  std::size_t observations = observation_queue::limit_default;
  std::function<void(simulation::node_id where)> observer_came;
  /// Called with each job's set-up before its supervisor is born: another port, another part.
  std::function<void(supervisor_setup& setup)> before_start;

  /// Brings a supervisor to life, in a new place on host 0 (a program that is started), and lets it
  /// begin. `path`: what its control links meet.
  void begin(job what, path_faults path = {});
  /// Where the supervisor of the job that runs lives.
  simulation::node_id supervisor_node() const { return supervisor_node_; }
  job_id running() const { return job_; }
  bool ended() const { return outcome_.has_value(); }
  const std::optional<job_outcome>& outcome() const { return outcome_; }
  const supervisor_actor& supervisor() const { return supervisor_; }

  std::vector<rank_incarnation>& lives() { return lives_; }
  /// The life of that rank in the job that runs; null before it was brought.
  rank_incarnation* life_of(std::int32_t rank);
  /// Its process dies (with the whole program, where it lives in it). `host_too`: nobody is left to
  /// say so, silence has to.
  void crash(std::int32_t rank, bool host_too);
  /// Places of the program that was begun last: the supervisor's, observers', and those of ranks
  /// beside it.
  std::vector<simulation::node_id> program() const;
  /// Places that a test has added and in which somebody lives.
  std::vector<simulation::node_id> test_nodes() const;
  /// Such a process dies; its host says so to the other ends of its links.
  void crash_test_node(simulation::node_id where);
  /// Names of the places of the program that was begun last in which somebody lives.
  std::vector<std::string> left_in_program() const;
  /// The program that was begun last dies, with all that lives in it.
  void crash_program();

  /// `to` as `from` reaches it: itself when both live on one host, else a handle whose messages
  /// cross a link of the world, with what the paths of the job that runs do to frames. Both have
  /// been settled and have not run; the other direction (`linked(to, from)`) is the same link, and
  /// so is the way of an answer to a request, which needs a timeout: a link may be lost. The handle
  /// goes down when `to` does, or was silent for as long as a failure may be unnoticed.
  template <class From, class To>
  To linked(const From& from, const To& to) {
    return caf::actor_cast<To>(link_between(caf::actor_cast<caf::strong_actor_ptr>(from),
                                            caf::actor_cast<caf::strong_actor_ptr>(to)));
  }
  /// Links that `linked` has made and that are not over.
  const std::vector<own_link>& own_links();

  simulated_fabric& fabric() { return fabric_; }
  /// How fast its jobs went, and who kept the others waiting.
  straggler_report& stragglers() { return stragglers_; }
  const path_counts& path() const { return counts_; }

private:
  caf::strong_actor_ptr link_between(const caf::strong_actor_ptr& from,
                                     const caf::strong_actor_ptr& to);
  control_link::settings link_settings();
  rank_actor bring(caf::actor_system& system, actor_error_handler trouble, rank_setup setup);
  nanoseconds cost_of(const rank_incarnation& life, std::span<const hook> what);

  simulation& simulation_;
  cluster_model cluster_;
  lognormal spread_;
  straggler_report stragglers_;
  simulated_fabric fabric_;
  files files_;
  std::function<void(const seen::lifecycle&)> announced_;
  path_counts counts_;
  std::vector<rank_incarnation> lives_;
  std::vector<own_link> own_links_;
  std::size_t first_life_ = 0;                  // of the job that runs
  std::vector<simulation::node_id> observers_;  // of the job that runs
  link_limits limits_;
  simulation::node_id supervisor_node_ = 0;
  job_id job_;
  path_faults path_;
  supervisor_actor supervisor_;
  std::optional<job_outcome> outcome_;
};

}  // namespace troupe::testing
