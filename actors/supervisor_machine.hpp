// The supervisor's decisions as a pure state machine: events in, actions out
// (supervisor_events.hpp). It knows neither CAF nor clocks nor threads; actors/supervisor.cpp
// executes its actions. docs/architecture.md says what happens in each phase.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "actors/failure_record.hpp"
#include "actors/generation_base.hpp"
#include "actors/membership.hpp"
#include "actors/moves.hpp"
#include "actors/placements.hpp"
#include "actors/restart_budget.hpp"
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
  void at(std::chrono::nanoseconds now) {
    now_ = now;
    placements_.at(now);
  }

  supervision::phase phase() const { return phase_; }
  generation_id generation() const { return members_.generation(); }
  std::int64_t committed() const { return committed_; }
  /// The id that the machine gives to the next failure that comes without one.
  failure_id next_failure() const { return failures_.next_id(); }

  friend bool operator==(const supervisor_machine&, const supervisor_machine&) = default;
  std::uint64_t digest() const;
  friend std::ostream& operator<<(std::ostream& out, const supervisor_machine& machine);

private:
  friend struct supervisor_history;  // of the exhaustive search
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
  void handle(const supervision::durable& e, actions& out);
  void handle(const supervision::trouble& e, actions& out);
  void handle(const process_changed& e, actions& out);
  void handle(const request_stop& e, actions& out);
  void handle(const request_abort& e, actions& out);
  void handle(const request_scale& e, actions& out);
  void handle(const deadline_passed& e, actions& out);

  void make_room(actions& out, std::size_t each = 1) const;
  void arm_deadline(std::chrono::nanoseconds delay, actions& out);
  void announce(lifecycle_kind event, actions& out, std::int32_t rank = -1,
                std::map<std::string, std::string> details = {});
  void announce_failure(lifecycle_kind event, const failure& what, actions& out);
  void start(std::int32_t process, actions& out) const;
  void start(member& m, std::int32_t process, actions& out);
  void form(const std::vector<std::int32_t>& holders, actions& out);
  void activate(actions& out);
  void ask_soon(actions& out);
  bool ask_again(actions& out);
  void hear(member& m, actions& out);
  void commit(std::int64_t steps, actions& out);
  void propose(actions& out);
  stop_at stop_order(const member& m) const;
  void tell_stop(actions& out);

  bool may_change() const;
  membership_change wanted() const;
  void refuse(std::string what, actions& out);
  void leave(std::int32_t process, actions& out);
  void change_if_held(actions& out);
  void report_of_moved_rank(const failure& what, actions& out);

  void fail(failure what, actions& out);
  void begin_closing(actions& out);
  void lose(member& m, failure what, bool reported, actions& out);
  bool comes_too_late(const failure& what) const;
  bool checkpoint_was_replaced(const failure& what) const;
  bool may_restart() const;
  bool is_crash_loop() const;
  void send_close(actions& out);
  void release_teardown(const failure& why, actions& out);
  void close_if_all_closed(actions& out);
  void give_up_unclosed(actions& out);
  void restart(actions& out);
  void move_ranks(actions& out);
  void abandon_process(const member& of, actions& out);
  std::map<std::string, std::string> why_forming() const;
  bool waits_for_processes() const;
  bool is_free() const;
  void count_restart(actions& out);
  supervision::generation_end record() const;

  void start_teardown(actions& out);
  void flush_if_all_gone(actions& out);
  void finish(actions& out);

  deadlines limits_;
  supervision::phase phase_ = supervision::phase::idle;
  supervision::rules rules_;
  restart_budget budget_;
  membership members_;
  placements placements_;
  std::chrono::nanoseconds now_{0};
  generation_state current_;  // of this generation
  std::int64_t durable_ = 0;  // step of the checkpoint reported last
  std::vector<supervision::generation_end> ended_;
  std::int64_t committed_ = 0;
  std::uint64_t deadline_ = 0;
  stop_reason stop_ = stop_reason::none;  // asked for; without one ranks are asked to pause
  bool scales_ = false;                   // the caller asked for it, and it is not done
  bool done_ = false;      // every rank has finished: what fails now takes nothing away
  bool must_end_ = false;  // after a failure that no restart cures
  loop_state loop_;
  failure_record failures_;
  std::vector<std::string> survivors_;  ///< that are not ranks
};

}  // namespace troupe
