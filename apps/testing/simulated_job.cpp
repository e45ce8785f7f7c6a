#include "apps/testing/simulated_job.hpp"

#include <algorithm>

#include "actors/checkpointer.hpp"
#include "actors/job_check.hpp"
#include "actors/remote_rank.hpp"
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

// Ranks of processes meet in the simulated fabric. Each rank joins with its own communicator.
class fabric_rendezvous : public rendezvous_kind {
public:
  explicit fabric_rendezvous(std::shared_ptr<communicator_backend> of_rank = nullptr)
      : of_rank_(std::move(of_rank)) {}
  std::string_view name() const override { return "simulated"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<rendezvous> arrange(const rendezvous_options&) const override {
    return std::make_shared<rendezvous>();
  }
  std::shared_ptr<communicator_backend> join(const std::string&,
                                             const std::vector<int>&) const override {
    return of_rank_;
  }

private:
  std::shared_ptr<communicator_backend> of_rank_;
};

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
                if (call.what == collective_kind::all_reduce ||
                    call.what == collective_kind::reduce_scatter)
                  stragglers_.met(who);
              }) {
  detect_ = trainer_options{}.time.detect;
}

simulated_job::~simulated_job() { simulation_.clear(); }

// Where a job begins that resumes; the beginning if the checkpoint cannot be read: a rank says so.
static loop_state loop_at(const checkpoint_io& io, const std::string& path) {
  try {
    return io.read(path).loop;
  } catch (const user_error&) {
    return {};
  }
}

void simulated_job::begin(job what) {
  outcome_.reset();
  configure(what);
  process_count_ = what.options.ranks;
  what.options.ranks = what.options.elastic.shards.value_or(process_count_);
  supervisor_node_ = simulation_.add_node(0, "supervisor");
  first_life_ = lives_.size();
  first_process_ = processes_.size();
  newest_.assign(static_cast<std::size_t>(what.options.ranks), 0);
  observers_.clear();
  checkpointer_ = nullptr;
  detect_ = what.options.time.detect;
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
      checkpointer_ = caf::actor_cast<caf::strong_actor_ptr>(made);
      simulation_.settle(checkpointer_, supervisor_node_);
      return made;
    };
  }
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
  if (what.resume && files_.checkpoints) setup.resumed = loop_at(*files_.checkpoints, *what.resume);
  setup.what = std::move(what);
  if (cluster_.ranks_per_host > 0)
    use_processes(setup);
  else
    setup.bring_rank = [this](caf::actor_system& system, actor_error_handler trouble,
                              rank_setup given) {
      return bring_thread(system, std::move(trouble), std::move(given));
    };
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

rank_incarnation* simulated_job::life_at(simulation::node_id node, std::int32_t rank) {
  if (node >= on_.size()) return nullptr;
  const auto found = std::find_if(on_[node].rbegin(), on_[node].rend(),
                                  [&](std::size_t life) { return lives_[life].rank == rank; });
  return found == on_[node].rend() ? nullptr : &lives_[*found];
}

nanoseconds simulated_job::cost_of(const rank_incarnation& life, std::span<const hook> what) {
  const bool usual = life.slow_per_cent == 100 && life.host_per_cent == 100;
  const auto slow = [&](nanoseconds cost) {
    if (usual) return cost;
    return std::min(cost * life.slow_per_cent / 100 * life.host_per_cent / 100, life.longest);
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

std::size_t simulated_job::add_life(rank_incarnation fresh) {
  const auto index = lives_.size();
  on_.resize(std::max<std::size_t>(on_.size(), fresh.node + 1));
  on_[fresh.node].push_back(index);
  newest_.at(static_cast<std::size_t>(fresh.rank)) = index + 1;
  life_with_[fresh.incarnation] = index;
  lives_.push_back(std::move(fresh));
  return index;
}

std::shared_ptr<communicator_backend> simulated_job::communicators_of(
    std::size_t life, std::shared_ptr<lane_bell> bell) {
  const auto node = lives_[life].node;
  const auto late = [this, node] {
    return simulation_.lateness(node, simulation_.options().elastic);
  };
  const auto opened = [this, life](const group_description& who) {
    lives_[life].generation = who.generation.value();
  };
  return fabric_.at({simulation_.later_of(node), std::move(bell), late, node, opened});
}

std::shared_ptr<lane_backend> simulated_job::lanes_of(std::size_t life,
                                                      std::shared_ptr<lane_bell> bell) {
  const auto node = lives_[life].node;
  inline_lane_options lanes;
  lanes.later = simulation_.later_of(node);
  lanes.now = simulation_.clock_of(node);
  lanes.cost = [this, life](std::int32_t, std::span<const hook> all) {
    return cost_of(lives_[life], all);
  };
  lanes.bell = std::move(bell);
  lanes.in_spans = cluster_.lanes_in_spans;
  if (cluster_.lane_threads) lanes.thread = lane_thread;
  return std::make_shared<inline_lanes>(std::move(lanes));
}

// --- ranks beside the supervisor -----------------------------------------------------------------

rank_actor simulated_job::bring_thread(caf::actor_system& system, actor_error_handler trouble,
                                       rank_setup setup) {
  rank_incarnation life;
  life.rank = setup.plan.rank;
  life.job = setup.plan.job;
  life.incarnation = setup.plan.incarnation;
  life.node = simulation_.add_node(0, "rank " + std::to_string(life.rank));
  if (life_of(life.rank)) simulation_.pause(life.node, simulation_.time() + cluster_.start);
  const auto slow = cluster_.slow_hosts.find(life.rank);
  if (slow != cluster_.slow_hosts.end()) life.host_per_cent = slow->second;
  const auto node = life.node;
  const auto index = add_life(std::move(life));
  const auto bell = std::make_shared<lane_bell>();
  setup.communicators = communicators_of(index, bell);
  setup.world.lanes = lanes_of(index, bell);
  setup.world.now = simulation_.clock_of(node);
  auto made = spawn_rank(system, std::move(trouble), std::move(setup));
  lives_[index].actor = caf::actor_cast<caf::strong_actor_ptr>(made);
  simulation_.settle(lives_[index].actor, node);
  return made;
}

// --- ranks in processes --------------------------------------------------------------------------

void simulated_job::use_processes(supervisor_setup& setup) {
  setup.what.options.placement = placement_kind::processes;
  process_settings how;
  how.recipe = setup.what.recipe;
  how.parent = supervisor_node_;
  how.stream = link_settings();
  if (cluster_.placed) how.placed = process_count_ + setup.what.options.elastic.spares;
  setup.world.children = simulated_launcher(simulation_, *this, std::move(how));
  setup.world.rendezvous_kinds.push_back(std::make_shared<fabric_rendezvous>());
  setup.processes = std::make_shared<job_processes>(setup.world, setup.id, setup.what);
  setup.process_count = process_count_;
  setup.bring_rank = [this, bring = remote_ranks(setup.processes)](
                         caf::actor_system& system, actor_error_handler trouble, rank_setup given) {
    auto made = bring(system, std::move(trouble), std::move(given));
    simulation_.settle(caf::actor_cast<caf::strong_actor_ptr>(made), supervisor_node_);
    return made;
  };
}

// The first processes fill their hosts in order. A later one gets the host with the fewest
// processes, and needs time to start.
simulation::node_id simulated_job::node_of(const process_identity& who) {
  const auto each = static_cast<std::int32_t>(cluster_.ranks_per_host);
  const bool again = who.number >= process_count_;
  auto host = static_cast<std::uint32_t>(1 + who.number / each);
  if (again) {
    std::vector<std::int32_t> used(static_cast<std::size_t>((process_count_ + each - 1) / each));
    for (auto i = first_process_; i < processes_.size(); ++i)
      if (!processes_[i]->known_gone()) ++used[simulation_.host_of(processes_[i]->node()) - 1];
    host = static_cast<std::uint32_t>(1 + (std::ranges::min_element(used) - used.begin()));
  }
  const auto node = simulation_.add_node(host, "process " + std::to_string(who.number));
  if (again) simulation_.pause(node, simulation_.time() + cluster_.start);
  return node;
}

void simulated_job::process_begins(std::shared_ptr<simulated_process> fresh) {
  processes_.push_back(std::move(fresh));
}

void simulated_job::rank_comes(simulated_process& to, const rank_spec& what) {
  rank_incarnation life;
  life.node = to.node();
  life.rank = what.rank;
  life.job = what.job;
  life.incarnation = what.incarnation;
  life.process = &to;
  const auto slow =
      cluster_.slow_hosts.find(static_cast<std::int32_t>(simulation_.host_of(life.node)) - 1);
  if (slow != cluster_.slow_hosts.end()) life.host_per_cent = slow->second;
  const auto name = "rank " + std::to_string(what.rank);
  const bool first = life.node >= on_.size() || on_[life.node].empty();
  simulation_.rename(life.node, first ? name : simulation_.name_of(life.node) + ", " + name);
  add_life(std::move(life));
}

ports simulated_job::world_of(incarnation_id rank) {
  const auto life = life_with_.at(rank);
  const auto bell = std::make_shared<lane_bell>();
  ports world;
  world.random = std::make_shared<simulation_entropy>(simulation_);
  world.lanes = lanes_of(life, bell);
  world.now = simulation_.clock_of(lives_[life].node);
  world.checkpoints = files_.checkpoints;
  world.rendezvous_kinds.push_back(
      std::make_shared<fabric_rendezvous>(communicators_of(life, bell)));
  return world;
}

void simulated_job::rank_lives(incarnation_id rank, const caf::strong_actor_ptr& actor) {
  lives_[life_with_.at(rank)].actor = actor;
}

bool simulated_job::holds_back(const simulated_process& in, bool to_supervisor,
                               const link_message& what) {
  simulation_.delivered(in.node() << 1 | (to_supervisor ? 1 : 0), what.index());
  if (!message_filter) return false;
  const auto from = std::visit(
      []<class M>(const M& m) {
        if constexpr (requires { m.at; })
          return m.at.incarnation;
        else
          return incarnation_id{};
      },
      what);
  const auto found = life_with_.find(from);
  if (found == life_with_.end()) return false;
  const auto& life = lives_[found->second];
  const bool saves = std::holds_alternative<write_checkpoint>(what);
  const auto above = saves ? checkpointer_ : caf::actor_cast<caf::strong_actor_ptr>(supervisor_);
  return message_filter(life.rank, to_supervisor, what, to_supervisor ? above : life.actor);
}

simulated_stream::settings simulated_job::link_settings() const {
  return {.latency = cluster_.control_latency, .detect = detect_};
}

// --- links of a test -----------------------------------------------------------------------------

const std::vector<std::shared_ptr<actor_link>>& simulated_job::own_links() {
  std::erase_if(own_links_, [](const auto& l) { return l->stream()->over(); });
  return own_links_;
}

caf::strong_actor_ptr simulated_job::link_between(const caf::strong_actor_ptr& from,
                                                  const caf::strong_actor_ptr& to) {
  const auto here = simulation_.where(from);
  const auto there = simulation_.where(to);
  if (simulation_.host_of(here) == simulation_.host_of(there)) return to;
  for (const auto& l : own_links()) {
    if (l->actor(0) == from && l->actor(1) == to) return l->handle(0);
    if (l->actor(0) == to && l->actor(1) == from) return l->handle(1);
  }
  own_links_.push_back(std::make_shared<actor_link>(simulation_, from, to, link_settings()));
  return own_links_.back()->handle(0);
}

// --- crashes -------------------------------------------------------------------------------------

void simulated_job::crash(std::int32_t rank, bool host_too) {
  auto* life = life_of(rank);
  if (!life || !simulation_.alive(life->node)) return;
  if (!life->process) return crash_program();
  life->process->die(host_too);
}

std::vector<std::shared_ptr<simulated_process>> simulated_job::idle_processes() const {
  std::vector<std::shared_ptr<simulated_process>> idle;
  for (auto i = first_process_; i < processes_.size(); ++i) {
    const auto& one = processes_[i];
    if (!one->lives() || one->known_gone()) continue;
    const bool works = std::ranges::any_of(newest_, [&](std::size_t number) {
      return number > 0 && lives_[number - 1].process == one.get();
    });
    if (!works) idle.push_back(one);
  }
  return idle;
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
    for (const simulated_stream::side at : {0, 1})
      if (simulation_.where(l->actor(at)) == where) l->stream()->leave(at, stream_end::closed);
}

std::vector<std::string> simulated_job::left_in_program() const {
  std::vector<std::string> names;
  for (const auto p : program())
    if (simulation_.has_actors(p)) names.push_back(simulation_.name_of(p));
  return names;
}

void simulated_job::crash_program(bool host_too) {
  for (auto i = first_process_; i < processes_.size(); ++i) processes_[i]->orphan(host_too);
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (simulation_.host_of(lives_[i].node) == 0) fabric_.vanish(lives_[i].node);
  for (const auto p : program()) simulation_.crash(p);
}

}  // namespace troupe::testing
