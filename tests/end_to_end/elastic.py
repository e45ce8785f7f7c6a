"""Goal: a job with restarts outlives any failure of a rank and ends with the weights of a run without that failure."""

import concurrent.futures
import os
import signal
import tempfile
import threading

from processes import check_none_left
from troupe_program import (Traced, check, check_code, check_equal, check_in, fit, main, result_of, troupe)

PLACED = ["--placement", "processes"]
# 3 ranks, 11 steps in each of 2 epochs, a row of metrics for each step, a short D.
SHORT = ["--ranks", 3, "--log-every-n-steps", 1, "--limit-test-batches", 0, "--detect-seconds", 0.25]
TIMES = ["detect", "abort", "form", "heal", "first_step"]
UNDISTURBED, FITTED, FITTING = tempfile.TemporaryDirectory(prefix="troupe-e2e-"), {}, threading.Lock()


def metrics_text(run):
    with open(os.path.join(run, "metrics.csv"), encoding="utf-8") as f:
        return f.read()


def undisturbed(*arguments):
    """The folder of a fit without faults. Stories share it and do not write into it."""
    with FITTING:
        if arguments not in FITTED:
            run = os.path.join(UNDISTURBED.name, str(len(FITTED)))
            check_code(fit(run, *SHORT, *arguments), 0)
            FITTED[arguments] = run
        return FITTED[arguments]


def disturbed(run, faults, *arguments, restarts=None):
    """A fit that may restart, with these faults."""
    faults = [word for fault in faults for word in ("--fault", fault)]
    allowed = len(faults) // 2 if restarts is None else restarts
    return fit(run, *SHORT, "--max-restarts", allowed, *faults, *arguments)


def check_generations(result, about=""):
    """What holds of the generations of every job."""
    generations = result["generations"]
    check_equal([g["generation"] for g in generations], list(range(1, len(generations) + 1)), about)
    planned = [g for g in generations[:-1] if g["ended_by"] in ("left", "scaled")]
    check_equal((result["generation"], result["restarts"]),
                (len(generations), len(generations) - 1 - len(planned)), about)
    check_equal({g["ranks"] for g in generations}, {result["ranks"]}, about)
    check_equal(result["shards"], result["ranks"])
    bases = [g["base_step"] for g in generations]
    check_equal((bases[0], generations[0]["steps_redone"]), (0, 0), about)
    check(all(list(g["milliseconds"]) == TIMES for g in generations), generations)
    failed = [g for g in generations[:-1] if g not in planned]
    check_equal([g["ended_by"]["generation"] for g in failed], [g["generation"] for g in failed], about)
    check_equal(generations[-1]["ended_by"], result["failure"] or result["status"], about)
    for one in generations[1:]:
        times = one["milliseconds"]
        check(times["form"] >= times["heal"] >= 0, (one, about))
    return generations


def check_survived(ended, run, plain, restarts):
    """The job finished in spite of this number of failures, and neither weights nor metrics show it."""
    check_code(ended, 0)
    result, expected = result_of(run), result_of(plain)
    check_equal((result["status"], result["failure"], result["restarts"]), ("finished", None, restarts), ended)
    for key in ("weights_digest", "epochs", "steps", "samples", "metrics"):
        check_equal(result[key], expected[key], f"{key}\n{ended}")
    check_equal(metrics_text(run), metrics_text(plain), ended)
    generations = check_generations(result, ended)
    check(all(g["steps_redone"] in (0, 1) for g in generations), generations)
    check(all(g["milliseconds"]["form"] > 0 for g in generations[1:]), generations)
    return generations


def check_one_failure(folder, plain, fault, *arguments, base=None, **failure):
    """One fault, one restart. `base`: the steps with which the second generation may begin."""
    run = os.path.join(folder, fault.replace(",", "-") + "-".join(arguments))
    ended = disturbed(run, [fault], *arguments)
    first, second = check_survived(ended, run, plain, 1)
    for key, expected in failure.items():
        check_equal(first["ended_by"][key], expected, f"{key}\n{ended}")
    check_in(f"generation 1: rank {failure['rank']} failed", ended.err)
    check(base is None or (second["base_step"] in base and second["milliseconds"]["first_step"] > 0), second)
    # A thread cannot be ended.
    check("left behind" not in ended.err or "threads" in arguments and fault.startswith("stall"), ended)


def together(calls):
    """Two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def story_a_process_is_killed_in_any_hook_the_weights_are_those_of_an_undisturbed_run(folder):
    plain = undisturbed()
    # Rank, hook, step, and where the second generation begins: a step of which a rank had no gradients is not done.
    kills = [(1, "backward", 12, (12,)), (2, "optimizer_step", 0, (0,)), (0, "on_train_batch_end", 7, (6, 7)),
             (1, "validation_step", 11, (11,)), (0, "save_checkpoint", 11, (11,))]
    together([lambda rank=rank, hook=hook, step=step, base=base: check_one_failure(
        folder, plain, f"kill@rank={rank},hook={hook},step={step}", *PLACED, base=base,
        type="signal", signal="SIGKILL", rank=rank, hook=hook) for rank, hook, step, base in kills])
    check_none_left()


def story_the_others_are_in_long_hooks_when_a_process_is_killed_the_job_waits_for_their_state(folder):
    """They compute 10 D, where an answer is due in 4 D. Without them the steps since the checkpoint would be lost."""
    run, place = os.path.join(folder, "run"), "hook=training_step,step=6"
    faults = [f"stall@rank={rank},{place},ms=2500" for rank in (1, 2)] + [f"kill@rank=0,{place}"]
    ended = disturbed(run, faults, *PLACED)
    _, second = check_survived(ended, run, undisturbed(), 1)
    check_equal((second["base_step"], second["steps_redone"]), (6, 0), ended)
    check_none_left()


def story_a_process_is_killed_before_the_first_step_the_job_begins_again(folder):
    plain = undisturbed()
    together([lambda rank=rank, hook=hook: check_one_failure(
        folder, plain, f"kill@rank={rank},hook={hook}", *PLACED, base=(0,), rank=rank, hook=hook)
        for rank, hook in ((0, "setup"), (2, "on_train_start"))])
    check_none_left()


def story_a_process_is_killed_the_job_goes_on_over_every_communicator(folder):
    plain = undisturbed()
    together([lambda by=by: check_one_failure(
        folder, plain, "kill@rank=1,hook=backward,step=12", *PLACED, "--communicator", by, base=(12,), rank=1)
        for by in ("tcp", "hier")])
    check_none_left()


def story_a_process_that_throws_exits_stalls_or_stops_does_not_end_the_job(folder):
    plain = undisturbed()
    place = "rank=1,hook=training_step,step=6"
    together([lambda fault=fault, kind=kind, more=more: check_one_failure(
        folder, plain, fault, *PLACED, *more, base=(6,), type=kind, rank=1, hook="training_step", step=6)
        for fault, kind, more in ((f"throw@{place}", "troupe::injected_fault", []), (f"exit@{place}", "exit", []),
                                  (f"stall@{place},ms=3600000", "deadline", ["--hook-limit-seconds", "10"]),
                                  (f"stop@{place}", "deadline", []))])
    check_none_left()


def story_a_rank_thread_that_throws_does_not_end_the_job(folder):
    plain = undisturbed()
    for rank, hook, step in ((1, "backward", 12), (2, "on_train_batch_end", 7), (0, "save_checkpoint", 22)):
        check_one_failure(folder, plain, f"throw@rank={rank},hook={hook},step={step}", "--placement", "threads",
                          type="troupe::injected_fault", what="injected fault", rank=rank, hook=hook)


def story_a_rank_thread_that_stalls_is_replaced(folder):
    plain = undisturbed()
    check_one_failure(folder, plain, "stall@rank=1,hook=training_step,step=6,ms=3600000", "--placement", "threads",
                      "--hook-limit-seconds", "10", type="deadline", rank=1, hook="training_step")


def story_three_failures_one_after_the_other_make_four_generations(folder):
    """Two of them happen to the same rank, which a new process has taken over in between."""
    plain, run = undisturbed(), os.path.join(folder, "run")
    ended = disturbed(run, ["kill@rank=1,hook=training_step,step=5", "throw@rank=0,hook=backward,step=15",
                            "kill@rank=1,hook=training_step,step=18"], *PLACED)
    generations = check_survived(ended, run, plain, 3)
    check_equal([g["base_step"] for g in generations], [0, 5, 15, 18])
    check_equal([g["ended_by"]["rank"] for g in generations[:3]], [1, 0, 1])
    shown = check_code(troupe("status", run), 0).out
    check_in("restarts 3", shown)
    check_in("generation 2: 3 ranks from step 5 on", shown)
    check_equal(troupe("status", run, "--json").json()["result"]["generations"], generations)
    check_none_left()


def story_all_processes_die_the_job_goes_on_from_the_newest_checkpoint(folder):
    plain, run = undisturbed(), os.path.join(folder, "run")
    ended = check_code(disturbed(run, [f"kill@rank={rank},hook=training_step,step=14" for rank in range(3)], *PLACED,
                                 "--checkpoint-every-n-steps", 4), 0)
    result = result_of(run)
    check_equal(result["weights_digest"], result_of(plain)["weights_digest"], ended)
    check_equal(metrics_text(run), metrics_text(plain), ended)
    check(all(g["base_step"] <= 14 for g in check_generations(result, ended)), ended)
    check_none_left()


def story_a_second_failure_beyond_the_budget_ends_the_job(folder):
    run = os.path.join(folder, "run")
    ended = check_code(disturbed(run, ["kill@rank=1,hook=training_step,step=5", "kill@rank=0,hook=backward,step=12"],
                                 *PLACED, restarts=1), 1)
    result = result_of(run)
    first, second = check_generations(result, ended)
    check_equal((result["status"], result["failure"]["rank"], result["failure"]["step"]), ("failed", 0, 12))
    check_equal((first["ended_by"]["rank"], second["ended_by"]["signal"]), (1, "SIGKILL"))
    check_in("rank 0 failed in backward at step 12", ended.err)
    check_none_left()


def story_a_failure_that_returns_without_a_step_in_between_ends_the_job(folder):
    for ranks in (1, 3):
        run = os.path.join(folder, str(ranks))
        # The update by this rate throws in each attempt, on every rank. The first cause may be any of them.
        ended = check_code(fit(run, *SHORT, "--ranks", ranks, "--learning-rate", "1e308", "--max-restarts", 100), 1)
        result = result_of(run)
        check_generations(result, ended)
        check_equal((result["steps"], result["failure"]["hook"]), (0, "optimizer_step"), ended)
        check(1 <= result["restarts"] <= ranks, ended)
        check_in("cannot be converted to type float", result["failure"]["what"])


def story_exceptions_fail_an_exception_ends_the_job_and_a_killed_process_does_not(folder):
    run, plain = os.path.join(folder, "run"), undisturbed()
    strict = ["--set", "elastic.exceptions=fail", *PLACED]
    ended = check_code(disturbed(run, ["throw@rank=1,hook=backward,step=5"], *strict), 1)
    result = result_of(run)
    check_equal((result["restarts"], result["failure"]["type"]), (0, "troupe::injected_fault"), ended)
    check_generations(result, ended)
    check_one_failure(folder, plain, "kill@rank=1,hook=backward,step=5", *strict, base=(5,), rank=1)


def story_a_wrong_configuration_does_not_restart(folder):
    run = os.path.join(folder, "run")
    ended = check_code(disturbed(run, [], "--set", "checkpoint.monitor=val/absent", restarts=5), 3)
    check_equal((result_of(run)["restarts"], result_of(run)["status"]), (0, "failed"), ended)
    check_generations(result_of(run), ended)


def story_a_job_is_stopped_in_its_second_generation_it_can_be_resumed(folder):
    # Ranks in processes run ahead of the trace by 304 hooks at most; a step has 14.
    longer = ["--max-epochs", 20]
    plain, run = undisturbed(*longer), os.path.join(folder, "run")
    place = {"rank": 0, "step": 9}
    traced = Traced(run, *SHORT, *longer, *PLACED, "--max-restarts", 3, "--fault", "kill@rank=1,hook=backward,step=5",
                    hold=("training_step", place))
    traced.wait_for("training_step", **place)
    traced.signal(signal.SIGTERM)
    traced.wait_for_note("SIGTERM: stopping")
    traced.release()
    ended = check_code(traced.end(), 143)
    result = result_of(run)
    check_equal((result["status"], result["failure"], result["restarts"]), ("stopped", None, 1), ended)
    check_generations(result, ended)
    check_code(fit(run, *longer, "--resume", "latest"), 0)
    check_equal(result_of(run)["weights_digest"], result_of(plain)["weights_digest"])
    check_none_left()


def story_an_evaluation_outlives_a_killed_process(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *SHORT), 0)
    call = ["test", "--run-dir", run, "--json", "--set", "limit_test_batches=1.0", "--progress", "never"]
    expected = check_code(troupe(*call), 0).json()
    ended = troupe(*call, *PLACED, "--max-restarts", 1, "--fault", "kill@rank=1,hook=test_step")
    check_equal(check_code(ended, 0).json()["metrics"], expected["metrics"], ended)
    check_none_left()


def story_bench_recovery_kills_ranks_and_loses_no_sample(folder):
    del folder
    rows = check_code(troupe("bench", "recovery", "--rounds", 1, "--json"), 0).lines()
    check_equal([[row[k] for k in ("schema", "placement", "on_loss", "spares", "ranks", "rounds")] for row in rows],
                [["troupe.bench_recovery/1", "processes", *how, 4, 1]
                 for how in (["replace", 0], ["replace", 1], ["shrink", 0])])
    for row in rows:
        times = row["milliseconds"]
        check_equal(list(times), ["known", "released", "next_step"])
        check(all(0 < one["median"] <= one["worst"] for one in times.values()), row)
        check(times["known"]["worst"] < times["next_step"]["worst"], row)
        check_equal((row["samples_lost"], row["samples_doubled"]), (0, 0))
        check(0 <= row["steps_redone"] <= 1, row)
    check_none_left()


if __name__ == "__main__":
    main(globals())
