#include "apps/testing/simulation.hpp"

#include <algorithm>
#include <utility>

#include "troupe/detail/data_order.hpp"
#include "troupe/failure.hpp"

namespace troupe::testing {

namespace {

constexpr std::uint32_t levels = 16;  // of lateness and of priorities

}  // namespace

std::string_view to_string(scheduling s) {
  switch (s) {
    case scheduling::fifo: return "fifo";
    case scheduling::random: return "random";
    case scheduling::pct: return "pct";
  }
  return "?";
}

simulation::simulation(choices from, simulation_options options)
    : options_(std::move(options)), draws_(std::move(from)), nodes_(1) {
  if (options_.record) draws_.record();
  nodes_[0].name = "simulation";
  caf_ = std::make_unique<virtual_system>(*this);
  if (options_.schedule != scheduling::pct) return;
  nodes_[0].priority = static_cast<std::uint32_t>(draws_.draw(site::priority, 0, levels));
  for (std::uint32_t d = 1; d < options_.depth; ++d)
    change_points_.push_back(1 + draws_.draw(site::change_point, d, options_.horizon));
}

simulation::~simulation() { clear(); }

// --- nodes ---------------------------------------------------------------------------------------

simulation::node_id simulation::add_node(std::uint32_t host, std::string name) {
  const auto p = static_cast<node_id>(nodes_.size());
  node_state fresh;
  fresh.name = std::move(name);
  fresh.host = host;
  if (options_.schedule == scheduling::pct)
    fresh.priority = static_cast<std::uint32_t>(draws_.draw(site::priority, p, levels));
  nodes_.push_back(std::move(fresh));
  return p;
}

std::vector<std::string> simulation::names() const {
  std::vector<std::string> all;
  for (const auto& l : nodes_) all.push_back(l.name);
  return all;
}

void simulation::settle(const caf::strong_actor_ptr& who, node_id at) {
  const auto id = who->id();
  if (node_of_actor_.size() <= id) node_of_actor_.resize(id + 1, 0);
  node_of_actor_[id] = at;
  nodes_[at].actors.push_back(who);
}

bool simulation::has_actors(node_id p) const {
  return std::ranges::any_of(nodes_[p].actors, virtual_system::lives);
}

later_fn simulation::later_of(node_id p) {
  return later_fn{[this, p](nanoseconds delay) { return slot_behind(p, delay); }};
}

nanoseconds simulation::clock_at(node_id p, nanoseconds when) const {
  return nanoseconds{clock_at(nodes_[p], when.count())};
}

std::function<nanoseconds()> simulation::clock_of(node_id p) {
  return [this, p] { return clock_at(p, time()); };
}

nanoseconds simulation::lateness(node_id p, nanoseconds window) {
  std::uint64_t level = 0;
  if (options_.schedule == scheduling::random) level = draws_.draw(site::latency, p, levels);
  if (options_.schedule == scheduling::pct) level = nodes_[p].priority;
  return window * static_cast<std::int64_t>(level) / (levels - 1);
}

// --- faults --------------------------------------------------------------------------------------

void simulation::crash(node_id p, const char* note) {
  auto& l = nodes_[p];
  if (l.dead) return;
  l.dead = true;
  halt();
  this->note(-1, static_cast<std::int32_t>(p), [&] { return std::string{note}; });
  const auto actors = std::exchange(l.actors, {});
  for (const auto& a : actors) virtual_system::destroy(a);
}

void simulation::pause(node_id p, nanoseconds until) {
  nodes_[p].paused_until = std::max(nodes_[p].paused_until, until.count());
}

void simulation::skew(node_id p, std::int32_t per_mille) {
  auto& l = nodes_[p];
  l.gained = clock_at(l, now_) - now_;
  l.skewed_since = now_;
  l.skew = per_mille;
}

void simulation::late_timers(node_id p, nanoseconds most) { nodes_[p].late = most.count(); }

void simulation::slow(node_id p, nanoseconds each) { nodes_[p].busy = each.count(); }

// --- running -------------------------------------------------------------------------------------

// Separate from `slot_at`, which every event calls.
[[gnu::noinline]] void simulation::add_slots() {
  const auto first = static_cast<std::uint32_t>(slots_.size()) * slots_each;
  if (first == event_heap::slots_max) throw internal_error("too many scheduled events");
  slots_.push_back(std::make_unique_for_overwrite<std::array<pending, slots_each>>());
  for (auto i = slots_each; i-- > 0;) free_slot(in_slot(first + i), first + i);
}

// Reserves the slot of an event; the call is constructed in it and stays there until it happens.
later_call& simulation::slot_at(std::int64_t when, node_id where, turn kind) {
  if (free_ == event_heap::none) add_slots();
  const auto slot = free_;
  auto& fresh = in_slot(slot);
  free_ = std::exchange(fresh.where, where);
  fresh.kind = kind;
  heap_.push(when, slot);
  return fresh.call;
}

// A new actor is runnable at once.
void simulation::runnable(caf::resumable* job) {
  jobs_.push_back(job);
  if (!spawns_ || virtual_system::id_of(job) < spawns_->next_) return;
  spawns_->newest_ = virtual_system::actor_of(job);
  spawns_->next_ = spawns_->newest_->id() + 1;
  settle(spawns_->newest_, spawns_->at_);
}

simulation::spawn_scope::spawn_scope(simulation& in, node_id at)
    : in_(in), at_(at), next_(in.caf_->next_id()) {
  in.spawns_ = this;
}

void simulation::timer(std::int64_t when, caf::strong_actor_ptr receiver,
                       caf::mailbox_element_ptr what) {
  const auto p = node_of(receiver->id());
  if (nodes_[p].dead || clearing_) return;
  slot_at(timer_due(p, when - now_), p, turn::timer)
      .put([to = std::move(receiver), message = std::move(what)]() mutable {
        to->enqueue(std::move(message), nullptr);
      });
}

std::int64_t simulation::timer_due(node_id p, std::int64_t delay) {
  const auto& l = nodes_[p];
  if (l.skew != 0) delay = delay * 1000 / (1000 + l.skew);
  if (l.late > 0)
    delay +=
        l.late * static_cast<std::int64_t>(draws_.draw(site::latency, p, levels)) / (levels - 1);
  return now_ + delay;
}

bool simulation::run_to(moment last) {
  const running now{*this};
  bool more = true;
  do more = next_event();
  while (more && !halted_ && events_ < last.event && now_ < last.time);
  halted_ = false;
  return more;
}

// Inlined into the above, with its two halves: every event passes here.
[[gnu::always_inline]] inline bool simulation::next_event() {
  const auto before = events_;
  const bool more = jobs_.empty() ? happen() : run_actor();
  if (options_.record && events_ != before)
    trail_.push_back({events_, now_, static_cast<std::int32_t>(delivering_at_), hashes()});
  if (delivery::here().breach) [[unlikely]]
    stop_outside();
  return more;
}

void simulation::stop_outside() {
  const std::string call = std::exchange(delivery::here().breach, nullptr);
  throw reached_outside(name_of(delivering_at_) + " called " + call + " in event " +
                        std::to_string(events_) + " without a port");
}

std::size_t simulation::pick_job() {
  const auto n = jobs_.size();
  if (n == 1 || options_.schedule == scheduling::fifo) return 0;
  if (options_.schedule == scheduling::random) return draws_.draw(site::schedule, 0, n);
  const auto priority_of = [this](caf::resumable* job) {
    return nodes_[node_of(virtual_system::id_of(job))].priority;
  };
  constexpr std::size_t looked_at = 64;  // the oldest ones of a large number
  std::size_t best = 0;
  for (std::size_t i = 1; i < std::min(n, looked_at); ++i)
    if (priority_of(jobs_[i]) < priority_of(jobs_[best])) best = i;
  return best;
}

[[gnu::always_inline]] inline bool simulation::run_actor() {
  const auto picked = pick_job();
  std::swap(jobs_[picked], jobs_.front());
  auto* job = jobs_.front();
  jobs_.pop_front();
  const auto id = virtual_system::id_of(job);
  const auto p = node_of(id);
  if (nodes_[p].dead) {
    virtual_system::drop(job);
    return true;
  }
  if (nodes_[p].paused_until > now_) {
    const std::shared_ptr<caf::resumable> held{job, virtual_system::drop};
    slot_at(nodes_[p].paused_until, p, turn::wakes).put([this, held] {
      caf::intrusive_ptr_add_ref(held.get());
      jobs_.push_back(held.get());
    });
    return true;
  }
  count_event(p);
  delivering_at_ = p;
  ++deliveries_;
  delivery_hash_ = mix(delivery_hash_ ^ static_cast<std::uint64_t>(now_)) + id;
  if (!change_points_.empty()) change_priorities(p);
  caf_->run_one(job);
  was_busy(p);
  return true;
}

// Prefetches the next events: in large simulations they are not in the cache.
void simulation::bring_near() {
  const auto soon = heap_.coming();
  if (soon == event_heap::none) return;
  if (const auto later = heap_.behind(soon); later != event_heap::none)
    __builtin_prefetch(&in_slot(later));
  in_slot(soon).call.bring_near();
}

[[gnu::always_inline]] inline bool simulation::happen() {
  if (heap_.empty()) return false;
  auto next = heap_.pop();
  if (slots_.size() > slots_near) bring_near();
  auto* what = &in_slot(next.slot);
  const auto where = what->where;
  const auto& l = nodes_[where];
  if (l.dead) {
    drop(next.slot);
    return true;
  }
  now_ = std::max(now_, next.at);
  if (l.line || l.paused_until > now_) {
    next.slot = in_line(where, next.slot);
    if (next.slot == event_heap::none) return true;
    what = &in_slot(next.slot);  // of the same node
  }
  count_event(where);
  delivering_at_ = where;
  if (!change_points_.empty() && what->kind != turn::timer) change_priorities(where);
  what->call.call_last();
  free_slot(*what, next.slot);
  if (what->kind != turn::wakes) was_busy(where);
  return true;
}

void simulation::drop(std::uint32_t slot) {
  auto& what = in_slot(slot);
  what.call = nullptr;
  if (what.kind == turn::goes_on) {
    const auto line = lines_.extract(what.where);
    for (const auto held : line.mapped()) drop(held);
  }
  free_slot(what, slot);
}

// The node is paused, or was: events wait in line, and one turn at a time lets the first one
// happen. Each event moves once, however long the line is and however often the pause is extended.
std::uint32_t simulation::in_line(node_id p, std::uint32_t slot) {
  const auto next_turn = [&] { slot_at(std::max(now_, nodes_[p].paused_until), p, turn::goes_on); };
  auto& line = lines_[p];
  if (in_slot(slot).kind != turn::goes_on) {
    if (!std::exchange(nodes_[p].line, true)) next_turn();
    line.push_back(slot);
    return event_heap::none;
  }
  free_slot(in_slot(slot), slot);
  if (nodes_[p].paused_until > now_) {
    next_turn();
    return event_heap::none;
  }
  const auto first = line.front();
  line.pop_front();
  nodes_[p].line = !line.empty();
  nodes_[p].line ? next_turn() : (void)lines_.erase(p);
  return first;
}

void simulation::change_priorities(node_id running) {
  for (std::size_t d = 0; d < change_points_.size(); ++d)
    if (change_points_[d] == events_)
      nodes_[running].priority =
          levels - std::min(levels, static_cast<std::uint32_t>(change_points_.size() - d));
}

void simulation::clear() {
  clearing_ = true;
  for (auto& l : nodes_) {
    l.dead = true;
    const auto actors = std::exchange(l.actors, {});
    for (const auto& a : actors) virtual_system::destroy(a);
  }
  heap_.clear();
  lines_.clear();
  slots_.clear();
  free_ = event_heap::none;
  for (auto* job : std::exchange(jobs_, {})) virtual_system::drop(job);
}

// --- the trace ---------------------------------------------------------------------------------

void simulation::delivered(std::uint64_t label, std::uint64_t payload) {
  delivery_hash_ = mix(mix(delivery_hash_ ^ static_cast<std::uint64_t>(now_)) + label) ^ payload;
}

void simulation::state_is(std::uint64_t digest) { state_hash_ = mix(state_hash_ ^ digest); }

trace_hashes simulation::hashes() const { return {draws_.digest(), delivery_hash_, state_hash_}; }

actor_error_handler simulation::trouble() {
  return [this](const caf::strong_actor_ptr& who, caught what) {
    troubles_.push_back((who ? name_of(node_of(who->id())) : std::string{"?"}) + ": " +
                        what.record.type + ": " + what.record.what);
  };
}

}  // namespace troupe::testing
