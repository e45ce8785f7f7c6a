// A simulation: one actor system on one thread, virtual time in integer nanoseconds, and one heap
// of future events. A node is one incarnation of a simulated process. It owns actors, timers and
// events, and a fault of the node affects all of them.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/testing/choices.hpp"
#include "apps/testing/coverage_book.hpp"
#include "apps/testing/delivery.hpp"
#include "apps/testing/event_heap.hpp"
#include "apps/testing/virtual_system.hpp"
#include "backends/simulated/later.hpp"

namespace troupe::testing {

using nanoseconds = std::chrono::nanoseconds;

/// Which of several possible events comes first.
enum class scheduling : std::uint8_t {
  fifo,    ///< first come, first served; mean latencies
  random,  ///< random walk over runnable actors and latencies
  pct,     ///< nodes have drawn priorities that change `depth` - 1 times; low ones are late
};
std::string_view to_string(scheduling s);

class simulation;

struct simulation_options {
  scheduling schedule = scheduling::random;
  std::uint32_t depth = 3;       ///< pct only
  std::uint64_t horizon = 4096;  ///< pct: change points lie within so many first events
  /// how late a message may be beyond its latency, without a fault
  nanoseconds elastic = std::chrono::microseconds{400};
  std::uint64_t until = 0;  ///< `at_until` is called before this event; 0: never
  /// For a debugger: called with the simulation and the node of the next event.
  std::function<void(const simulation& in, std::uint32_t node)> at_until;
  bool record = false;  ///< keep all events and the choices that are not 0
};

/// One entry of a message chart.
struct trace_note {
  std::uint64_t event = 0;
  std::int64_t at = 0;     ///< nanoseconds
  std::int32_t from = -1;  ///< node; -1: the simulation
  std::int32_t to = -1;
  std::string what;
};

/// Three rolling hashes. The first one that differs between two runs names the layer.
struct trace_hashes {
  std::uint64_t choices = 0;     ///< equal decisions
  std::uint64_t deliveries = 0;  ///< equal behaviour of actors
  std::uint64_t state = 0;       ///< equal memory at the end
  friend bool operator==(const trace_hashes&, const trace_hashes&) = default;
};

/// The hashes after one event.
struct event_hashes {
  std::uint64_t event = 0;
  std::int64_t at = 0;    ///< nanoseconds
  std::int32_t node = 0;  ///< node of the event
  trace_hashes hashes;
};

class simulation final : public virtual_host {
public:
  using node_id = std::uint32_t;

  simulation(choices from, simulation_options options);
  ~simulation() override;
  simulation(const simulation&) = delete;
  simulation& operator=(const simulation&) = delete;

  caf::actor_system& system() { return caf_->system(); }
  choices& draws() { return draws_; }
  coverage_book& marks() { return marks_; }
  nanoseconds time() const { return nanoseconds{now_}; }
  const simulation_options& options() const { return options_; }

  // --- nodes ---

  /// Adds a process on `host`. Node 0 exists from the start: the simulation itself, without faults.
  node_id add_node(std::uint32_t host, std::string name);
  std::size_t nodes() const { return nodes_.size(); }
  const std::string& name_of(node_id p) const { return nodes_[p].name; }
  std::vector<std::string> names() const;  ///< of all nodes
  void rename(node_id p, std::string name) { nodes_[p].name = std::move(name); }
  std::uint32_t host_of(node_id p) const { return nodes_[p].host; }
  bool alive(node_id p) const { return !nodes_[p].dead; }
  /// The node of the event that happens now, or happened last.
  node_id here() const { return delivering_at_; }
  /// Whether an actor of the node has not ended.
  bool has_actors(node_id p) const;
  /// Assigns the actor to a node; called before it has run.
  void settle(const caf::strong_actor_ptr& who, node_id at);
  /// Node of the actor; 0 when it was not assigned.
  node_id where(const caf::strong_actor_ptr& who) const { return node_of(who->id()); }
  /// Schedules an event on the node. A dead node drops it; a paused one delays it.
  template <class F>
  void at(node_id where, nanoseconds delay, F&& what) {
    if (auto* const slot = slot_behind(where, delay)) slot->put(std::forward<F>(what));
  }
  later_fn later_of(node_id p);
  /// While it lives, actors that are spawned belong to the node.
  class spawn_scope {
  public:
    spawn_scope(simulation& in, node_id at);
    ~spawn_scope() { in_.spawns_ = nullptr; }
    spawn_scope(const spawn_scope&) = delete;
    spawn_scope& operator=(const spawn_scope&) = delete;
    /// The last one so far; null: none.
    const caf::strong_actor_ptr& newest() const { return newest_; }

  private:
    friend class simulation;
    simulation& in_;
    const node_id at_;
    caf::actor_id next_;
    caf::strong_actor_ptr newest_;
  };
  /// As `at`, but with a timer of the node: its skew and its lateness apply.
  template <class F>
  void after(node_id where, nanoseconds delay, F&& what) {
    if (!nodes_[where].dead)
      slot_at(timer_due(where, std::max<std::int64_t>(0, delay.count())), where)
          .put(std::forward<F>(what));
  }
  /// The node's monotonic clock, with its skew.
  std::function<nanoseconds()> clock_of(node_id p);
  /// The value of that clock at `when`, which must be close to now.
  nanoseconds clock_at(node_id p, nanoseconds when) const;
  /// The delay that the schedule adds to a latency towards `p`; 0 for fifo.
  nanoseconds lateness(node_id p, nanoseconds window);

  // --- faults ---

  /// The process dies without notice, with its actors, timers and events. `note`: for charts.
  void crash(node_id p, const char* note = "crash");
  /// Delays all events of the node until `until`.
  void pause(node_id p, nanoseconds until);
  /// From now on its clock runs `per_mille` / 1000 too fast (negative: too slow).
  void skew(node_id p, std::int32_t per_mille);
  /// Each of its timers is late by up to `most`.
  void late_timers(node_id p, nanoseconds most);
  /// Each of its events takes so long, and later events wait.
  void slow(node_id p, nanoseconds each);

  // --- running ---

  /// An event's number, or a time.
  struct moment {
    std::uint64_t event = 0;
    std::int64_t time = 0;  ///< nanoseconds
  };
  /// Runs one event: an actor handles a message, or the next scheduled call happens. Returns false
  /// when nothing is left. Throws reached_outside when the event called the outside without a port;
  /// the run is over then.
  bool step() { return run_to({}); }
  /// Runs one event, and further ones until either limit is reached or `halt` was called. Returns
  /// false when nothing is left. Throws as `step`.
  bool run_to(moment last);
  /// Makes `run_to` return after this event. Every crash does so, too.
  void halt() { halted_ = true; }
  /// Whether nothing is left to do.
  bool idle() const { return jobs_.empty() && heap_.empty(); }
  /// Drops all remaining events and ends all actors. For the end of a run.
  void clear();
  std::uint64_t events() const { return events_; }
  std::uint64_t deliveries() const { return deliveries_; }
  std::size_t actors() const { return caf_->running(); }

  /// Adds to the hash of deliveries.
  void delivered(std::uint64_t label, std::uint64_t payload);
  /// `text()` is called only when notes are kept.
  template <class Text>
  void note(std::int32_t from, std::int32_t to, Text text) {
    if (options_.record) notes_.push_back({events_, now_, from, to, text()});
  }
  bool recording() const { return options_.record; }
  const std::vector<trace_note>& notes() const { return notes_; }
  /// When recording: one entry per event.
  const std::vector<event_hashes>& trail() const { return trail_; }
  void state_is(std::uint64_t digest);
  trace_hashes hashes() const;
  /// A handler of exceptions and unknown messages in actors.
  actor_error_handler trouble();
  const std::vector<std::string>& troubles() const { return troubles_; }

private:
  // While code under test runs, its coverage is counted here and its calls are checked.
  struct running {
    explicit running(simulation& in) : marks(&in.marks_) {}
    const coverage_scope marks;
    const delivering watched;
  };
  // The members that each event reads come first, in one cache line.
  struct alignas(64) node_state {
    bool dead = false;
    bool line = false;      // events wait in line since a pause
    std::int32_t skew = 0;  // per mille
    std::int64_t paused_until = 0;
    std::int64_t skewed_since = 0;
    std::int64_t gained = 0;
    std::int64_t late = 0;
    std::int64_t busy = 0;  // added after each event
    std::uint32_t priority = 0;
    std::uint32_t host = 0;
    std::string name;
    std::vector<caf::strong_actor_ptr> actors;
  };
  // A scheduled event. It fits a cache line, because large simulations have tens of thousands of
  // them.
  enum class turn : std::uint8_t {
    ordinary,
    timer,    ///< a message that an actor sent to itself with a delay
    wakes,    ///< an actor of a paused node may run again; counts as no event
    goes_on,  ///< the first one in line has its turn, unless the pause goes on
  };
  struct pending {
    later_call call;
    node_id where = 0;  // of a free slot: the next free one
    turn kind = turn::ordinary;
  };

  void runnable(caf::resumable* job) override;
  void timer(std::int64_t when, caf::strong_actor_ptr receiver,
             caf::mailbox_element_ptr what) override;
  std::int64_t now() const override { return now_; }
  std::deque<caf::resumable*> take_jobs() override { return std::exchange(jobs_, {}); }

  later_call* slot_behind(node_id where, nanoseconds delay) {
    if (nodes_[where].dead) return nullptr;
    return &slot_at(now_ + std::max<std::int64_t>(0, delay.count()), where);
  }
  later_call& slot_at(std::int64_t when, node_id where, turn kind = turn::ordinary);
  void free_slot(pending& what, std::uint32_t slot) { what.where = std::exchange(free_, slot); }
  void add_slots();
  std::int64_t timer_due(node_id p, std::int64_t delay);
  void was_busy(node_id p) {
    if (const auto each = nodes_[p].busy; each > 0) pause(p, nanoseconds{now_ + each});
  }
  pending& in_slot(std::uint32_t i) { return (*slots_[i / slots_each])[i % slots_each]; }
  bool next_event();
  bool happen();
  void bring_near();
  std::uint32_t in_line(node_id p, std::uint32_t slot);
  void drop(std::uint32_t slot);
  bool run_actor();
  [[noreturn]] void stop_outside();
  void count_event(node_id where) {
    if (++events_ == options_.until && options_.at_until) options_.at_until(*this, where);
  }
  std::size_t pick_job();
  node_id node_of(caf::actor_id id) const {
    return id < node_of_actor_.size() ? node_of_actor_[id] : 0;
  }
  void change_priorities(node_id running);
  static std::int64_t clock_at(const node_state& l, std::int64_t when) {
    const auto shown = when + l.gained;
    return l.skew == 0 ? shown : shown + (when - l.skewed_since) * l.skew / 1000;
  }

  simulation_options options_;
  choices draws_;
  coverage_book marks_{draws_};
  std::int64_t now_ = 1;
  std::uint64_t events_ = 0;
  std::uint64_t deliveries_ = 0;
  node_id delivering_at_ = 0;
  std::uint64_t delivery_hash_ = 0;
  std::uint64_t state_hash_ = 0;
  std::vector<node_state> nodes_;
  std::vector<node_id> node_of_actor_;
  std::deque<caf::resumable*> jobs_;
  event_heap heap_;
  std::map<node_id, std::deque<std::uint32_t>> lines_;  // slots of nodes that are paused or were
  // Slots lie in blocks that never move, so a call may happen in its slot.
  static constexpr std::uint32_t slots_each = 256;
  static constexpr std::size_t slots_near = 4;  // with more blocks, events are prefetched
  std::vector<std::unique_ptr<std::array<pending, slots_each>>> slots_;
  std::uint32_t free_ = event_heap::none;
  std::vector<std::uint64_t> change_points_;
  std::vector<trace_note> notes_;
  std::vector<event_hashes> trail_;
  std::vector<std::string> troubles_;
  spawn_scope* spawns_ = nullptr;
  bool halted_ = false;
  bool clearing_ = false;
  std::unique_ptr<virtual_system> caf_;  // last: its destructor calls back
};

}  // namespace troupe::testing
