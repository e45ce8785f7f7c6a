"""Goal: an exception in any hook ends the run with exit code 1, reports the first cause in result.json, never hangs."""

import json
import os
import signal

from troupe_program import (Traced, check, check_code, check_equal, check_in, fit, main, result_of)

# Settings that run every hook of a fit: sanity check, accumulation, clipping, validation, a checkpoint, a test.
SHORT = ["--max-epochs", 1, "--limit-train-batches", 2, "--limit-val-batches", 1, "--limit-test-batches", 1,
         "--num-sanity-val-batches", 1, "--gradient-clip-val", 1]


def story_an_exception_in_a_hook_of_a_learner_is_the_first_cause(folder):
    """All hooks: run_test.cpp, without LibTorch."""
    hooks = ("setup", "setup_optimizers", "on_fit_start", "training_step", "backward", "optimizer_step",
             "validation_step", "save_checkpoint", "on_train_end", "teardown")
    for number, name in enumerate(hooks):
        rank = 0 if name == "save_checkpoint" else number % 2
        run = os.path.join(folder, name)
        ended = check_code(fit(run, *SHORT, "--fault", f"throw@rank={rank},hook={name},what=drill in {name}"), 1)
        failure = result_of(run)["failure"]
        check_equal(result_of(run)["status"], "failed", ended)
        check_equal([failure[k] for k in ("type", "what", "rank", "hook")],
                    ["troupe::injected_fault", f"drill in {name}", rank, name], ended)
        check_in(f"rank {rank} failed in {name}", ended.err)
        check(all(o["type"] != "troupe::injected_fault" for o in failure["others"]), failure)


def story_a_second_exception_in_on_exception_is_listed_after_the_first(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *SHORT, "--fault", "throw@rank=0,hook=backward,what=first", "--fault",
                   "throw@rank=1,hook=on_exception,what=second"), 1)
    failure = result_of(run)["failure"]
    check_equal((failure["what"], failure["rank"]), ("first", 0))
    check_in("second", [o["what"] for o in failure["others"]])


def story_an_exception_at_a_step_is_reported_with_the_step_and_epoch(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--fault", "throw@rank=1,hook=optimizer_step,step=20,what=at twenty, sharp"), 1)
    failure = result_of(run)["failure"]
    check_equal((failure["step"], failure["epoch"], failure["what"]), (20, 1, "at twenty, sharp"))
    check_equal(failure["generation"], 1)


def story_an_exception_inside_the_fused_step_keeps_its_type(folder):
    for ranks in (1, 2, 3):
        run = os.path.join(folder, str(ranks))
        ended = check_code(fit(run, "--ranks", ranks, "--learning-rate", "1e308"), 1)
        failure = result_of(run)["failure"]
        check_equal((failure["type"], failure["hook"]), ("std::runtime_error", "optimizer_step"), ended)
        check_in("cannot be converted to type float", failure["what"])
        check(all(o["type"] == "troupe::generation_closed" for o in failure["others"]), failure)


def story_abort_segv_kill_and_exit_of_a_rank_thread_end_the_whole_program(folder):
    for kind, code in (("abort", -signal.SIGABRT), ("segv", -signal.SIGSEGV), ("kill", -signal.SIGKILL)):
        run = os.path.join(folder, kind)
        ended = fit(run, "--fault", f"{kind}@rank=1,hook=backward,step=3")
        check_equal(ended.code, code, ended)
        check(not os.path.exists(os.path.join(run, "result.json")), kind)
    run = os.path.join(folder, "exit")
    ended = fit(run, "--fault", "exit@rank=1,hook=backward,step=3")
    check(ended.code != 0 and not os.path.exists(os.path.join(run, "result.json")), ended)


def story_after_a_crash_the_trace_holds_every_hook_up_to_it(folder):
    run, trace = os.path.join(folder, "run"), os.path.join(folder, "trace.jsonl")
    fit(run, "--fault", "kill@rank=1,hook=optimizer_step,step=3", "--trace-hooks", trace)
    with open(trace, encoding="utf-8") as f:
        last = [entry for entry in map(json.loads, f) if entry["rank"] == 1][-1]
    check_equal((last["hook"], last["step"]), ("optimizer_step", 3))


def story_a_short_stall_does_not_change_the_weights(folder):
    plain, stalled = os.path.join(folder, "plain"), os.path.join(folder, "stalled")
    check_code(fit(plain), 0)
    check_code(fit(stalled, "--fault", "stall@rank=1,hook=backward,step=3,ms=200"), 0)
    check_equal(result_of(stalled)["weights_digest"], result_of(plain)["weights_digest"])


def story_a_hook_beyond_its_limit_is_named_and_abandoned(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, "--detect-seconds", "0.1", "--hook-limit-seconds", "10", "--fault",
                           "stall@rank=1,hook=training_step,step=3,ms=3600000"), 1)
    failure = result_of(run)["failure"]
    check_equal((failure["type"], failure["rank"], failure["hook"], failure["step"]),
                ("deadline", 1, "training_step", 3), ended)
    check_in("left behind", ended.err)
    check_in("rank 1", ended.err)


def story_a_second_signal_ends_the_run_at_once(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, "--detect-seconds", "0.1", "--fault", "stall@rank=0,hook=training_step,step=3,ms=3600000")
    traced.wait_for("training_step", rank=0, step=3)
    traced.signal(signal.SIGINT)
    traced.wait_for_note("SIGINT: stopping")
    traced.signal(signal.SIGINT)
    ended = check_code(traced.end(), 130)
    check_equal(result_of(run)["status"], "failed", ended)
    check_in("left behind", ended.err)


def story_a_third_signal_ends_the_program_without_teardown(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, "--fault", "stall@rank=0,hook=training_step,step=3,ms=3600000")
    traced.wait_for("training_step", rank=0, step=3)
    for note in ("SIGTERM: stopping", "SIGTERM again: ending now"):
        traced.signal(signal.SIGTERM)
        traced.wait_for_note(note)
    traced.signal(signal.SIGTERM)
    check_code(traced.end(), 143)


if __name__ == "__main__":
    main(globals())
