// What supervisor, ranks, checkpointer and observers say to each other. Each message says who sends
// it to whom, what the receiver may conclude, and what happens if it is late or lost.
#pragma once

#include "messages/fence.hpp"
#include "messages/lane.hpp"
#include "troupe/failure.hpp"
#include "troupe/observation.hpp"
#include "troupe/options.hpp"
#include "troupe/outcome.hpp"
#include "troupe/snapshot.hpp"
#include "troupe/value.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// What the storage port answered; defined with the port (troupe/storage.hpp).
struct storage_result;
using storage_answer = storage_result;

// --- supervisor to rank --------------------------------------------------------------------------

/// Supervisor to each rank: generation `at.generation` is forming, `world` ranks. The rank opens
/// its communicator and answers `prepared`. Late or lost: the supervisor's forming deadline names
/// the rank.
struct form_generation {
  fence at;
  std::int32_t world = 1;
};
/// Supervisor to each rank: every member is prepared; train. Late: harmless, peers wait in their
/// first collective. Lost: told again to ranks that are silent; a rank that trains ignores that,
/// one that has finished or failed repeats its report.
struct activate_generation {
  fence at;
};
/// Supervisor to each rank: do not begin a step beyond the next one until `stop_at`; answer
/// `stop_vote`. It, or the answer, lost: told again to who has not voted.
struct propose_stop {
  fence at;
  stop_reason why = stop_reason::caller;
};
/// Supervisor to each rank: all voted; end behind `at.step` finished optimizer steps, which no rank
/// has passed. Lost: told again to who has not finished.
struct stop_at {
  fence at;
  stop_reason why = stop_reason::caller;
};
/// Supervisor to each rank: the generation is over. The communicator is aborted, the lane looks up,
/// whatever waits there throws. `first` is the first cause, for on_exception. Answered by
/// `closed_generation` when the lane is idle.
struct close_generation {
  fence at;
  failure first;
};
/// Supervisor to each rank: take down. `orderly`: the run ended well, meet at the barrier
/// "teardown"; else there is none. Answered by `torn_down`. The teardown deadline names who did not
/// answer.
struct tear_down {
  fence at;
  bool orderly = true;
};

// --- rank to supervisor --------------------------------------------------------------------------

/// The rank holds its communicator and its lane is open.
struct prepared {
  fence at;
};
/// Sent after each finished optimizer step: this rank holds step `at.step`. When all do, it is
/// committed.
struct step_done {
  fence at;
};
/// Answer to propose_stop: this rank will not pass `at.step` finished steps without a further word.
struct stop_vote {
  fence at;
};
/// The rank's fit machine has ended orderly. Rank 0 brings its last snapshot.
struct rank_finished {
  fence at;
  loop_state loop;
  stop_reason why = stop_reason::none;  ///< none: ran to its limits
  snapshot_ptr state;
  run_figures figures;
};
/// The rank's lane threw, or its actor did, or its hook ran past the limit. Recorded where it
/// happened. `local` holds the exception itself; the id of its record names both.
struct rank_failed {
  fence at;
  std::shared_ptr<const caught> local;
  bool gone = false;  ///< the rank died of it: nothing of it is left to answer
};
/// Rank 0: one more value for the caller (add_to_queue).
struct queue_value {
  fence at;
  value what;
};
/// Answer to close_generation: on_exception has run, the lane is idle.
struct closed_generation {
  fence at;
};
/// While the supervisor waits for this rank to close or to end and its lane is still in user code:
/// what it is doing, once a tick. Ends in the list of survivors.
struct rank_busy {
  fence at;
  std::string what;
};
/// Answer to tear_down: the lane has ended, nothing of the rank is left. `late` holds what failed
/// on the way. `last` holds the last reduced metrics that this rank knew.
struct torn_down {
  fence at;
  value result;
  std::vector<failure> late;
  metrics last;
};

// --- checkpoints and observers -------------------------------------------------------------------

/// Rank 0 to the checkpointer: write this, once its step is committed. While one is written, few
/// wait: the newest, those that `keep_best` would keep, and those that are `must` (the last of a
/// run, or one a user asked for). A newer snapshot replaces the others. With ranks as processes the
/// same holds in front of the link to the supervisor's process.
struct write_checkpoint {
  fence at;
  snapshot_ptr what;
  bool must = false;
  std::int64_t skipped = 0;  ///< snapshots before this one that were replaced in front of the link
};
/// Supervisor to checkpointer: every member of the generation holds `at.step`; snapshots of it and
/// of earlier steps may become durable. Never late: it is sent before `flush`, and what is not
/// committed then never happened.
struct step_committed {
  fence at;
};
/// Checkpointer to supervisor: how one write ended. `path` is durable, or `why` says what went
/// wrong and earlier checkpoints are untouched. `best` is the best one's path so far.
struct checkpoint_report {
  std::int64_t step = undefined;
  std::string path;
  std::string best;
  std::shared_ptr<const caught> why;  ///< null: written
  std::int64_t behind = 0;            ///< committed steps after `step` when the write ended
  std::int64_t skipped = 0;           ///< snapshots since the last report that newer ones replaced
  bool fatal = false;  ///< no checkpoint can be written at all: the supervisor ends the job
};
/// Supervisor to checkpointer and observers: finish what is there, answer `flushed`, end.
struct flush {
  bool unused = false;
};
/// Checkpointer or observer to supervisor: nothing is pending any more. `late` holds what failed on
/// the way. `lost` is the checkpointer's: the last checkpoint of the run was not written. The
/// newest `checkpoint_report` with a failure said why; now this failure ends the job.
struct flushed {
  std::string who;
  std::vector<failure> late;
  bool lost = false;
};
// --- from ports, and to oneself ------------------------------------------------------------------

/// Lane to its rank actor: one run is answered.
struct lane_answered {
  ran what;
};
/// Lane to its rank actor: the lane has ended; `last` is what its learner left behind.
struct lane_closed {
  value result;
  caught last;
};
/// Rank actor to itself, every `detect`: look at the lane.
struct tick {
  std::uint64_t round = 0;
};
/// Session to supervisor: start.
struct begin_job {
  bool unused = false;
};
/// Process control to supervisor: the rank could not be started.
struct start_failed {
  std::int32_t rank = 0;
  incarnation_id incarnation;
  std::string why;
};
/// Port to what stands for a rank in another process: the process has ended and is reaped. `what`
/// says how, `clean` that it was in order.
struct process_gone {
  failure what;
  bool clean = false;
};
/// Port to what stands for a rank in another process: the rank's actor has ended in there.
struct far_ended {
  std::string why;
};
/// Supervisor to itself: the deadline number `id` has passed. Of an older phase: ignored.
struct deadline_passed {
  std::uint64_t id = 0;
};
/// Storage port to checkpointer.
struct storage_answered {
  std::uint64_t id = 0;
  std::shared_ptr<const storage_answer> what;
};

// --- the caller ----------------------------------------------------------------------------------

/// Caller to supervisor: end at a step boundary, with a checkpoint. Repeating it changes nothing.
struct request_stop {
  stop_reason why = stop_reason::caller;
};
/// Caller to supervisor: end now; what is not saved is lost. `kind` is the kind of the failure that
/// the job ends with: aborted, or session_closed when the session is destroyed.
struct request_abort {
  std::string why;
  failure_kind kind = failure_kind::aborted;
};

// --- what may cross a process border -------------------------------------------------------------

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, form_generation& x) {
  return f(x.at, x.world);
}
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
  return f(x.at, x.why);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, close_generation& x) {
  return f(x.at, x.first);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, tear_down& x) {
  return f(x.at, x.orderly);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, prepared& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, step_done& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stop_vote& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, closed_generation& x) {
  return f(x.at);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rank_busy& x) {
  return f(x.at, x.what);
}

}  // namespace troupe
