// The supervisor's decisions, and nothing else: events in, actions out. A regular value without
// CAF, clocks or threads; actors/supervisor.cpp executes what it says.
//
// One generation: forming (ranks start and prepare) -> prepared -> active -> closing (after a
// failure: all are told, on_exception runs) -> closed; then the ranks are taken down, the
// checkpointer and the observers finish, and the job is complete. While it forms, a rank that is
// not prepared may report progress of its start (rank_busy): a deadline that passes after such a
// report is prolonged, until the whole wait has reached the limit of a hook. Every wait has a
// deadline: its passing turns what is missing into a failure (forming) or a survivor (closing,
// taking down), and the machine goes on. While a generation is active, every `close`, whoever was
// silent since the last time, has not voted on a stop or has not finished behind one is told again,
// at most `asks_max` times before something is heard: a lost message costs time, not the job. A
// link that loses more is dead, and its rank is reported as down by whoever watches it. Source of
// the phases: elastic and fault tolerant training, section 4 of the design's reference.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

#include "actors/time_knob.hpp"
#include "messages/control.hpp"

namespace troupe {

namespace supervision {

// --- events --------------------------------------------------------------------------------------

/// The session wants the job to run. One incarnation per rank, distinct, from the entropy port.
struct begin {
  std::vector<incarnation_id> incarnations;
};
/// The rank's actor is gone, whatever the reason; `what` when it is known how its process died.
struct rank_down {
  std::int32_t rank = 0;
  std::string why;
  std::optional<failure> what = {};
};
/// A message of a rank, without what only the caller needs (values, exceptions, snapshots).
struct finished {
  fence at;
  loop_state loop;
  stop_reason why = stop_reason::none;
};
struct failed {
  fence at;
  failure what;
};
struct torn {
  fence at;
  std::vector<failure> late;
};
/// The checkpointer, or the last observer, has finished (or is gone).
struct checkpointer_done {
  std::vector<failure> late;
};
struct observers_done {
  std::vector<failure> late;
};
/// Something failed beside the ranks: a checkpoint could not be written, an observer threw. It ends
/// the job as failed when `ends_job`: no checkpoint can be written, or the last one was not.
struct trouble {
  failure what;
  bool ends_job = false;
};

using event = std::variant<begin, start_failed, prepared, step_done, stop_vote, finished, failed,
                           closed_generation, rank_busy, torn, rank_down, checkpointer_done,
                           observers_done, trouble, request_stop, request_abort, deadline_passed>;

// --- actions -------------------------------------------------------------------------------------

/// Bring this rank to life.
struct start_rank {
  std::int32_t rank = 0;
  incarnation_id incarnation;
  friend bool operator==(const start_rank&, const start_rank&) = default;
};
using order = std::variant<form_generation, activate_generation, propose_stop, stop_at,
                           close_generation, tear_down>;
/// Tell this rank.
struct tell {
  std::int32_t rank = 0;
  order what;
};
/// Give up on this rank: end its actor, leave its lane to itself.
struct abandon {
  std::int32_t rank = 0;
};
/// Wake the machine with deadline_passed{id} after `delay`. Older ids are void.
struct arm {
  std::uint64_t id = 0;
  std::chrono::nanoseconds delay{0};
};
struct flush_checkpointer {};
struct flush_observers {};
/// Tell the observers.
struct announce {
  seen::lifecycle what;
};
/// Step `step` is held by every member of the generation.
struct commit {
  std::int64_t steps = 0;
};
/// The job is over: all the machine knows about its end. The last action.
struct complete {
  job_outcome::ending status = job_outcome::ending::failed;
  stop_reason why = stop_reason::none;
  loop_state loop;
  generation_id generation;
  std::optional<failure> first;  ///< with `others`
  std::vector<std::string> survivors;
  std::vector<failure> late;
};

using action = std::variant<start_rank, tell, abandon, arm, flush_checkpointer, flush_observers,
                            announce, commit, complete>;

enum class phase : std::uint8_t {
  idle,
  forming,
  active,
  closing,
  tearing,
  flushing_checkpointer,
  flushing_observers,
  done
};
std::string_view to_string(phase p);

}  // namespace supervision

/// See the top of the file. Regular; every event in every phase is defined: what comes too late,
/// from another incarnation or from a closed generation changes nothing.
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
  // What each message looks at comes first.
  struct member {
    incarnation_id incarnation;
    std::int64_t held = 0;  ///< finished steps
    bool prepared = false;
    bool heard = false;  ///< since it was asked last
    bool finished = false;
    bool closed = false;
    bool torn = false;
    bool gone = false;
    bool abandoned = false;
    std::optional<std::int64_t> vote;
    std::string busy;
    std::string survives;  ///< what it was doing when it was waited for in vain; empty: it was not
    friend bool operator==(const member&, const member&) = default;
  };
  using actions = std::vector<supervision::action>;

  void handle(const supervision::begin& e, actions& out);
  void handle(const start_failed& e, actions& out);
  void handle(const prepared& e, actions& out);
  void handle(const step_done& e, actions& out);
  void handle(const stop_vote& e, actions& out);
  void handle(const supervision::finished& e, actions& out);
  void handle(const supervision::failed& e, actions& out);
  void handle(const closed_generation& e, actions& out);
  void handle(const rank_busy& e, actions& out);
  void handle(const supervision::torn& e, actions& out);
  void handle(const supervision::rank_down& e, actions& out);
  void handle(const supervision::checkpointer_done& e, actions& out);
  void handle(const supervision::observers_done& e, actions& out);
  void handle(const supervision::trouble& e, actions& out);
  void handle(const request_stop& e, actions& out);
  void handle(const request_abort& e, actions& out);
  void handle(const deadline_passed& e, actions& out);

  void know(std::uint32_t rank);
  member* of(const fence& at);
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
  void give_up(member& m);
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
  void survive(member& m, std::string_view during);
  void came_out(member& m);
  void announce(lifecycle_kind event, actions& out, std::int32_t rank = -1,
                std::map<std::string, std::string> details = {});

  job_id job_;
  deadlines limits_;
  supervision::phase phase_ = supervision::phase::idle;
  generation_id generation_;
  std::vector<member> members_;
  // A table with open addresses, at most half full: place in members_ + 1, or 0. Each message asks.
  std::vector<std::uint32_t> by_incarnation_;
  // Counts of members, so that no message of one rank looks at all of them.
  std::size_t behind_ = 0;      // hold no more than is committed
  std::size_t unprepared_ = 0;  // of those that are to form
  std::size_t unfinished_ = 0;
  std::size_t unclosed_ = 0;
  std::size_t there_ = 0;  // neither gone nor abandoned
  std::int64_t committed_ = 0;
  std::uint64_t deadline_ = 0;
  std::uint32_t waits_ = 0;  ///< times that the wait for ranks to prepare was prolonged
  bool progressed_ = false;  ///< an unprepared rank has, since then
  std::uint32_t asked_ = 0;  ///< times, since there was something new to answer
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
  std::vector<std::string> survivors_;  ///< that are no ranks
};

}  // namespace troupe
