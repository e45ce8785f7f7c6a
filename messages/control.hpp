// The messages between supervisor, ranks, checkpointer and observers. Each comment says who sends
// the message to whom, what the receiver may conclude, and what happens when it is late or lost.
//
// Inside a process CAF delivers every message once and in order per sender; a message is lost only
// with its receiver. Between processes the link does the same until it is lost, and then the rank
// is reported as failed (messages/link.hpp). The simulator also loses, delays and repeats them.
//
// A message with a fence that names another job, an older generation or another incarnation is
// dropped by its receiver (messages/fence.hpp).
#pragma once

#include "messages/fence.hpp"
#include "messages/lane.hpp"
#include "troupe/failure.hpp"
#include "troupe/observer.hpp"
#include "troupe/options.hpp"
#include "troupe/outcome.hpp"
#include "troupe/value.hpp"

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

/// What the storage port answered; defined with the port (troupe/checkpoint.hpp).
struct storage_result;
using storage_answer = storage_result;

// --- supervisor to rank --------------------------------------------------------------------------

/// Supervisor to each rank: generation `at.generation` of `world` ranks is forming. The rank opens
/// its communicator, brings its state to `base`, and answers `prepared`. Late or lost: the rank
/// does not answer, and the forming deadline closes the generation with that rank named.
struct form_generation {
  fence at;
  std::int32_t world = 1;
  /// Where all ranks go on. Number 0: at the beginning, or at the checkpoint `resume`.
  resume_point base;
  /// The ranks that hold the state of `base`, ascending. Every other rank receives it from them.
  std::vector<std::int32_t> holders;
  /// The checkpoint to begin with in place of the job's own, when no rank holds any state.
  std::string resume;
};
/// Supervisor to each rank: every member is prepared, so training may begin. Late: harmless, the
/// other ranks wait in their first collective. Lost: the supervisor sends it again to ranks that
/// are silent. A rank that already trains ignores the repetition; one that has finished or failed
/// repeats its report.
struct activate_generation {
  fence at;
};
/// Supervisor to each rank: a stop is wanted. The rank answers `stop_vote` and begins no step after
/// the one that it votes for until `stop_at` arrives. Late: the rank votes for a later step. The
/// message or the vote lost: the supervisor sends it again to ranks that have not voted.
struct propose_stop {
  fence at;
  stop_reason why = stop_reason::caller;
};
/// Supervisor to each rank: all ranks have voted; end after `at.step` finished optimizer steps. No
/// rank has passed that step. With `pause` the rank does not end: it waits after that step for
/// close_generation, because the membership changes. Late: the rank waits at the step that it voted
/// for. Lost: the supervisor sends it again to ranks that have not finished.
struct stop_at {
  fence at;
  stop_reason why = stop_reason::caller;
  bool pause = false;
};
/// Supervisor to each rank: the generation is over. The rank aborts its communicator, so that every
/// wait in its lane throws, and answers `closed_generation` once its lane is idle. Before that it
/// runs on_exception with the first cause `first` if the job is over, and else it returns to its
/// last point. `at.step` is the committed step. Late or lost: the closing deadline passes, and the
/// supervisor goes on without the rank.
struct close_generation {
  fence at;
  failure first;
  bool last = true;  ///< the job ends with this generation
};
/// Supervisor to each rank: run the teardown hooks and end. `orderly`: the run ended well, so all
/// ranks meet at the barrier "teardown"; after a failure there is no barrier. Answered by
/// `torn_down`. Late or lost: the teardown deadline passes, and the outcome names the rank as a
/// survivor.
struct tear_down {
  fence at;
  bool orderly = true;
};

// --- rank to supervisor --------------------------------------------------------------------------

/// Rank to supervisor, the answer to form_generation: the rank holds its communicator, its lane is
/// open, and its state is that of the base. Late or lost: the forming deadline closes the
/// generation with that rank named.
struct prepared {
  fence at;
  std::string digest;          ///< of that state; empty at the beginning
  double healing_seconds = 0;  ///< how long the transfer of the state took
};
/// Rank to supervisor, after each finished optimizer step: this rank holds step `at.step`. A step
/// that all ranks hold is committed. Late: the step is committed later, and checkpoints of it
/// become durable later. Lost: the next step_done includes this one.
struct step_done {
  fence at;
  std::int64_t epoch = 0;    ///< finished ones
  std::int64_t samples = 0;  ///< consumed in these steps, all ranks
};
/// Rank to supervisor, the answer to propose_stop: this rank does not pass `at.step` finished steps
/// before stop_at. Late: the other ranks wait at the steps that they voted for. Lost: the
/// supervisor sends propose_stop again, and the rank repeats its vote.
struct stop_vote {
  fence at;
};
/// Rank to supervisor: the rank's fit machine has ended orderly. Rank 0 brings its last snapshot.
/// Once all ranks have finished, the supervisor takes them down. Lost: the supervisor sends
/// activate_generation or stop_at again, and the rank repeats this report.
struct rank_finished {
  fence at;
  loop_state loop;
  stop_reason why = stop_reason::none;  ///< none: ran to its limits
  snapshot_ptr state;
  run_figures figures;
};
/// Rank to supervisor: its lane or its actor threw, or a hook ran past the limit. Proxy of a rank
/// to supervisor: the rank could not be started (`kind` start_failed), or its process has ended.
/// The supervisor closes the generation; the earliest failure is the first cause. `local` is never
/// null; it holds the record and, in the process where it was thrown, the exception; the record's
/// id names both. Lost: as rank_finished.
struct rank_failed {
  fence at;
  std::shared_ptr<const caught> local;
  bool gone = false;  ///< the rank's process has ended too: the rank answers nothing any more
};
/// Rank 0 to supervisor: the values that one run of hooks has queued for the caller (add_to_queue).
/// They are in job_outcome::queue, in the order sent. When a later generation begins before the
/// step of `at`, its hooks queue them again, and the supervisor drops these. Late: values that
/// arrive before the rank's torn_down count. Lost: only with the rank. Its failure is the outcome;
/// or, where other ranks hold the step, the values are missing there.
struct queue_value {
  fence at;
  std::vector<value> what;
};
/// Rank to supervisor, the answer to close_generation: the lane is idle, so the rank can be taken
/// down, or take part in the next generation. Late or lost: the closing deadline passes.
struct closed_generation {
  fence at;
  resume_point held;   ///< the point whose state the rank holds; number 0: none
  std::string digest;  ///< of that state; empty once the job is over
  /// Reduced values of the committed step and of later ones, up to that point. The rank that was to
  /// show them may be lost, and some of them with it.
  std::vector<seen::metrics> rows{};
  /// The job is over, and rank 0 saves that point (checkpoint_policy::on_exception): its step is
  /// committed.
  bool saves = false;
  /// That of the order. The supervisor may have sent a last one since; this answers an earlier one.
  bool last = false;
};
/// Rank to supervisor, once a tick while the supervisor waits for the rank and its lane is still in
/// user code: what the lane does. While a generation forms, the wait goes on as long as every
/// missing rank sends this, and while it closes, where work would be lost without the rank; in both
/// cases until its hook is `overdue`: it has run longer than a hook may. While ranks close or end,
/// the newest text stands in the list of survivors. The proxy of a rank in another process sends
/// this for it, too: while the process starts, and while a snapshot is `arriving` from there, which
/// the rank's answer has to follow. Then the wait goes on also while ranks end, and while they
/// close in a job that goes on. Late or lost: the deadline passes, or an older text stands there.
struct rank_busy {
  fence at;
  std::string what;
  bool overdue = false;
  bool arriving = false;
};
/// Rank to supervisor, the answer to tear_down and the rank's last message: the lane has ended and
/// everything of the rank is released. `result` is rank 0's. `late` holds failures of the teardown
/// itself, `last` the last reduced metrics that the rank knew. Late or lost: the rank is listed as
/// a survivor.
struct torn_down {
  fence at;
  value result;
  std::vector<failure> late;
  metrics last;
};

// --- checkpoints and observers -------------------------------------------------------------------

/// Rank 0 to the checkpointer: write this snapshot once its step is committed. While one is
/// written, these wait: the newest one, those that `keep_best` would keep, and the newest one with
/// `must` (the last of a run). A newer snapshot replaces all others. With ranks as processes the
/// same rule holds before the link to the supervisor's process. Lost: only with rank 0, and then
/// the newest durable checkpoint is an older one.
struct write_checkpoint {
  fence at;
  snapshot_ptr what;
  bool must = false;
  std::int64_t skipped = 0;  ///< snapshots before this one that were replaced before the link
};
/// Supervisor to checkpointer: every member of the generation holds `at.step`, or rank 0 saves it
/// at the end (closed_generation::saves). So snapshots of it and of earlier steps may be written.
/// Late: they are written later. It is always sent before `flush`; a snapshot whose step is not
/// committed by then is dropped.
struct step_committed {
  fence at;
};
/// Checkpointer to supervisor: how one write ended. Either `path` is durable, or `why` holds the
/// failure and earlier checkpoints are untouched. `best` is the path of the best checkpoint so far.
/// Late: still in time, because `flushed` is sent after it. Lost: only with the checkpointer, whose
/// end is then a late failure of the job.
struct checkpoint_report {
  std::int64_t step = undefined;
  std::string path;
  std::string best;
  std::shared_ptr<const caught> why;  ///< null: written
  std::int64_t behind = 0;            ///< committed steps after `step` when the write ended
  std::int64_t skipped = 0;           ///< snapshots since the last report that newer ones replaced
  bool fatal = false;  ///< no checkpoint can be written at all: the supervisor ends the job
  loop_state loop;     ///< of the one that was written
};
/// Supervisor to checkpointer and observers: finish what is pending and end. The checkpointer
/// answers `flushed` before; of an observer the supervisor sees only the end. Late or lost: the
/// supervisor's deadline passes, and the outcome names the actor.
struct flush {};
/// Two messages. From the checkpointer to the supervisor, its last one: nothing is pending now.
/// `lost`: the last checkpoint of the run was not written, for the reason in the newest
/// checkpoint_report, and the job fails with it. Late or lost: as flush.
/// From an observer to the supervisor, at any time, also long before a flush: it has thrown for the
/// reason in `late`, and gets no more observations. Its actor lives on until the flush. Late or
/// lost: the outcome does not have the reason.
struct flushed {
  std::string who;            ///< `checkpointer` or `observer`
  std::vector<failure> late;  ///< of an observer
  bool lost = false;          ///< of the checkpointer
};
// --- from ports, and to the actor itself ---------------------------------------------------------
// These stay inside a process and are lost only with their receiver.

/// Lane to its rank actor: the answer to one run. The answer to an older run is dropped.
struct lane_answered {
  ran what;
};
/// Lane to its rank actor, its last message: the lane has ended. `last` is a failure of the
/// learner's destruction, if any.
struct lane_closed {
  value result;
  caught last;
};
/// Rank actor to itself, once per `detect`: check the lane. Late: an overdue hook is found later.
/// The proxy of a rank in another process numbers its own, and heeds the newest.
struct tick {
  std::uint64_t number = 0;
};
/// Session to supervisor, its first message: start the job.
struct begin_job {};
/// Launcher to the proxy of a rank in another process, last: the process has ended and is reaped.
/// `what` says how; `clean`: it ended in order. The proxy reports a failure unless the rank had
/// ended.
struct process_gone {
  failure what;
  bool clean = false;
};
/// Launcher to supervisor: a process of the job can run ranks from now on, wants to leave, has
/// ended and is reaped (`what` says how, `clean` whether in order), or is a spare that has loaded
/// what ranks need (`warm`). The proxies of the ranks in it report its end too. Late or lost: the
/// ranks in it do not prepare in time.
struct process_changed {
  enum class change : std::uint8_t { ready, leaves, gone, warm };
  job_id job;
  std::int32_t number = 0;
  change how = change::ready;
  failure what;
  bool clean = false;
};
/// Link to the proxy of a rank in another process: the rank's actor has ended there, and all its
/// reports have arrived. The proxy then lets the process end.
struct far_ended {
  std::string why;
};
/// Supervisor to itself: the deadline with number `id` has passed, or is to be looked at. The
/// deadline of an earlier phase is ignored. Late: the supervisor waits longer.
struct deadline_passed {
  std::uint64_t id = 0;
};
/// Storage port to checkpointer: the result of operation `id`. Late: the checkpointer waits. It
/// starts an operation only after the one before has ended.
struct storage_answered {
  std::uint64_t id = 0;
  std::shared_ptr<const storage_answer> what;
};

// --- the caller ----------------------------------------------------------------------------------

/// Caller to supervisor: end at a step boundary, with a checkpoint. Sending it again changes
/// nothing. Late: the job trains longer, or has ended already and ignores it.
struct request_stop {
  stop_reason why = stop_reason::caller;
};
/// Caller to supervisor: end at once; steps since the last checkpoint are lost. `kind` is the kind
/// of the failure that the job ends with: aborted, or session_closed when the session is destroyed.
/// Late: the job may have ended already and ignores it.
struct request_abort {
  std::string why;
  failure_kind kind = failure_kind::aborted;
};
/// Caller to supervisor: the job's shards go on in so many processes from the next agreed step on.
/// Late: the job may have ended already and ignores it.
struct request_scale {
  std::int32_t ranks = 1;
};
/// One of these.
struct caller_request {
  std::variant<request_stop, request_abort, request_scale> what;
};

// --- what may cross a process border -------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, activate_generation& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, propose_stop& x) {
  return f(x.at, x.why);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stop_at& x) {
  return f(x.at, x.why, x.pause);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, tear_down& x) {
  return f(x.at, x.orderly);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_done& x) {
  return f(x.at, x.epoch, x.samples);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stop_vote& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_busy& x) {
  return f(x.at, x.what, x.overdue, x.arriving);
}

}  // namespace troupe
