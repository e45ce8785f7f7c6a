// A job in a simulation: the production supervisor, ranks and checkpointer, with simulated lanes,
// collectives and storage. Ranks live in simulated processes on other hosts, behind the production
// path (job_processes, remote_rank, the codec, rank_host), or beside the supervisor as threads.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/supervisor.hpp"
#include "apps/testing/actor_link.hpp"
#include "apps/testing/lognormal.hpp"
#include "apps/testing/simulated_process.hpp"
#include "apps/testing/simulation.hpp"
#include "apps/testing/straggler_report.hpp"
#include "backends/simulated/fabric.hpp"
#include "backends/simulated/inline_lane.hpp"

namespace troupe::testing {

/// The costs of a cluster and the distribution of its ranks.
struct cluster_model {
  /// Processes of a host, at the beginning. 0: all ranks are threads beside the supervisor.
  std::uint32_t ranks_per_host = 1;
  nanoseconds compute = std::chrono::milliseconds{20};  ///< mean time of a training step
  /// Above 0: a step's time has a lognormal distribution with median `compute`; the standard
  /// deviation of its logarithm is this many thousandths. 0: the schedule alone varies it.
  std::int32_t compute_spread = 0;
  /// Time of all hooks on a host's ranks, in per cent; hosts that are not listed take 100. The host
  /// of a rank is rank / ranks_per_host; without links each rank counts as a host.
  std::map<std::int32_t, std::int64_t> slow_hosts;
  nanoseconds control_latency = std::chrono::microseconds{50};
  /// How long a process takes to start that replaces one that is gone. The first ones begin at
  /// once.
  nanoseconds start = std::chrono::milliseconds{20};
  bool placed = false;  ///< a launcher has started processes and spares: a lost one is not replaced
  network_cost network;
  bool lanes_in_spans = true;
  bool lane_threads = false;  ///< inline_lane_options::thread
};
/// Upper bound of a training step's time without faults.
nanoseconds longest_step(const cluster_model& cluster);

/// One incarnation of a rank. Several may live on one node.
struct rank_incarnation {
  simulation::node_id node = 0;
  std::int32_t rank = 0;
  job_id job;
  incarnation_id incarnation;
  std::uint64_t generation = 0;              ///< the newest one whose communicator it has opened
  caf::strong_actor_ptr actor;               ///< null until it lives in its process
  simulated_process* process = nullptr;      ///< null: beside the supervisor
  std::int64_t slow_per_cent = 100;          ///< cost of its hooks in per cent
  std::int64_t host_per_cent = 100;          ///< an additional factor of its host
  nanoseconds longest = nanoseconds::max();  ///< what one of its hooks takes at most
};

/// Runs jobs one after the other in one simulation.
class simulated_job : private process_owner {
public:
  simulated_job(simulation& in, cluster_model cluster);
  ~simulated_job() override;

  /// The storage and the checkpoint IO of the supervisor; the class provides all other ports.
  struct files {
    std::shared_ptr<storage> disk;
    std::shared_ptr<const checkpoint_io> checkpoints;
  };
  void use(files what) { files_ = std::move(what); }
  /// Called at once with each announcement of any job's supervisor.
  void listen(std::function<void(const seen::lifecycle&)> announced) {
    announced_ = std::move(announced);
  }

  /// Called for each order and report that has crossed its link. Returning true drops the message.
  /// For tests that hold one back. `to`: the actor that handles it.
  std::function<bool(std::int32_t rank, bool to_supervisor, const link_message& what,
                     const caf::strong_actor_ptr& to)>
      message_filter;
  /// Limit of observations that wait for an observer; and a callback with each observer's node,
  /// before it runs. The node is its own, in the supervisor's program.
  std::size_t observations = observation_queue::limit_default;
  std::function<void(simulation::node_id where)> observer_came;
  /// Called with each job's set-up before its supervisor is spawned, to replace a port or another
  /// part.
  std::function<void(supervisor_setup& setup)> before_start;

  /// Starts a job's program: adds a node on host 0 and spawns the supervisor there. As for a
  /// session, `options.ranks` counts processes when `elastic.shards` is set.
  void begin(job what);
  /// The node of the running job's supervisor.
  simulation::node_id supervisor_node() const { return supervisor_node_; }
  job_id running() const { return job_; }
  bool ended() const { return outcome_.has_value(); }
  const std::optional<job_outcome>& outcome() const { return outcome_; }
  const supervisor_actor& supervisor() const { return supervisor_; }

  std::vector<rank_incarnation>& lives() { return lives_; }
  /// The rank's newest incarnation in the running job; null before it was started.
  rank_incarnation* life_of(std::int32_t rank);
  /// The newest incarnation of the rank on this node; null when there is none.
  rank_incarnation* life_at(simulation::node_id node, std::int32_t rank);
  /// Its process dies with all its ranks, and the whole program if the rank runs in it. `host_too`:
  /// its host dies, too, so no host reports the death and only silence shows it.
  void crash(std::int32_t rank, bool host_too);
  /// Processes of the running job that live, and in which no rank lives: spares, and those that are
  /// about to end.
  std::vector<std::shared_ptr<simulated_process>> idle_processes() const;
  /// Nodes of the latest program: the supervisor's, those of observers, and those of ranks beside
  /// the supervisor.
  std::vector<simulation::node_id> program() const;
  /// Nodes of the test with live actors.
  std::vector<simulation::node_id> test_nodes() const;
  /// The node's process dies; its host reports it to the other ends of its links.
  void crash_test_node(simulation::node_id where);
  /// Names of the latest program's nodes with live actors.
  std::vector<std::string> left_in_program() const;
  /// The latest program dies with all its actors. `host_too`: as above.
  void crash_program(bool host_too = false);

  /// Returns `to` as `from` can reach it: the actor itself on the same host, else a handle whose
  /// messages cross a simulated link. Both actors have been assigned to nodes and have not run.
  /// `linked(to, from)` is the other direction of the same link. Answers to requests use the link,
  /// too; requests need a timeout, because a link may be lost. The handle terminates when `to`
  /// does, or was silent for the detection time.
  template <class From, class To>
  To linked(const From& from, const To& to) {
    return caf::actor_cast<To>(link_between(caf::actor_cast<caf::strong_actor_ptr>(from),
                                            caf::actor_cast<caf::strong_actor_ptr>(to)));
  }
  /// Open links that `linked` has made.
  const std::vector<std::shared_ptr<actor_link>>& own_links();

  simulated_fabric& fabric() { return fabric_; }
  /// Step times of its jobs, and the hosts that delayed them.
  straggler_report& stragglers() { return stragglers_; }

private:
  caf::strong_actor_ptr link_between(const caf::strong_actor_ptr& from,
                                     const caf::strong_actor_ptr& to);
  simulated_stream::settings link_settings() const;
  void use_processes(supervisor_setup& setup);
  rank_actor bring_thread(caf::actor_system& system, actor_error_handler trouble, rank_setup setup);
  std::size_t add_life(rank_incarnation fresh);
  std::shared_ptr<communicator_backend> communicators_of(std::size_t life,
                                                         std::shared_ptr<lane_bell> bell);
  std::shared_ptr<lane_backend> lanes_of(std::size_t life, std::shared_ptr<lane_bell> bell);

  simulation::node_id node_of(const process_identity& who) override;
  void process_begins(std::shared_ptr<simulated_process> fresh) override;
  void rank_comes(simulated_process& to, const rank_spec& what) override;
  ports world_of(incarnation_id rank) override;
  void rank_lives(incarnation_id rank, const caf::strong_actor_ptr& actor) override;
  bool holds_back(const simulated_process& in, bool to_supervisor,
                  const link_message& what) override;
  void process_ends(simulation::node_id node) override { fabric_.vanish(node); }
  nanoseconds cost_of(const rank_incarnation& life, std::span<const hook> what);

  simulation& simulation_;
  cluster_model cluster_;
  lognormal spread_;
  straggler_report stragglers_;
  simulated_fabric fabric_;
  files files_;
  std::function<void(const seen::lifecycle&)> announced_;
  std::vector<rank_incarnation> lives_;
  std::unordered_map<incarnation_id, std::size_t> life_with_;  // by incarnation: number in `lives_`
  std::vector<std::shared_ptr<actor_link>> own_links_;
  std::size_t first_life_ = 0;                  // of the running job
  std::vector<std::vector<std::size_t>> on_;    // by node: numbers in `lives_`
  std::vector<std::size_t> newest_;             // by rank, in the running job: number + 1, or 0
  std::vector<simulation::node_id> observers_;  // of the running job
  std::vector<std::shared_ptr<simulated_process>> processes_;
  std::size_t first_process_ = 0;   // of the running job
  std::int32_t process_count_ = 0;  // that it began with
  nanoseconds detect_{0};
  simulation::node_id supervisor_node_ = 0;
  job_id job_;
  supervisor_actor supervisor_;
  caf::strong_actor_ptr checkpointer_;
  std::optional<job_outcome> outcome_;
};

}  // namespace troupe::testing
