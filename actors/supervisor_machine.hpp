// The supervisor's decisions as a pure state machine: events in, actions out
// (supervisor_events.hpp). It knows neither CAF nor clocks nor threads; actors/supervisor.cpp
// executes its actions. docs/architecture.md says what happens in each phase.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "actors/supervisor_events.hpp"
#include "actors/time_knob.hpp"

namespace troupe {

/// A regular value. Every event is defined in every phase. An event that is late, from another
/// incarnation or from a closed generation changes nothing.
class supervisor_machine {
public:
  static constexpr std::uint32_t asks_max = 8;

  supervisor_machine(job_id job, std::int32_t world, deadlines limits);

  std::vector<supervision::action> on(const supervision::event& what);

  supervision::phase phase() const { return phase_; }
  generation_id generation() const { return generation_; }
  std::int64_t committed() const { return committed_; }
  /// The id that the machine gives to the next failure that comes without one.
  failure_id next_failure() const;

  friend bool operator==(const supervisor_machine&, const supervisor_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const supervisor_machine& machine);

private:
  // The fields that every message needs come first.
  struct member {
    incarnation_id incarnation;
    std::int64_t held = 0;  ///< finished steps
    bool prepared = false;
    bool heard = false;  ///< from it, since the supervisor asked last
    bool finished = false;
    bool closed = false;
    bool torn_down = false;
    bool gone = false;
    bool abandoned = false;
    std::optional<std::int64_t> vote;
    std::string busy;
    std::string
        unresponsive;  ///< what it was doing when it did not answer in time; empty: it answered
    friend bool operator==(const member&, const member&) = default;
  };
  using actions = std::vector<supervision::action>;

  void handle(const supervision::begin& e, actions& out);
  void handle(const prepared& e, actions& out);
  void handle(const step_done& e, actions& out);
  void handle(const stop_vote& e, actions& out);
  void handle(const rank_finished& e, actions& out);
  void handle(const rank_failed& e, actions& out);
  void handle(const closed_generation& e, actions& out);
  void handle(const rank_busy& e, actions& out);
  void handle(const torn_down& e, actions& out);
  void handle(const supervision::rank_down& e, actions& out);
  void handle(const supervision::checkpointer_done& e, actions& out);
  void handle(const supervision::observers_done& e, actions& out);
  void handle(const supervision::trouble& e, actions& out);
  void handle(const request_stop& e, actions& out);
  void handle(const request_abort& e, actions& out);
  void handle(const deadline_passed& e, actions& out);

  void know(std::uint32_t rank);
  member* find(incarnation_id incarnation);
  member* of(const fence& at);
  void lose(member& m, failure what, bool reported, actions& out);
  fence fence_for(const member& m) const;
  std::int32_t rank_of(const member& m) const;
  void make_room(actions& out, std::size_t each = 1) const;
  void arm_deadline(std::chrono::nanoseconds delay, actions& out);
  bool still_forming() const;
  void activate(actions& out);
  void ask_soon(actions& out);
  bool ask_again(actions& out);
  void hear(member& m, actions& out);
  void close(member& m);
  void leave(member& m);
  void abandon(member& m);
  void propose(actions& out);
  void name_stop_if_all_voted(actions& out);
  stop_at stop_order(const member& m) const;
  void fail(failure what, actions& out);
  void keep_late(failure what);
  void send_close(actions& out);
  void release_teardown(actions& out);
  void close_if_all_closed(actions& out);
  void start_teardown(actions& out);
  void flush_if_all_gone(actions& out);
  void finish(actions& out);
  failure checkpoints_late() const;
  void mark_unresponsive(member& m, std::string_view during);
  void recovered(member& m);
  void announce(lifecycle_kind event, actions& out, std::int32_t rank = -1,
                std::map<std::string, std::string> details = {});

  job_id job_;
  deadlines limits_;
  supervision::phase phase_ = supervision::phase::idle;
  generation_id generation_;
  std::vector<member> members_;
  // A hash table with open addressing, at most half full: index in members_ + 1, or 0.
  std::vector<std::uint32_t> by_incarnation_;
  // Counts of members, so that a message of one rank does not look at all of them.
  std::size_t behind_ = 0;      // hold no more than the committed step
  std::size_t unprepared_ = 0;  // of those that are to form
  std::size_t unfinished_ = 0;
  std::size_t unclosed_ = 0;
  std::size_t there_ = 0;  // neither gone nor abandoned
  std::int64_t committed_ = 0;
  std::uint64_t deadline_ = 0;
  std::uint32_t waits_ = 0;  ///< times that the wait for ranks to prepare was extended
  bool progressed_ = false;  ///< an unprepared rank has reported progress since then
  std::uint32_t asked_ = 0;  ///< times, since the last new order
  stop_reason stop_ = stop_reason::none;
  bool proposed_ = false;
  std::optional<std::int64_t> named_;  // the step to stop at
  bool close_sent_ = false;
  bool orderly_ = true;
  stop_reason ended_by_ = stop_reason::none;
  loop_state loop_;
  std::optional<failure> first_;
  std::vector<failure> others_;
  std::vector<failure> late_;
  std::vector<std::string> survivors_;  ///< that are not ranks
};

}  // namespace troupe
