"""Goal: a fit that is stopped or killed in mid-epoch, or whose checkpoint is damaged, resumes to the same bytes."""

import os
import shutil
import signal

from troupe_program import (Traced, check, check_code, check_equal, check_in, check_same_metrics, checkpoints_of, fit,
                            main, metrics_of, result_of, troupe)

# Momentum, dropout, accumulation over three batches: all state that a checkpoint must hold.
RICH = ["--set", "model.dropout=0.3", "--accumulate-grad-batches", 3, "--log-every-n-steps", 1]


FOUND = {}  # results and metrics of fits without an interruption, which stories share


def uninterrupted(folder, *arguments):
    if arguments not in FOUND:
        run = os.path.join(folder, "whole")
        check_code(fit(run, *RICH, *arguments), 0)
        FOUND[arguments] = result_of(run), metrics_of(run)
    return FOUND[arguments]


def check_same_end(run, whole):
    result, metrics = whole
    resumed = result_of(run)
    for field in ("status", "epochs", "steps", "samples", "weights_digest", "metrics"):
        check_equal(resumed[field], result[field], field)
    check_equal(metrics_of(run), metrics)


def stopped_in_mid_epoch(folder, number, *arguments):
    run = os.path.join(folder, "run")
    place = {"rank": 1, "epoch": 1, "batch": 4}
    traced = Traced(run, *RICH, *arguments, hold=("training_step", place))
    traced.wait_for("training_step", **place)
    traced.signal(number)
    traced.wait_for_note("stopping")
    traced.release()
    ended = check_code(traced.end(), 128 + number)
    result = result_of(run)
    check_equal(result["status"], "stopped")
    check(6 < result["steps"] < 12, result)
    check_equal(checkpoints_of(run)[-1], f"step-{result['steps']:08}")
    check_in("--resume latest", ended.err)
    return run


def story_a_fit_stopped_by_sigint_in_mid_epoch_resumes_to_the_same_weights(folder):
    whole = uninterrupted(folder)
    run = stopped_in_mid_epoch(folder, signal.SIGINT)
    check_code(fit(run, *RICH, "--resume", "latest"), 0)
    check_same_end(run, whole)


def story_a_fit_stopped_by_sigterm_resumes_from_a_checkpoint_path_without_flags(folder):
    whole = uninterrupted(folder, "--optimizer", "adam", "--learning-rate", "0.01")
    run = stopped_in_mid_epoch(folder, signal.SIGTERM, "--optimizer", "adam", "--learning-rate", "0.01")
    latest = os.path.join(run, "checkpoints", "latest")
    # The configuration of the run is read again, so no flag is repeated.
    check_code(troupe("fit", "--resume", latest, "--progress", "never"), 0)
    check_same_end(run, whole)


def story_resuming_a_finished_fit_changes_nothing(folder):
    run = os.path.join(folder, "whole")
    check_code(fit(run, *RICH), 0)
    whole = result_of(run), metrics_of(run)
    before = checkpoints_of(run)
    check_code(fit(run, *RICH, "--resume", "latest"), 0)
    check_same_end(run, whole)
    check(result_of(run)["weights_digest"], "the weights are missing")
    check_equal(checkpoints_of(run), before)


def story_a_fit_that_ended_in_mid_epoch_and_is_resumed_there_has_the_same_metrics(folder):
    for name, more in (("first", []), ("every", ["--log-every-n-steps", 3, "--checkpoint-every-n-steps", 4])):
        run = os.path.join(folder, name)
        check_code(fit(run, "--max-steps", 20, *more), 0)
        before = result_of(run)["metrics"]
        for _ in range(2):
            check_code(fit(run, "--max-steps", 20, *more, "--resume", "latest"), 0)
            check_equal(result_of(run)["metrics"], before)
            check_same_metrics(run)


def story_a_stop_right_after_a_resume_repeats_no_row_of_metrics(folder):
    run = os.path.join(folder, "run")
    for resume, hook, where in (([], "training_step", {"rank": 0, "step": 20}), (["--resume", "latest"], "setup", {}),
                                (["--resume", "latest"], "setup", {})):
        traced = Traced(run, *resume, hold=(hook, where))
        traced.wait_for(hook, **where)
        traced.signal(signal.SIGTERM)
        traced.wait_for_note("SIGTERM: stopping")
        traced.release()
        ended = check_code(traced.end(), 143)
        check_same_metrics(run)
    check_equal(metrics_of(run)[-1]["step"], result_of(run)["steps"], ended)


def story_a_fit_killed_in_mid_epoch_resumes_to_the_same_weights(folder):
    whole = uninterrupted(folder)
    run = os.path.join(folder, "run")
    ended = fit(run, *RICH, "--checkpoint-every-n-steps", 2, "--fault", "kill@rank=1,hook=backward,step=9")
    check_equal(ended.code, -signal.SIGKILL, ended)
    check(not os.path.exists(os.path.join(run, "result.json")), "a killed run has no result")
    check_equal(troupe("status", run, "--json").json()["state"], "interrupted")
    check_code(fit(run, *RICH, "--resume", "latest"), 0)
    check_same_end(run, whole)


def story_a_fit_that_fails_saves_its_last_step_and_resumes_to_the_same_weights(folder):
    whole = uninterrupted(folder)
    last = 9
    for rank, hook in ((1, "training_step"), (0, "backward"), (0, "on_train_batch_end"), (1, "optimizer_step")):
        run = os.path.join(folder, f"{hook}-{rank}")
        fault = f"throw@rank={rank},hook={hook},step={last}"
        check_code(fit(run, *RICH, "--checkpoint-on-exception", "--fault", fault), 1)
        check_equal(checkpoints_of(run)[-1], f"step-{last:08}")
        check_code(fit(run, *RICH, "--resume", "latest"), 0)
        check_same_end(run, whole)


def story_a_fit_fails_while_rank_0_is_in_a_long_hook_its_last_step_is_saved(folder):
    run, place = os.path.join(folder, "run"), "hook=training_step,step=9"
    check_code(fit(run, *RICH, "--checkpoint-on-exception", "--detect-seconds", "0.25",
                   "--fault", f"stall@rank=0,{place},ms=4000", "--fault", f"throw@rank=1,{place}"), 1)
    check_equal(checkpoints_of(run)[-1], "step-00000009", "rank 0 computes 16 D, where an answer is due in 4 D")


def story_a_lost_process_costs_no_step_but_rank_0(folder):
    whole = uninterrupted(folder)
    # The third process is killed before it can report step 9, which rank 0 has finished.
    for rank, hook, last in ((1, "backward", 9), (0, "backward", 6), (1, "on_train_batch_end", 9)):
        run = os.path.join(folder, f"{rank}-{hook}")
        check_code(fit(run, *RICH, "--checkpoint-on-exception", "--placement", "processes",
                       "--fault", f"kill@rank={rank},hook={hook},step=9"), 1)
        check_equal(checkpoints_of(run)[-1], f"step-{last:08}", "rank 0 saves it; the epoch's is there in any case")
        result = result_of(run)
        check(last <= result["steps"] <= 9 and result["samples"] > 0, result)
        check_code(fit(run, *RICH, "--resume", "latest"), 0)
        check_same_end(run, whole)


def story_a_fit_killed_before_its_first_checkpoint_starts_again(folder):
    whole = uninterrupted(folder)
    run = os.path.join(folder, "run")
    check_equal(fit(run, *RICH, "--fault", "kill@rank=0,hook=backward,step=1").code, -signal.SIGKILL)
    ended = check_code(fit(run, *RICH, "--resume", "latest"), 0)
    check_in("begins anew", ended.err)
    check_same_end(run, whole)


def story_latest_skips_a_damaged_checkpoint(folder):
    whole = uninterrupted(folder)
    run = os.path.join(folder, "run")
    check_code(fit(run, *RICH, "--keep-last", 9, "--checkpoint-every-n-steps", 2, "--max-steps", 9), 0)
    damaged = os.path.join(run, "checkpoints", checkpoints_of(run)[-1])
    weights = os.path.join(damaged, "model.safetensors")
    with open(weights, "r+b") as f:
        f.seek(os.path.getsize(weights) // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 0x10]))
    check_code(troupe("checkpoint", "verify", damaged), 5)
    # A run is as good as its newest checkpoint.
    older = os.path.join(run, "checkpoints", checkpoints_of(run)[-2])
    said = check_code(troupe("checkpoint", "verify", run, "--json"), 5)
    check_in(f"the newest good one is {older}", said.err)
    check_equal((said.json()["path"], said.json()["good"]), (damaged, False))
    check_equal(check_code(troupe("checkpoint", "verify", older, "--json"), 0).json()["path"], older)
    refused = check_code(fit(os.path.join(folder, "other"), "--resume", damaged), 5)
    check_in("model.safetensors", refused.err)
    check_in("newest good one", refused.err)
    ended = check_code(fit(run, *RICH, "--resume", "latest", "--max-steps", 12), 0)
    check_in("passed over", ended.err)
    check_equal(result_of(run)["weights_digest"], whole[0]["weights_digest"])


def story_a_resume_without_a_good_checkpoint_is_an_error_and_changes_nothing(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *RICH), 0)
    before = result_of(run)
    for name in checkpoints_of(run):
        with open(os.path.join(run, "checkpoints", name, "manifest.json"), "w", encoding="utf-8") as f:
            f.write("{}")
    ended = check_code(fit(run, *RICH, "--resume", "latest"), 5)
    check_in("manifest.json", ended.err)
    check_equal(result_of(run), before)


def story_a_finished_fit_resumes_with_more_epochs(folder):
    whole = uninterrupted(folder)
    run = os.path.join(folder, "run")
    check_code(fit(run, *RICH, "--max-epochs", 1), 0)
    check_code(fit(run, *RICH, "--resume", "latest", "--max-epochs", 2), 0)
    check_equal(result_of(run)["weights_digest"], whole[0]["weights_digest"])


def story_a_checkpoint_starts_a_run_in_another_folder(folder):
    whole = uninterrupted(folder)
    run, elsewhere = os.path.join(folder, "run"), os.path.join(folder, "elsewhere")
    check_code(fit(run, *RICH, "--max-steps", 8), 0)
    moved = os.path.join(folder, "moved")
    shutil.move(os.path.join(run, "checkpoints", "step-00000008"), moved)
    check_code(fit(elsewhere, *RICH, "--resume", moved), 0)
    check_equal(result_of(elsewhere)["weights_digest"], whole[0]["weights_digest"])


if __name__ == "__main__":
    main(globals())
