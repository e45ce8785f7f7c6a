"""Goal: the fault scenarios of docs/scenarios.md with real processes and real signals. Each story has a time limit."""

import contextlib
import datetime
import json
import os
import select
import signal

from elastic import PLACED, SHORT, check_generations, disturbed, metrics_text, together, undisturbed
from elastic_shards import check_same
from processes import check_none_left, rank_processes, started_by_this_test
from troupe_program import (Traced, check, check_code, check_equal, checkpoints_of, main, result_of, troupe)

COMMUNICATORS = ("shm", "tcp")
# 220 steps of some milliseconds, so that a fit is not over at once. The trace is read as fast as it is written, or
# else the ranks wait for it.
LONG = ["--max-epochs", 20, "--set", "model.hidden=[512,512]"]
STORY_SECONDS = 300  # for each story; under ten on an idle machine


@contextlib.contextmanager
def in_time():
    """A hang ends the story with an error."""
    def over(*_):
        raise AssertionError(f"the story took more than {STORY_SECONDS} s")
    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(STORY_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def bounded(story):
    def run(folder):
        try:
            with in_time():
                story(folder)
        finally:
            for pid, _, _ in started_by_this_test():  # of a story that failed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    return run


def started(folder, name, *arguments, ranks=3, at=("training_step", {"rank": 0, "step": 9}), **more):
    """A long fit in processes that has reached this hook."""
    run = os.path.join(folder, name)
    traced = Traced(run, *SHORT, *LONG, *PLACED, "--ranks", ranks, "--shards", 3, *arguments, **more)
    traced.wait_for(at[0], **at[1])
    return run, traced


def kill_at_once(pids, number=signal.SIGKILL):
    """All get the signal within a millisecond, as far as the machine allows it."""
    for pid in pids:
        os.kill(pid, number)


def all_processes(traced):
    """The pid of each process of ranks. Waits until the first three have started."""
    pids = {}
    while len(pids) < 3:
        pids = rank_processes(traced.pid())
    return pids


def ended_well(traced, run, plain, about=""):
    """The run ended as `plain` did. Returns its generations."""
    ended = check_code(traced.end(), 0)
    check_same(run, plain, (about, ended))
    check_none_left(about)
    return check_generations(result_of(run), ended)


@bounded
def story_all_processes_but_one_die_in_the_same_millisecond(folder):
    plain = undisturbed(*LONG)
    for by, left in (("shm", 0), ("tcp", 2)):
        run, traced = started(folder, by, "--communicator", by, "--max-restarts", 2)
        pids = all_processes(traced)
        kill_at_once([pid for rank, pid in pids.items() if rank != left])
        generations = ended_well(traced, run, plain, by)
        check(all(g["steps_redone"] <= 1 for g in generations), generations)


@bounded
def story_exceptions_on_two_ranks_at_once_are_both_reported(folder):
    both = 0
    for attempt in range(10):
        run = os.path.join(folder, str(attempt))
        faults = [f"throw@rank={rank},hook=on_train_batch_start,step=5,what=drill {rank}" for rank in (1, 2)]
        ended = check_code(disturbed(run, faults, *PLACED, restarts=0), 1)
        failure = result_of(run)["failure"]
        check_equal((failure["what"], failure["step"]), (f"drill {failure['rank']}", 5), ended)
        reported = {failure["what"]} | {o["what"] for o in failure["others"]}
        both = len({"drill 1", "drill 2"} & reported) == 2
        if both:
            break
    check(both, "in ten attempts only one of two ranks was reported")
    check_none_left()


@bounded
def story_a_process_is_stopped_for_less_than_the_detection_time(folder):
    plain = undisturbed(*LONG)
    run, traced = started(folder, "run", "--max-restarts", 1)
    pid = all_processes(traced)[1]
    os.kill(pid, signal.SIGSTOP)
    select.select([], [], [], 0.2)  # the fault itself
    os.kill(pid, signal.SIGCONT)
    check_equal(len(ended_well(traced, run, plain)), 1)


# As when the machine sleeps, and its clock is set afterwards.
@bounded
def story_all_processes_stop_for_three_seconds_and_the_wall_clock_jumps_by_an_hour(folder):
    clock = os.environ.get("TROUPE_JUMPING_CLOCK")
    if not clock:
        print("SKIPPED: a sanitizer must be the first library of a program")
        return
    plain = undisturbed(*LONG)

    def jumps(by):
        jump = os.path.join(folder, f"jump{by}")
        run, traced = started(folder, f"run{by}", "--max-restarts", 1, "--detect-seconds", 0.1, LD_PRELOAD=clock,
                              CLOCK_JUMPS=jump, CLOCK_JUMPS_BY=str(by))
        pids = [*all_processes(traced).values(), traced.pid()]
        kill_at_once(pids, signal.SIGSTOP)
        select.select([], [], [], 3)  # the fault itself; a process that alone stops so long is lost
        with open(jump, "w", encoding="utf-8"):
            kill_at_once(pids, signal.SIGCONT)
        check_equal(len(ended_well(traced, run, plain, by)), 1)
        with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as f:
            times = [datetime.datetime.fromisoformat(json.loads(line)["time"].rstrip("Z")) for line in f]
        passed = (times[-1] - times[0]).total_seconds()
        check(by - 60 < passed < by + 600, (by, passed))
    together([lambda by=by: jumps(by) for by in (3600, -3600)])


# Ctrl-Z in a shell, or a pause of a whole container. No rank could compute, so no limit names one.
@bounded
def story_a_job_that_stops_as_a_whole_for_longer_than_every_limit_goes_on(folder):
    plain = undisturbed(*LONG)

    def stops(name, *arguments):
        run = os.path.join(folder, name)
        traced = Traced(run, *SHORT, *LONG, "--ranks", 3, "--shards", 3, "--hook-limit-seconds", 8, *arguments)
        traced.wait_for("training_step", rank=0, step=9)
        pids = [*rank_processes(traced.pid()).values(), traced.pid()]
        kill_at_once(pids, signal.SIGSTOP)
        select.select([], [], [], 12)  # the fault itself
        kill_at_once(pids, signal.SIGCONT)
        check_equal(len(ended_well(traced, run, plain, name)), 1)
    together([lambda by=by: stops(by, *PLACED, "--communicator", by, "--max-restarts", 1) for by in COMMUNICATORS] +
             [lambda: stops("threads", "--max-restarts", 1)])


@bounded
def story_a_process_joins_at_each_phase_no_step_is_done_again(folder):
    plain = undisturbed(*LONG)
    phases = [("setup", {"rank": 1}), ("backward", {"rank": 2, "step": 7}), ("save_checkpoint", {"rank": 0})]

    def at(number, phase):
        name = f"{number}-{phase[0]}"
        run, traced = started(folder, name, "--max-restarts", 1, "--checkpoint-every-n-steps", 20, ranks=2, at=phase,
                              hold=phase)
        check_code(troupe("scale", run, "--ranks", 3), 0)
        traced.release()
        ended = check_code(traced.end(), 0)
        generations = check_same(run, plain, (name, ended))["generations"]
        check_equal([(g["ended_by"], g["ranks"], g["steps_redone"]) for g in generations],
                    [("scaled", 2, 0), ("finished", 3, 0)], (name, ended))
    together([lambda number=number, phase=phase: at(number, phase) for number, phase in enumerate(phases)])
    check_none_left()


@bounded
def story_a_process_joins_while_another_one_receives_the_state(folder):
    plain = undisturbed(*LONG)
    receiving = ("restore_state", {"rank": 2})
    run, traced = started(folder, "run", "--max-restarts", 1, "--fault", "kill@rank=0,hook=training_step,step=9",
                          ranks=2, at=receiving, hold=receiving)
    check_code(troupe("scale", run, "--ranks", 3), 0)
    traced.release()
    ended = check_code(traced.end(), 0)
    result = check_same(run, plain, ended)
    check_equal([g["ranks"] for g in result["generations"]], [2, 2, 3], ended)
    check_equal((result["generations"][0]["ended_by"]["signal"], result["generations"][1]["ended_by"]),
                ("SIGKILL", "scaled"), ended)
    check_equal((result["restarts"], result["generations"][2]["steps_redone"]), (1, 0), ended)
    check_none_left()


# The ranks wait for the reader of the trace. The program notices what happens to their processes nevertheless.
@bounded
def story_a_process_is_killed_while_the_trace_is_not_read(folder):
    plain = undisturbed(*LONG)
    run, traced = started(folder, "run", "--max-restarts", 1, hold=("training_step", {"rank": 0, "step": 9}))
    os.kill(all_processes(traced)[1], signal.SIGKILL)
    traced.wait_for_note("generation 2: the job goes on after a failure")
    rows = metrics_text(run).count("\n")
    check(rows < 80, f"the ranks did not wait: {rows} rows of metrics")
    traced.release()
    check_equal(len(ended_well(traced, run, plain)), 2)


@bounded
def story_sigterm_to_one_process_at_each_phase_no_step_is_done_again(folder):
    plain = undisturbed(*LONG)
    phases = [("setup", {"rank": 1}), ("backward", {"rank": 2, "step": 7}), ("validation_step", {"rank": 1}),
              ("save_checkpoint", {"rank": 0})]

    def at(number, phase):
        name = f"{number}-{phase[0]}"
        run, traced = started(folder, name, "--max-restarts", 1, "--checkpoint-every-n-steps", 20, at=phase, hold=phase)
        os.kill(all_processes(traced)[1], signal.SIGTERM)
        traced.release()
        ended = check_code(traced.end(), 0)
        result = check_same(run, plain, (name, ended))
        check_equal([g["ended_by"] for g in result["generations"]], ["left", "finished"], (name, ended))
        check_equal(({g["steps_redone"] for g in result["generations"]}, result["restarts"]), ({0}, 0), (name, ended))
    together([lambda number=number, phase=phase: at(number, phase) for number, phase in enumerate(phases)])
    check_none_left()


@bounded
def story_sigterm_to_all_processes_twice_all_ranks_move(folder):
    plain = undisturbed(*LONG)
    run, traced = started(folder, "run", "--max-restarts", 1)
    pids = all_processes(traced)
    for _ in range(2):
        kill_at_once(pids.values(), signal.SIGTERM)
    ended = check_code(traced.end(), 0)
    result = check_same(run, plain, ended)
    check_equal((result["restarts"], {g["steps_redone"] for g in result["generations"]}), (0, {0}), ended)
    check(all(g["ended_by"] == "left" for g in result["generations"][:-1]) and len(result["generations"]) > 1, ended)
    check_none_left()


@bounded
def story_a_rank_process_is_killed_while_a_checkpoint_is_taken_and_while_it_is_written(folder):
    plain = undisturbed()
    for by, rank in (("shm", 0), ("tcp", 1)):
        run = os.path.join(folder, by)
        ended = disturbed(run, [f"kill@rank={rank},hook=save_checkpoint,step=4",
                                f"kill@rank={2 - rank},hook=training_step,step=8"], *PLACED, "--communicator", by,
                          "--checkpoint-every-n-steps", 4)
        check_same(run, plain, check_code(ended, 0))
        check_generations(result_of(run), ended)
        check(checkpoints_of(run)[-1].endswith("22"), checkpoints_of(run))
        check_code(troupe("checkpoint", "verify", os.path.join(run, "checkpoints", checkpoints_of(run)[-1])), 0)
    check_none_left()


if __name__ == "__main__":
    main(globals())
