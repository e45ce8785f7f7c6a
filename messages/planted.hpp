// Planted bugs: what proves that the simulated world finds bugs. Each is one line in product code
// that asks `planted`, which is false at compile time everywhere but in the objects that
// tests/simulated/CMakeLists.txt compiles once more with TROUPE_PLANT_BUGS. Each bug and what finds
// it: tests/mutants.sh.
#pragma once

#include <cstdint>
#include <string_view>

namespace troupe {

// clang-format off
/// bug(name, what it does wrong)
#define TROUPE_PLANTED_BUGS(bug) \
  bug(commit_by_one, "a step is committed when one rank holds it") \
  bug(last_cause_wins, "a later failure takes the place of the first") \
  bug(follower_as_cause, "a failure that follows from another can be the first cause") \
  bug(close_skips_a_rank, "the last rank is not told that the generation closes") \
  bug(teardown_skips_a_rank, "the last rank is not told to take down") \
  bug(stop_at_least_vote, "a stop is agreed at the least vote, which others have passed") \
  bug(stop_by_first_vote, "a stop is agreed when the first rank has voted") \
  bug(stop_told_once, "a stop that was agreed is not told again to who has not heard it") \
  bug(survivor_for_good, "a rank that comes out late stays in the list of survivors") \
  bug(vanished_rank_ignored, "a rank that vanished is nobody's failure") \
  bug(stale_deadline, "the deadline of an earlier phase is taken for this one's") \
  bug(first_finisher_ends, "the run is taken down when the first rank has finished") \
  bug(checkpointer_not_flushed, "the run ends without waiting for the checkpointer") \
  bug(result_of_any_rank, "whoever finishes last brings the weights") \
  bug(first_snapshot_kept, "rank 0 brings its first snapshot instead of its last") \
  bug(orphan_lives, "a rank does not mind that its supervisor is gone") \
  bug(teardown_forgotten, "an order to take down is forgotten while the lane is busy") \
  bug(waiting_is_stuck, "a rank that waits for its peers is taken for stuck") \
  bug(closing_keeps_waiting, "the communicator is not aborted when the generation closes") \
  bug(late_failure_forgotten, "what fails by itself while the generation closes is forgotten") \
  bug(resume_at_epoch_start, "a resumed run begins its epoch again") \
  bug(resume_in_first_epoch, "a resumed run forgets which epoch it was in") \
  bug(hold_ignored, "a rank that has voted for a boundary trains beyond it") \
  bug(tail_window_dropped, "an epoch's last, short accumulation window is left out") \
  bug(zero_grad_each_batch, "accumulated gradients are zeroed with each micro-batch") \
  bug(checkpoint_step_late, "a checkpoint says that it is of the step before") \
  bug(last_not_saved, "nothing is saved when the run ends") \
  bug(newer_snapshot_dropped, "while a snapshot waits for the disk, newer ones are dropped") \
  bug(best_snapshot_replaced, "a newer snapshot replaces the best one that waits") \
  bug(uncommitted_is_written, "a snapshot is written before its step is committed") \
  bug(old_generation_written, "what an older generation took is written when a newer one commits") \
  bug(undone_before_sync, "a replaced checkpoint is removed before what replaced it is durable") \
  bug(swept_before_sync, "what a crash left is removed before its renaming is durable") \
  bug(rename_before_sync, "a checkpoint is renamed before its folder is durable") \
  bug(parent_not_synced, "the folder of checkpoints is not made durable") \
  bug(latest_not_synced, "which checkpoint is the latest is not made durable") \
  bug(failed_write_is_written, "a checkpoint whose write failed is reported as written") \
  bug(newest_removed_first, "retiring checkpoints keeps the oldest") \
  bug(loss_not_counted, "what does not fit an observer's queue is not counted") \
  bug(life_is_dropped, "a full queue drops whatever is oldest") \
  bug(checkpointer_never_quits, "the checkpointer says that it is done, and stays") \
  bug(supervisor_never_quits, "the supervisor says how the job ended, and stays") \
  bug(observers_not_flushed, "the run ends without waiting for its observers") \
  bug(thrower_hears_on, "an observer that has thrown goes on to hear") \
  bug(gap_skipped, "a link goes on behind a message that was lost") \
  bug(never_sent_again, "a link does not send again what was lost") \
  bug(rank_fence_ignored, "a rank hears what was said to another life of it") \
  bug(supervisor_fence_ignored, "the supervisor takes a word of another run for one of this") \
  bug(silence_endures, "a link never takes silence for the end")
/// In the learner and the exchange of gradients: only real tensors meet them.
#define TROUPE_PLANTED_IN_TENSORS(bug) \
  bug(sum_by_arrival, "ranks are summed up in the order in which they arrive") \
  bug(sum_in_a_row, "ranks are summed up from left to right, not along the canonical tree") \
  bug(mean_of_means, "a window of batches counts each batch alike, however short") \
  bug(draws_by_run, "a resumed run draws other numbers than one that was not interrupted") \
  bug(draws_go_on, "a step draws from where the one before has left the generator") \
  bug(augmented_by_rank, "what a sample is augmented with depends on the rank it lands in") \
  bug(augmentation_goes_on, "augmentation draws from where the batch before has left it") \
  bug(order_starts_again, "a resumed run walks its epoch in the order of the first one") \
  bug(optimizer_not_restored, "a resumed run begins with a fresh optimizer") \
  bug(adam_starts_again, "a resumed Adam counts its steps from 0") \
  bug(buffers_not_restored, "a resumed run begins with fresh buffers") \
  bug(buffers_not_shared, "each rank keeps the buffers that its own samples made") \
  bug(gradients_kept, "a window begins with the gradients of the one before") \
  bug(unused_keeps_gradient, "who has no gradient sends what lay in its place") \
  bug(unused_is_stepped, "a parameter that no rank has used is stepped all the same") \
  bug(bucket_left_out, "a rank leaves out a bucket in which it has no gradient")
// clang-format on

enum class bug : std::uint8_t {
  none,
#define TROUPE_BUG(name, text) name,
  TROUPE_PLANTED_BUGS(TROUPE_BUG) TROUPE_PLANTED_IN_TENSORS(TROUPE_BUG)
#undef TROUPE_BUG
};

struct planted_bug {
  bug which;
  std::string_view name;
  std::string_view text;
};
inline constexpr planted_bug planted_bugs[] = {
#define TROUPE_BUG(name, text) {bug::name, #name, text},
    TROUPE_PLANTED_BUGS(TROUPE_BUG)};
inline constexpr planted_bug planted_in_tensors[] = {TROUPE_PLANTED_IN_TENSORS(TROUPE_BUG)
#undef TROUPE_BUG
};

#ifdef TROUPE_PLANT_BUGS
/// At most one at a time, for the whole process.
inline bug planted_now = bug::none;
inline bool planted(bug which) { return planted_now == which; }
#else
constexpr bool planted(bug) { return false; }
#endif

}  // namespace troupe
