// A simulated world: one actor system in one thread, virtual time in integer nanoseconds, and one
// heap of everything that will happen. Who lives where decides what a fault takes along: a place is
// one life of a process, with the actors, timers and events that belong to it.
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

/// Who comes first when several could.
enum class scheduling : std::uint8_t {
  fifo,    ///< first come, first served; mean latencies
  random,  ///< a random walk over runnable actors and latencies
  pct,     ///< places have priorities, drawn, that change `depth` - 1 times: low ones are late
};
std::string_view to_string(scheduling s);

class simulation;

struct simulation_options {
  scheduling schedule = scheduling::random;
  std::uint32_t depth = 3;       ///< pct only
  std::uint64_t horizon = 4096;  ///< pct: change points fall into so many first events
  nanoseconds elastic = std::chrono::microseconds{400};  ///< how late a message may be, beyond its
                                                         ///< latency, without any fault
  std::uint64_t until = 0;  ///< this event calls `at_until` before it happens; 0: none
  /// For a debugger: the world as it stands, and the place in which the event is to happen.
  std::function<void(const simulation& in, std::uint32_t node)> at_until;
  bool record = false;  ///< keep the list of events and the choices that were not 0
};

/// One thing that happened, good enough for a message chart.
struct trace_note {
  std::uint64_t event = 0;
  std::int64_t at = 0;     ///< nanoseconds
  std::int32_t from = -1;  ///< place; -1: the world
  std::int32_t to = -1;
  std::string what;
};

/// Three rolling hashes: where they part says which layer did.
struct trace_hashes {
  std::uint64_t choices = 0;     ///< did we decide alike
  std::uint64_t deliveries = 0;  ///< did actors behave alike
  std::uint64_t state = 0;       ///< did memory end alike
  friend bool operator==(const trace_hashes&, const trace_hashes&) = default;
};

/// Where a run stood behind one event.
struct event_hashes {
  std::uint64_t event = 0;
  std::int64_t at = 0;    ///< nanoseconds
  std::int32_t node = 0;  ///< where it happened
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

  // --- places ---

  /// A new process on `host`. Place 0 is there from the start: the world itself, which nothing
  /// befalls.
  node_id add_node(std::uint32_t host, std::string name);
  std::size_t nodes() const { return nodes_.size(); }
  const std::string& name_of(node_id p) const { return nodes_[p].name; }
  std::vector<std::string> names() const;  ///< of all places
  std::uint32_t host_of(node_id p) const { return nodes_[p].host; }
  bool alive(node_id p) const { return !nodes_[p].dead; }
  /// An actor that lives there has not ended.
  bool has_actors(node_id p) const;
  /// The actor lives there; called before it has run.
  void settle(const caf::strong_actor_ptr& who, node_id at);
  /// Where it lives; 0 when nobody has settled it.
  node_id where(const caf::strong_actor_ptr& who) const { return node_of(who->id()); }
  /// Makes something happen there, unless the place is dead by then; a paused one does it later.
  template <class F>
  void at(node_id where, nanoseconds delay, F&& what) {
    if (auto* const slot = slot_behind(where, delay)) slot->put(std::forward<F>(what));
  }
  later_fn later_of(node_id p);
  /// As `at`, but by a timer of the place's own: its skew and its lateness count.
  template <class F>
  void after(node_id where, nanoseconds delay, F&& what) {
    if (!nodes_[where].dead)
      slot_at(timer_due(where, std::max<std::int64_t>(0, delay.count())), where)
          .put(std::forward<F>(what));
  }
  /// When what was due there at `due`, not long ago, has happened (or will): later if it was
  /// paused.
  nanoseconds would_happen(node_id p, nanoseconds due) const;
  /// The place's monotonic clock: fast or slow, as its fault says.
  std::function<nanoseconds()> clock_of(node_id p);
  /// What that clock said, or will say, at `when`, not long ago or ahead.
  nanoseconds clock_at(node_id p, nanoseconds when) const;
  /// What the schedule adds to a latency of something that comes to `p`; 0 for fifo.
  nanoseconds lateness(node_id p, nanoseconds window);

  // --- acts of the world ---

  /// The process is gone: its actors, timers and events with it, without a word to anybody.
  void crash(node_id p);
  /// Nothing of the place happens before `until`.
  void pause(node_id p, nanoseconds until);
  /// Its clock runs `per_mille` / 1000 too fast (or slow, negative) from now on.
  void skew(node_id p, std::int32_t per_mille);
  /// Each of its timers is up to this late.
  void late_timers(node_id p, nanoseconds most);
  /// Whatever happens there takes so long, and what comes meanwhile waits.
  void slow(node_id p, nanoseconds each);

  // --- running ---

  /// A number of events, or a time.
  struct moment {
    std::uint64_t event = 0;
    std::int64_t time = 0;  ///< nanoseconds
  };
  /// One event: an actor handles a message, or the next thing due happens. False when nothing is
  /// left. Throws reached_outside when it called what is no port; the run is over then.
  bool step() { return run_to({}); }
  /// One event, and others until one of the two has come or somebody halts. False when nothing is
  /// left. Throws as `step`.
  bool run_to(moment last);
  /// Whoever runs events by `run_to` is to look up behind this one, as behind every crash.
  void halt() { halted_ = true; }
  /// Whether anything is left to do.
  bool idle() const { return jobs_.empty() && heap_.empty(); }
  /// Lets go of all that is left without doing it; actors end. For the end of a run.
  void clear();
  std::uint64_t events() const { return events_; }
  std::uint64_t deliveries() const { return deliveries_; }
  std::size_t actors() const { return caf_->running(); }

  /// Adds to the hash of deliveries, and to the list when it is kept.
  void delivered(std::uint64_t label, std::uint64_t payload);
  /// `text()` is asked for only when the list is kept.
  template <class Text>
  void note(std::int32_t from, std::int32_t to, Text text) {
    if (options_.record) notes_.push_back({events_, now_, from, to, text()});
  }
  bool recording() const { return options_.record; }
  const std::vector<trace_note>& notes() const { return notes_; }
  /// When recording: one per event.
  const std::vector<event_hashes>& trail() const { return trail_; }
  void state_is(std::uint64_t digest);
  trace_hashes hashes() const;
  /// What actors could not say themselves: exceptions, unknown messages.
  actor_error_handler trouble();
  const std::vector<std::string>& troubles() const { return troubles_; }

private:
  // Code under test may run: its marks are this world's, and what it calls is watched.
  struct running {
    explicit running(simulation& in) : marks(&in.marks_) {}
    const coverage_scope marks;
    const delivering watched;
  };
  // What each event looks at comes first, in one line of memory.
  struct alignas(64) node_state {
    bool dead = false;
    bool line = false;      // something waits in line since a pause
    std::int32_t skew = 0;  // per mille
    std::int64_t paused_since = 0;
    std::int64_t paused_until = 0;
    std::int64_t skewed_since = 0;
    std::int64_t gained = 0;
    std::int64_t late = 0;
    std::int64_t busy = 0;  // behind each event
    std::uint32_t priority = 0;
    std::uint32_t host = 0;
    std::string name;
    std::vector<caf::strong_actor_ptr> actors;
  };
  // What is due. One line of memory: wide worlds have tens of thousands of them.
  enum class turn : std::uint8_t {
    ordinary,
    timer,    ///< a message that an actor has set itself: no turn of its place
    wakes,    ///< an actor of a paused place may run again: nothing has happened yet
    goes_on,  ///< the first in line has its turn, if no pause goes on
  };
  struct pending {
    later_call call;
    node_id where = 0;  // of a free slot: the next one
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
    const auto told = when + l.gained;
    return l.skew == 0 ? told : told + (when - l.skewed_since) * l.skew / 1000;
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
  std::map<node_id, std::deque<std::uint32_t>> lines_;  // slots at places that are paused, or were
  // In blocks that stay where they are: a call that happens lies in its slot.
  static constexpr std::uint32_t slots_each = 256;
  static constexpr std::size_t slots_near = 4;  // blocks that no event has to wait for
  std::vector<std::unique_ptr<std::array<pending, slots_each>>> slots_;
  std::uint32_t free_ = event_heap::none;
  std::vector<std::uint64_t> change_points_;
  std::vector<trace_note> notes_;
  std::vector<event_hashes> trail_;
  std::vector<std::string> troubles_;
  bool halted_ = false;
  bool clearing_ = false;
  std::unique_ptr<virtual_system> caf_;  // last: its end calls back
};

}  // namespace troupe::testing
