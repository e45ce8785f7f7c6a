#include "apps/testing/rehearsal.hpp"

#include <algorithm>

#include "actors/checkpointer.hpp"
#include "actors/time_knob.hpp"
#include "apps/testing/delivery.hpp"
#include "backends/simulated/baton.hpp"

namespace troupe::testing {

namespace {

class world_entropy : public entropy {
public:
  explicit world_entropy(world& of) : world_(of) {}
  std::uint64_t draw() override { return world_.draws().bits(0); }

private:
  world& world_;
};

// It runs while the world's stands still, so the guard takes what it calls for the event's.
std::shared_ptr<baton_thread> lane_thread() {
  const not_delivering own;
  auto made = std::make_shared<baton_thread>();
  made->run([&of = delivery::here()] { delivery::lend(of); });
  return made;
}

class at_once : public process_control {
public:
  void start(const rank_start&, std::function<void()> body,
             std::function<void(std::string)>) override {
    body();
  }
};

// The supervisor chooses it; each rank gets its own in its place.
class only_a_name : public communicator_backend {
public:
  std::string_view name() const override { return "simulated"; }
  std::string unusable() const override { return {}; }
  std::shared_ptr<communicator> open(const group_description&) override {
    throw internal_error("a simulated rank uses the communicator of its place");
  }
};

std::int32_t node_of(std::int32_t rank, std::uint32_t ranks_per_host) {
  return rank / static_cast<std::int32_t>(std::max<std::uint32_t>(1, ranks_per_host));
}

bool computes(const hook& h) {
  return h.is<hooks::training_step>() || h.is<hooks::validation_step>();
}

}  // namespace

nanoseconds longest_step(const surroundings& around) {
  auto most = around.compute * 3 / 2;
  if (around.compute_spread > 0)
    most = std::max(most, lognormal{around.compute_spread}.most(around.compute));
  std::int64_t slowest = 100;
  for (const auto& [node, per_cent] : around.slow_nodes) slowest = std::max(slowest, per_cent);
  return most * slowest / 100;
}

rehearsal::rehearsal(world& in, surroundings around)
    : world_(in),
      around_(std::move(around)),
      spread_(around_.compute_spread),
      pace_(around_.ranks_per_host),
      fabric_(in.later_of(0), in.clock_of(0), around_.network,
              [this](const collective_call& call, std::span<const arrival> who) {
                if (call.what == collective::all_reduce || call.what == collective::reduce_scatter)
                  pace_.met(who);
              }) {}

rehearsal::~rehearsal() { world_.clear(); }

void rehearsal::begin(job what, path_faults path) {
  outcome_.reset();
  path_ = path;
  home_ = world_.add_place(0, "supervisor");
  first_life_ = lives_.size();
  observers_.clear();
  limits_.limit = what.options.time.detect;
  limits_.beat = limits_.limit / 5;
  supervisor_setup setup;
  job_ = job_id{world_.draws().bits(0)};
  setup.id = job_;
  setup.world.communicators.push_back(std::make_shared<only_a_name>());
  setup.world.files = files_.disk;
  setup.world.checkpoints = files_.checkpoints;
  setup.world.processes = std::make_shared<at_once>();
  setup.world.random = std::make_shared<world_entropy>(world_);
  setup.world.now = world_.clock_of(home_);
  setup.trouble = world_.trouble();
  if (files_.checkpoints) {
    setup.spawn_checkpointer = [this, spawn = checkpointers(files_.checkpoints)](
                                   caf::actor_system& system, actor_trouble trouble, job_id id,
                                   const job& of, std::shared_ptr<storage> disk,
                                   supervisor_actor supervisor) {
      auto made = spawn(system, std::move(trouble), id, of, std::move(disk), std::move(supervisor));
      world_.settle(caf::actor_cast<caf::strong_actor_ptr>(made), home_);
      return made;
    };
  }
  setup.bring_rank = [this](caf::actor_system& system, actor_trouble trouble, rank_setup given) {
    return bring(system, std::move(trouble), std::move(given));
  };
  setup.bring_observer = [this](caf::actor_system& system, actor_trouble trouble,
                                const observer_factory& make, supervisor_actor supervisor) {
    auto made = spawn_observer_behind(observations, system, std::move(trouble), make,
                                      std::move(supervisor));
    observers_.push_back(world_.add_place(0, "observer"));
    world_.settle(caf::actor_cast<caf::strong_actor_ptr>(made.actor), observers_.back());
    if (observer_came) observer_came(observers_.back());
    return made;
  };
  setup.announced = announced_;
  setup.complete = [this](job_outcome outcome) {
    outcome_ = std::move(outcome);
    world_.halt();
  };
  setup.what = std::move(what);
  if (before_start) before_start(setup);
  supervisor_ = spawn_supervisor(world_.system(), std::move(setup));
  world_.settle(caf::actor_cast<caf::strong_actor_ptr>(supervisor_), home_);
  caf::anon_send(supervisor_, begin_job{});
}

rank_life* rehearsal::life_of(std::int32_t rank) {
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (lives_[i].rank == rank) return &lives_[i];
  return nullptr;
}

nanoseconds rehearsal::cost_of(const rank_life& life, std::span<const hook> what) {
  const bool usual = life.slow_per_cent == 100 && life.node_per_cent == 100;
  const auto slow = [&](nanoseconds cost) {
    return usual ? cost : cost * life.slow_per_cent / 100 * life.node_per_cent / 100;
  };
  std::int64_t computing = 0;
  nanoseconds sum{0};
  for (const auto& h : what) {
    if (!computes(h)) continue;
    ++computing;
    auto cost = around_.compute;
    if (around_.compute_spread > 0)
      cost = spread_.of(cost, world_.draws().draw(site::compute, life.place, lognormal::levels));
    else if (world_.options().schedule != scheduling::fifo)
      cost += around_.compute *
              static_cast<std::int64_t>(world_.draws().draw(site::compute, life.place, 16)) / 32;
    sum += slow(cost);
  }
  return sum + slow(nanoseconds{1000}) * (static_cast<std::int64_t>(what.size()) - computing);
}

rank_actor rehearsal::bring(caf::actor_system& system, actor_trouble trouble, rank_setup setup) {
  const auto rank = setup.plan.rank;
  const auto host = around_.ranks_per_host == 0
                        ? 0
                        : 1 + static_cast<std::uint32_t>(rank) / around_.ranks_per_host;
  const auto place = world_.add_place(host, "rank " + std::to_string(rank));
  const auto index = lives_.size();
  auto& life = lives_.emplace_back();
  life.place = place;
  life.rank = rank;
  life.job = setup.plan.job;
  const auto slow = around_.slow_nodes.find(node_of(rank, around_.ranks_per_host));
  if (slow != around_.slow_nodes.end()) life.node_per_cent = slow->second;

  const auto bell = std::make_shared<lane_bell>();
  const auto late = [this, place] { return world_.lateness(place, world_.options().elastic); };
  setup.communicators = fabric_.at({world_.later_of(place), bell, late});
  inline_lane_options lanes;
  lanes.later = world_.later_of(place);
  lanes.now = world_.clock_of(place);
  lanes.cost = [this, index](std::int32_t, std::span<const hook> all) {
    return cost_of(lives_[index], all);
  };
  lanes.bell = bell;
  lanes.in_spans = around_.lanes_in_spans;
  if (around_.lane_threads) lanes.thread = lane_thread;
  setup.world.lanes = std::make_shared<inline_lanes>(std::move(lanes));
  setup.world.now = world_.clock_of(place);

  if (host == 0) {
    auto made = spawn_rank(system, std::move(trouble), std::move(setup));
    life.actor = caf::actor_cast<caf::strong_actor_ptr>(made);
    world_.settle(life.actor, place);
    return made;
  }
  auto how = link_settings();
  how.door = [this, rank](bool to_supervisor, const caf::message& m,
                          const caf::strong_actor_ptr& to) {
    return door && door(rank, to_supervisor, m, to);
  };
  life.link = std::make_shared<control_link>(world_, home_, place, how);
  auto near_actor = caf::actor_cast<caf::strong_actor_ptr>(setup.supervisor);
  setup.supervisor = caf::actor_cast<supervisor_actor>(life.link->near_handle());
  if (setup.checkpointer)
    setup.checkpointer = caf::actor_cast<checkpointer_actor>(
        life.link->stand_in(caf::actor_cast<caf::strong_actor_ptr>(setup.checkpointer)));
  setup.observers = life.link->stand_in(setup.observers);
  const auto made = spawn_rank(system, std::move(trouble), std::move(setup));
  life.actor = caf::actor_cast<caf::strong_actor_ptr>(made);
  world_.settle(life.actor, place);
  life.link->open(std::move(near_actor), life.actor);
  return caf::actor_cast<rank_actor>(life.link->far_handle());
}

control_link::settings rehearsal::link_settings() {
  control_link::settings how;
  how.limits = limits_;
  how.latency = around_.control_latency;
  how.faults = path_;
  how.counts = &counts_;
  return how;
}

const std::vector<own_link>& rehearsal::own_links() {
  std::erase_if(own_links_, [](const own_link& l) { return l.link->over(); });
  return own_links_;
}

caf::strong_actor_ptr rehearsal::link_between(const caf::strong_actor_ptr& from,
                                              const caf::strong_actor_ptr& to) {
  const auto here = world_.where(from);
  const auto there = world_.where(to);
  if (world_.host_of(here) == world_.host_of(there)) return to;
  for (const auto& l : own_links()) {
    if (l.from == from && l.to == to) return l.link->far_handle();
    if (l.from == to && l.to == from) return l.link->near_handle();
  }
  auto link = std::make_shared<control_link>(world_, here, there, link_settings());
  link->open(from, to);
  own_links_.push_back({from, to, link});
  return link->far_handle();
}

void rehearsal::crash(std::int32_t rank, bool host_too) {
  auto* life = life_of(rank);
  if (!life || !world_.alive(life->place)) return;
  if (world_.host_of(life->place) == 0) return crash_program();
  fabric_.vanish(life->job, rank);
  world_.crash(life->place);
  if (life->link && !host_too) life->link->reset();
}

std::vector<world::place> rehearsal::program() const {
  std::vector<world::place> all{home_};
  all.insert(all.end(), observers_.begin(), observers_.end());
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (world_.host_of(lives_[i].place) == 0) all.push_back(lives_[i].place);
  return all;
}

std::vector<world::place> rehearsal::guests() const {
  std::vector<bool> known(world_.places());
  known[0] = true;  // the world
  for (const auto p : program()) known[p] = true;
  for (const auto& l : lives_) known[l.place] = true;
  std::vector<world::place> all;
  for (world::place p = 0; p < known.size(); ++p)
    if (!known[p] && world_.inhabited(p)) all.push_back(p);
  return all;
}

void rehearsal::crash_guest(world::place where) {
  world_.crash(where);
  for (const auto& l : own_links())
    if (l.link->reaches(where)) l.link->reset();
}

std::vector<std::string> rehearsal::left_at_home() const {
  std::vector<std::string> names;
  for (const auto p : program())
    if (world_.inhabited(p)) names.push_back(world_.name_of(p));
  return names;
}

void rehearsal::crash_program() {
  for (auto i = first_life_; i < lives_.size(); ++i)
    if (world_.host_of(lives_[i].place) == 0) fabric_.vanish(lives_[i].job, lives_[i].rank);
  for (const auto p : program()) world_.crash(p);
}

}  // namespace troupe::testing
