#include "apps/testing/simulated_job.hpp"

#include <algorithm>

#include "actors/checkpointer.hpp"
#include "actors/time_knob.hpp"
#include "apps/testing/delivery.hpp"
#include "backends/entropy.hpp"
#include "backends/simulated/baton.hpp"

namespace troupe::testing {

namespace {

class simulation_entropy : public entropy {
public:
  explicit simulation_entropy(simulation& of) : simulation_(of) {}
  std::uint64_t draw() override { return simulation_.draws().bits(0); }

private:
  simulation& simulation_;
};

// The thread runs while the simulation's thread is blocked, so the guard counts its calls as the
// event's.
std::shared_ptr<baton_thread> lane_thread() {
  const not_delivering own;
  auto made = std::make_shared<baton_thread>();
  made->run([&of = delivery::here()] { delivery::lend(of); });
  return made;
}

// The supervisor chooses this backend; each rank uses the communicator of its own node.
class only_a_name : public communicator_backend {
public:
  std::string_view name() const override { return "simulated"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description&) override {
    throw internal_error("a simulated rank uses the communicator of its node");
  }
};

std::int32_t host_of_rank(std::int32_t rank, std::uint32_t ranks_per_host) {
  return rank / static_cast<std::int32_t>(std::max<std::uint32_t>(1, ranks_per_host));
}

bool computes(const hook& h) {
  return h.is<hooks::training_step>() || h.is<hooks::validation_step>();
}

}  // namespace

nanoseconds longest_step(const cluster_model& cluster) {
  auto most = cluster.compute * 3 / 2;
  if (cluster.compute_spread > 0)
    most = std::max(most, lognormal{cluster.compute_spread}.most(cluster.compute));
  std::int64_t slowest = 100;
  for (const auto& [host, per_cent] : cluster.slow_hosts) slowest = std::max(slowest, per_cent);
  return most * slowest / 100;
}

simulated_job::simulated_job(simulation& in, cluster_model cluster)
    : simulation_(in),
      cluster_(std::move(cluster)),
      spread_(cluster_.compute_spread),
      stragglers_(cluster_.ranks_per_host),
      fabric_(in.later_of(0), in.clock_of(0), cluster_.network,
              [this](const collective_call& call, std::span<const arrival> who) {
                if (call.what == collective::all_reduce || call.what == collective::reduce_scatter)
                  stragglers_.met(who);
              }) {}

simulated_job::~simulated_job() { simulation_.clear(); }

void simulated_job::begin(job what, path_faults path) {
  outcome_.reset();
  path_ = path;
  supervisor_node_ = simulation_.add_node(0, "supervisor");
  first_life_ = lives_.size();
  newest_.assign(static_cast<std::size_t>(what.options.ranks), 0);
  observers_.clear();
  limits_.limit = what.options.time.detect;
  limits_.beat = limits_.limit / 5;
  supervisor_setup setup;
  job_ = job_id{simulation_.draws().bits(0)};
  setup.id = job_;
  setup.world.communicators.push_back(std::make_shared<only_a_name>());
  setup.world.files = files_.disk;
  setup.world.checkpoints = files_.checkpoints;
  setup.world.random = std::make_shared<simulation_entropy>(simulation_);
  setup.world.now = simulation_.clock_of(supervisor_node_);
  setup.trouble = simulation_.trouble();
  if (files_.checkpoints) {
    setup.spawn_checkpointer = [this, spawn = checkpointers(files_.checkpoints)](
                                   caf::actor_system& system, actor_error_handler trouble,
                                   job_id id, const job& of, std::shared_ptr<storage> disk,
                                   supervisor_actor supervisor) {
      auto made = spawn(system, std::move(trouble), id, of, std::move(disk), std::move(supervisor));
      simulation_.settle(caf::actor_cast<caf::strong_actor_ptr>(made), supervisor_node_);
      return made;
    };
  }
  setup.bring_rank = [this](caf::actor_system& system, actor_error_handler trouble,
                            rank_setup given) {
    return bring(system, std::move(trouble), std::move(given));
  };
  setup.bring_observer = [this](caf::actor_system& system, actor_error_handler trouble,
                                const observer_factory& make, supervisor_actor supervisor) {
    auto made = spawn_observer_with_queue(observations, system, std::move(trouble), make,
                                          std::move(supervisor));
    observers_.push_back(simulation_.add_node(0, "observer"));
    simulation_.settle(caf::actor_cast<caf::strong_actor_ptr>(made.actor), observers_.back());
    if (observer_came) observer_came(observers_.back());
    return made;
  };
  setup.announced = announced_;
  setup.complete = [this](job_outcome outcome) {
    outcome_ = std::move(outcome);
    simulation_.halt();
  };
  setup.what = std::move(what);
  if (before_start) before_start(setup);
  supervisor_ = spawn_supervisor(simulation_.system(), std::move(setup));
  simulation_.settle(caf::actor_cast<caf::strong_actor_ptr>(supervisor_), supervisor_node_);
  caf::anon_send(supervisor_, begin_job{});
}

rank_incarnation* simulated_job::life_of(std::int32_t rank) {
  const auto at = static_cast<std::size_t>(rank);
  const auto number = at < newest_.size() ? newest_[at] : 0;
  return number == 0 ? nullptr : &lives_[number - 1];
}

rank_incarnation* simulated_job::life_at(simulation::node_id node) {
  const auto number = node < life_on_.size() ? life_on_[node] : 0;
  return number == 0 ? nullptr : &lives_[number - 1];
}

nanoseconds simulated_job::cost_of(const rank_incarnation& life, std::span<const hook> what) {
  const bool usual = life.slow_per_cent == 100 && life.host_per_cent == 100;
  const auto slow = [&](nanoseconds cost) {
    return usual ? cost : cost * life.slow_per_cent / 100 * life.host_per_cent / 100;
  };
  std::int64_t computing = 0;
  nanoseconds sum{0};
  for (const auto& h : what) {
    if (!computes(h)) continue;
    ++computing;
    auto cost = cluster_.compute;
    if (cluster_.compute_spread > 0)
      cost =
          spread_.of(cost, simulation_.draws().draw(site::compute, life.node, lognormal::levels));
    else if (simulation_.options().schedule != scheduling::fifo)
      cost += cluster_.compute *
              static_cast<std::int64_t>(simulation_.draws().draw(site::compute, life.node, 16)) /
              32;
    sum += slow(cost);
  }
  return sum + slow(nanoseconds{1000}) * (static_cast<std::int64_t>(what.size()) - computing);
}

// Adds the node of a rank. A rank that replaces another one needs time to start.
rank_incarnation& simulated_job::begin_life(const rank_plan& plan) {
  const auto rank = plan.rank;
  const auto host = cluster_.ranks_per_host == 0
                        ? 0
                        : 1 + static_cast<std::uint32_t>(rank) / cluster_.ranks_per_host;
  auto& newest = newest_.at(static_cast<std::size_t>(rank));
  const bool again = newest > 0;
  const auto node = simulation_.add_node(host, "rank " + std::to_string(rank));
  life_on_.resize(node + 1, 0);
  newest = life_on_[node] = lives_.size() + 1;
  auto& life = lives_.emplace_back();
  life.node = node;
  life.rank = rank;
  life.job = plan.job;
  life.incarnation = plan.incarnation;
  if (again) simulation_.pause(node, simulation_.time() + cluster_.start);
  const auto slow = cluster_.slow_hosts.find(host_of_rank(rank, cluster_.ranks_per_host));
  if (slow != cluster_.slow_hosts.end()) life.host_per_cent = slow->second;
  return life;
}

rank_actor simulated_job::bring(caf::actor_system& system, actor_error_handler trouble,
                                rank_setup setup) {
  auto& life = begin_life(setup.plan);
  const auto node = life.node;
  const auto index = lives_.size() - 1;
  const auto bell = std::make_shared<lane_bell>();
  const auto late = [this, node] {
    return simulation_.lateness(node, simulation_.options().elastic);
  };
  const auto opened = [this, index](const group_description& who) {
    lives_[index].generation = who.generation.value();
  };
  setup.communicators = fabric_.at({simulation_.later_of(node), bell, late, node, opened});
  inline_lane_options lanes;
  lanes.later = simulation_.later_of(node);
  lanes.now = simulation_.clock_of(node);
  lanes.cost = [this, index](std::int32_t, std::span<const hook> all) {
    return cost_of(lives_[index], all);
  };
  lanes.bell = bell;
  lanes.in_spans = cluster_.lanes_in_spans;
  if (cluster_.lane_threads) lanes.thread = lane_thread;
  setup.world.lanes = std::make_shared<inline_lanes>(std::move(lanes));
  setup.world.now = simulation_.clock_of(node);

  if (simulation_.host_of(node) != 0)
    return bring_behind_link(system, std::move(trouble), std::move(setup), life);
  auto made = spawn_rank(system, std::move(trouble), std::move(setup));
  life.actor = caf::actor_cast<caf::strong_actor_ptr>(made);
  simulation_.settle(life.actor, node);
  return made;
}

rank_actor simulated_job::bring_behind_link(caf::actor_system& system, actor_error_handler trouble,
                                            rank_setup setup, rank_incarnation& life) {
  const auto node = life.node;
  auto how = link_settings();
  how.message_filter = [this, rank = life.rank](bool to_supervisor, const caf::message& m,
                                                const caf::strong_actor_ptr& to) {
    return message_filter && message_filter(rank, to_supervisor, m, to);
  };
  life.link = std::make_shared<control_link>(simulation_, supervisor_node_, node, how);
  auto near_actor = caf::actor_cast<caf::strong_actor_ptr>(setup.supervisor);
  setup.supervisor = caf::actor_cast<supervisor_actor>(life.link->near_handle());
  if (setup.checkpointer)
    setup.checkpointer = caf::actor_cast<checkpointer_actor>(
        life.link->stand_in(caf::actor_cast<caf::strong_actor_ptr>(setup.checkpointer)));
  setup.observers = life.link->stand_in(setup.observers);
  const auto made = spawn_rank(system, std::move(trouble), std::move(setup));
  life.actor = caf::actor_cast<caf::strong_actor_ptr>(made);
  simulation_.settle(life.actor, node);
  life.link->open(std::move(near_actor), life.actor);
  return caf::actor_cast<rank_actor>(life.link->far_handle());
}

control_link::settings simulated_job::link_settings() {
  control_link::settings how;
  how.limits = limits_;
  how.latency = cluster_.control_latency;
  how.faults = path_;
  how.counts = &counts_;
  return how;
}

const std::vector<own_link>& simulated_job::own_links() {
  std::erase_if(own_links_, [](const own_link& l) { return l.link->over(); });
  return own_links_;
}

caf::strong_actor_ptr simulated_job::link_between(const caf::strong_actor_ptr& from,
                                                  const caf::strong_actor_ptr& to) {
  const auto here = simulation_.where(from);
  const auto there = simulation_.where(to);
  if (simulation_.host_of(here) == simulation_.host_of(there)) return to;
  for (const auto& l : own_links()) {
    if (l.from == from && l.to == to) return l.link->far_handle();
    if (l.from == to && l.to == from) return l.link->near_handle();
  }
  auto link = std::make_shared<control_link>(simulation_, here, there, link_settings());
  link->open(from, to);
  own_links_.push_back({from, to, link});
  return link->far_handle();
}

void simulated_job::crash(std::int32_t rank, bool host_too) {
  auto* life = life_of(rank);
  if (!life || !simulation_.alive(life->node)) return;
  if (simulation_.host_of(life->node) == 0) return crash_program();
  fabric_.vanish(life->node);
  simulation_.crash(life->node);
  if (life->link && !host_too) life->link->reset();
}

std::vector<simulation::node_id> simulated_job::program() const {
  std::vector<simulation::node_id> all{supervisor_node_};
  all.insert(all.end(), observers_.begin(), observers_.end());
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (simulation_.host_of(lives_[i].node) == 0) all.push_back(lives_[i].node);
  return all;
}

std::vector<simulation::node_id> simulated_job::test_nodes() const {
  std::vector<bool> known(simulation_.nodes());
  known[0] = true;  // the simulation's own node
  for (const auto p : program()) known[p] = true;
  for (const auto& l : lives_) known[l.node] = true;
  std::vector<simulation::node_id> all;
  for (simulation::node_id p = 0; p < known.size(); ++p)
    if (!known[p] && simulation_.has_actors(p)) all.push_back(p);
  return all;
}

void simulated_job::crash_test_node(simulation::node_id where) {
  simulation_.crash(where);
  for (const auto& l : own_links())
    if (l.link->reaches(where)) l.link->reset();
}

std::vector<std::string> simulated_job::left_in_program() const {
  std::vector<std::string> names;
  for (const auto p : program())
    if (simulation_.has_actors(p)) names.push_back(simulation_.name_of(p));
  return names;
}

void simulated_job::crash_program() {
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (simulation_.host_of(lives_[i].node) == 0) fabric_.vanish(lives_[i].node);
  for (const auto p : program()) simulation_.crash(p);
}

}  // namespace troupe::testing
