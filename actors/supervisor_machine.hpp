// The supervisor's decisions as a pure state machine: supervisor_events.hpp has its table. It knows
// neither CAF nor clocks nor threads; actors/supervisor.cpp executes its actions.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "actors/failure_record.hpp"
#include "actors/generation_base.hpp"
#include "actors/membership.hpp"
#include "actors/outgoing_actions.hpp"
#include "actors/placements.hpp"
#include "actors/recovery.hpp"
#include "actors/supervisor_events.hpp"
#include "actors/time_knob.hpp"

namespace troupe {

/// A regular value. Every event is defined in every phase. An event that is late, from another
/// incarnation or from a closed generation changes nothing.
class supervisor_machine {
public:
  static constexpr std::uint32_t asks_max = 8;

  supervisor_machine(job_id job, std::int32_t world, deadlines limits,
                     supervision::rules rules = {});

  std::vector<supervision::action> on(const supervision::event& what);
  /// The time of the next events, by a monotonic clock.
  void at(std::chrono::nanoseconds now);

  supervision::phase phase() const { return phase_; }
  generation_id generation() const { return members_.generation(); }
  std::int64_t committed() const { return committed_.steps; }
  /// The id that the machine gives to the next failure that comes without one.
  failure_id next_failure() const { return failures_.next_id(); }

  friend bool operator==(const supervisor_machine&, const supervisor_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const supervisor_machine& machine);

private:
  friend struct supervisor_history;  // of the exhaustive search
  using actions = outgoing_actions;

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
  void handle(const supervision::durable& e, actions& out);
  void handle(const supervision::trouble& e, actions& out);
  void handle(const process_changed& e, actions& out);
  void handle(const request_stop& e, actions& out);
  void handle(const request_abort& e, actions& out);
  void handle(const request_scale& e, actions& out);
  void handle(const deadline_passed& e, actions& out);

  // forming
  void form(const std::vector<std::int32_t>& holders, actions& out);
  void activate(actions& out);
  // active
  void ask_soon(actions& out);
  bool ask_again(actions& out);
  void take_answer(member& m, actions& out);
  void commit(const progress& now, actions& out);
  void propose(actions& out);
  void send_stop(actions& out);
  // changing the membership
  bool may_change() const;
  membership_change wanted() const;
  void leave(std::int32_t process, actions& out);
  void change_if_held(actions& out);
  void report_of_moved_rank(const failure& what, actions& out);
  // closing, and the next generation
  void fail(failure what, actions& out);
  void lose(member& m, failure what, bool reported, actions& out);
  bool comes_too_late(const failure& what) const;
  void begin_closing(actions& out);
  void send_close(actions& out);
  void close_if_all_closed(actions& out);
  void give_up_unclosed(actions& out);
  recovery::situation situation() const;
  supervision::generation_end record() const;
  void restart(actions& out);
  void move_ranks(actions& out);
  // tearing
  void start_teardown(actions& out);
  void release_teardown(const failure& why, actions& out);
  void flush_if_all_gone(actions& out);
  void finish(actions& out);

  deadlines limits_;
  supervision::rules rules_;
  supervision::phase phase_ = supervision::phase::idle;
  membership members_;        // the ranks
  placements placements_;     // the processes
  generation_state current_;  // of this generation
  recovery recovery_;         // the generations before, and whether another may follow
  failure_record failures_;
  progress committed_;
  loop_state loop_;                       // of the first rank that finished, or of rank 0
  std::uint64_t deadline_ = 0;            // the newest one
  stop_reason stop_ = stop_reason::none;  // asked for; without one ranks are asked to pause
  bool scales_ = false;                   // the caller asked for it, and it is not done
  bool done_ = false;  // every rank has finished: what fails now takes nothing away
  std::vector<std::string> survivors_;  // that are not ranks
};

}  // namespace troupe
