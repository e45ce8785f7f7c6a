"""Goal: the processes of mpirun are the ranks of one job. Weights equal those of threads, every outcome is reported
once, and no process is left."""

import os
import shutil
import signal
import sys

from processes import process_table
from troupe_program import (PROGRAM, Traced, check, check_code, check_equal, check_in, fit, main, metrics_of,
                            result_of, troupe)

MPIRUN = shutil.which("mpirun")


def under(ranks, *more):
    return {"before": [MPIRUN, "--allow-run-as-root", "--oversubscribe", *more, "-n", str(ranks)]}


def digest(run):
    return result_of(run)["weights_digest"]


def failure_of(run, *keys):
    return [result_of(run)["failure"][k] for k in keys]


def processes_of(run):
    """The processes with this run folder in their command line, and the rank process that rank 0 started."""
    return [(pid, parent) for pid, parent, words in process_table()
            if run in words or (len(words) > 1 and words[1] == "--troupe-placed-rank"
                                and os.path.samefile(words[0], PROGRAM))]


def check_none_left(run):
    """Waits, because a killed process takes a moment to disappear."""
    for _ in range(200_000):
        left = processes_of(run)
        if not left:
            return
        os.sched_yield()
    check(not left, left)


def head_of(run, variable):
    """The first process of a launcher: it has this variable, and is not the rank process that it started."""
    for pid, _ in processes_of(run):
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as f:
            if variable in f.read().split("\0"):
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as words:
                    if "--troupe-placed-rank" not in words.read():
                        return pid
    raise AssertionError("the launcher's first process was not found")


def story_two_ranks_end_with_the_weights_of_threads_and_print_once(folder):
    threads, run = os.path.join(folder, "threads"), os.path.join(folder, "run")
    check_code(fit(threads), 0)
    ended = check_code(fit(run, **under(2)), 0)
    check_equal(digest(run), digest(threads))
    check_equal(metrics_of(run), metrics_of(threads))
    # Libraries of mpirun may print warnings of their own (hwloc does where /sys is missing).
    check_equal(ended.err.count("mpirun started 2 processes: they are the ranks, over mpi\n"), 1, ended)
    check(not any(line.startswith(("error: ", "warning: ")) for line in ended.err.splitlines()), ended)
    check_equal(ended.out.count("run folder"), 1, ended)
    check_none_left(run)


def story_four_ranks_train_like_threads(folder):
    threads, run = os.path.join(folder, "threads"), os.path.join(folder, "run")
    check_code(fit(threads, "--ranks", 4), 0)
    check_code(fit(run, "--ranks", 4, "--communicator", "mpi", "--placement", "processes", **under(4)), 0)
    for key in ("epochs", "steps", "samples", "status", "ranks"):
        check_equal(result_of(run)[key], result_of(threads)[key], key)
    # MPI adds in another order, so the bits differ slightly.
    for name, number in result_of(threads)["metrics"].items():
        check(abs(result_of(run)["metrics"][name] - number) < 1e-4, name)


def story_an_exception_is_the_first_cause_and_determines_the_exit_code(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, "--fault", "throw@rank=1,hook=backward,step=9,what=drill", **under(2)), 1)
    check_equal(failure_of(run, "type", "what", "rank", "hook", "step"),
                ["troupe::injected_fault", "drill", 1, "backward", 9], ended)
    check_in("mpirun started 2 processes", ended.err)
    # The other processes ended in order: mpirun reports the exit code 1 of the first process, and no signal.
    check("signal" not in ended.err, ended)
    check_none_left(run)


def story_a_killed_rank_ends_the_run_and_is_named(folder):
    for rank, kind, name in ((0, "signal", "SIGKILL"), (1, "lost", None)):
        run = os.path.join(folder, f"run-{rank}")
        # mpirun kills all processes a second after one was killed. A loaded machine may need more time than that.
        patient = ["--mca", "odls_base_sigkill_timeout", "4"] if rank else []
        ended = fit(run, "--fault", f"kill@rank={rank},hook=backward,step=3", **under(2, *patient))
        check(ended.code != 0, ended)
        check_equal(failure_of(run, "type", "signal", "rank", "step"), [kind, name, rank, 3], ended)
        check_in(f"rank {rank} failed", ended.err)
        check_none_left(run)


def check_stop_and_resume(folder, launch, variable):
    """A fit of two ranks that SIGTERM to its first process stops. `launch` is how it is started."""
    whole, run = os.path.join(folder, "whole"), os.path.join(folder, "run")
    check_code(fit(whole), 0)
    place = {"rank": 1, "step": 5}
    traced = Traced(run, hold=("on_train_batch_start", place), **launch)
    traced.wait_for("on_train_batch_start", **place)
    os.kill(head_of(run, variable), signal.SIGTERM)
    traced.wait_for_note("stopping")
    traced.release()
    ended = traced.end()
    check_equal(ended.code, 143, ended)
    check_equal(result_of(run)["status"], "stopped")
    check_none_left(run)
    check_code(fit(run, "--resume", "latest"), 0)
    check_equal(digest(run), digest(whole), "stopped under a launcher, resumed as threads")


def story_sigterm_to_the_first_process_stops_at_a_step_boundary_and_resumes(folder):
    check_stop_and_resume(folder, under(2), "OMPI_COMM_WORLD_RANK=0")


def story_the_process_of_rank_0_has_the_descriptor_of_pmi(folder):
    """MPICH's mpirun and srun's PMI start MPI over it."""
    run, socket, place = os.path.join(folder, "run"), os.path.join(folder, "socket"), {"rank": 1, "step": 5}
    launch = under(2)
    launch["before"] += ["bash", "-c", f'exec 9>>{socket}; PMI_FD=9 exec "$0" "$@"']
    traced = Traced(run, hold=("on_train_batch_start", place), **launch)
    traced.wait_for("on_train_batch_start", **place)
    head = int(head_of(run, "OMPI_COMM_WORLD_RANK=0"))
    child, = [pid for pid, parent in processes_of(run) if int(parent) == head]
    check(os.path.samefile(f"/proc/{child}/fd/4", socket))
    traced.release()
    check_code(traced.end(), 0)


def story_a_number_of_ranks_other_than_that_of_mpirun_is_refused_once(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, "--ranks", "3", **under(2)), 3)
    check_equal(ended.err.count("error: "), 1, ended)
    check_in("mpirun -n 3", ended.err)
    check(not os.path.exists(run), ended)


if __name__ == "__main__":
    if not MPIRUN:
        print("SKIPPED: no mpirun here")
        sys.exit(77)
    if PROGRAM and "built without MPI" in troupe("doctor").out:
        print("SKIPPED: this program was built without MPI")
        sys.exit(77)
    main(globals())
