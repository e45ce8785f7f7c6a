"""Goal: ranks in processes end with the weights of threads. A dead process is named. No process and no file is left."""

import concurrent.futures
import contextlib
import json
import os
import re
import select
import signal

from troupe_program import (STARTED_BY, Traced, check, check_code, check_equal, check_in, check_same_metrics, fit,
                            main, metrics_of, result_of, troupe)

PLACED = ["--placement", "processes"]
COMMUNICATORS = ("shm", "tcp", "hier")


def process_table():
    """The pid, parent and command line of every process."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                parent = int(f.read().rpartition(")")[2].split()[1])
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as f:
                yield int(name), parent, f.read().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue


def started_by_this_test():
    """All processes that carry the mark of this test and have not ended."""
    mark = "=".join(STARTED_BY).encode()
    for pid, parent, words in process_table():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark in f.read().split(b"\0"):
                    yield pid, parent, words


def rank_processes(of_parent):
    """The pid of each process of ranks, by its number."""
    return {int(words[2]): pid for pid, parent, words in started_by_this_test()
            if len(words) > 2 and words[1] == "--troupe-rank" and parent == of_parent}


def check_none_left(about=""):
    """A killed process takes a moment to disappear."""
    while left := list(started_by_this_test()):
        with contextlib.suppress(ProcessLookupError):
            watched = os.pidfd_open(left[0][0])
            gone, _, _ = select.select([watched], [], [], 60)
            os.close(watched)
            check(gone, f"{left[0]} is left {about}")


def family(of):
    """The process and all its descendants."""
    found, size = {of}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent, _ in process_table() if parent in found}
    return found


def held_by(pids):
    """Inodes of the sockets and paths of the files that these processes have open or mapped."""
    sockets, paths = set(), set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                what = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
            socket = re.fullmatch(r"socket:\[(\d+)\]", what)
            sockets.add(socket[1]) if socket else paths.add(what)
        with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
            paths |= {fields[5].rstrip("\n") for fields in (line.split(None, 5) for line in f) if len(fields) > 5}
    return sockets, paths


def sockets_of_the_machine():
    inodes = set()
    for table, column in (("unix", 6), ("tcp", 9), ("tcp6", 9)):
        with open(f"/proc/net/{table}", encoding="utf-8") as f:
            inodes |= {line.split()[column] for line in f.readlines()[1:]}
    return inodes


def check_gone(sockets):
    """Waits, because the sockets of a process disappear a moment after the process."""
    for _ in range(200_000):
        if not sockets & sockets_of_the_machine():
            return
        os.sched_yield()
    check(False, f"sockets {sockets & sockets_of_the_machine()} are left")


def digest(run):
    return result_of(run)["weights_digest"]


def story_processes_end_with_the_weights_of_threads_over_every_communicator(folder):
    for ranks, communicators in ((1, ["auto"]), (2, ["shm"]), (3, ["tcp", "hier"])):
        threads = os.path.join(folder, f"threads-{ranks}")
        check_code(fit(threads, "--ranks", ranks), 0)
        for by in communicators:
            run = os.path.join(folder, f"{by}-{ranks}")
            check_code(fit(run, "--ranks", ranks, *PLACED, "--communicator", by), 0)
            check_equal(digest(run), digest(threads), f"{ranks} ranks by {by}")
            check_equal(metrics_of(run), metrics_of(threads))
            for key in ("epochs", "steps", "samples", "metrics", "status", "failure"):
                check_equal(result_of(run)[key], result_of(threads)[key], key)
            check(result_of(run)["seconds"]["to_first_step"] > 0, result_of(run))
    check_none_left()


def story_the_hook_trace_of_processes_equals_that_of_threads(folder):
    entries_of = {}
    for placement in ("threads", "processes"):
        trace = os.path.join(folder, placement + ".jsonl")
        check_code(fit(os.path.join(folder, placement), "--placement", placement, "--trace-hooks", trace), 0)
        with open(trace, encoding="utf-8") as f:
            entries = [json.loads(line) for line in f]
        entries_of[placement] = [[e for e in entries if e["rank"] == rank] for rank in (0, 1)]
    check_equal(entries_of["processes"], entries_of["threads"])


def story_an_exception_is_reported_with_its_type_text_and_hook(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, *PLACED, "--fault", "throw@rank=1,hook=backward,step=9,what=drill"), 1)
    failure = result_of(run)["failure"]
    check_equal([failure[k] for k in ("type", "what", "rank", "hook", "step")],
                ["troupe::injected_fault", "drill", 1, "backward", 9], ended)
    check_none_left()


def story_a_dead_process_ends_the_run_and_is_named_with_its_signal(folder):
    for kind, name in (("abort", "SIGABRT"), ("exit", None)):
        run = os.path.join(folder, kind)
        ended = check_code(fit(run, *PLACED, "--fault", f"{kind}@rank=1,hook=backward,step=3"), 1)
        failure = result_of(run)["failure"]
        check_equal([failure[k] for k in ("type", "signal", "rank", "hook", "step")],
                    ["signal" if name else "exit", name, 1, "backward", 3], ended)
        check_in("rank 1", ended.err)
    check_none_left()


def story_a_run_ended_by_kill_9_resumes_to_the_same_weights(folder):
    whole, run = os.path.join(folder, "whole"), os.path.join(folder, "run")
    check_code(fit(whole), 0)
    traced = Traced(run, *PLACED, "--checkpoint-every-n-steps", "5",
                    "--fault", "stall@rank=1,hook=on_train_batch_start,step=12,ms=3600000")
    traced.wait_for("on_train_batch_start", rank=1, step=12)
    os.kill(rank_processes(traced.pid())[1], signal.SIGKILL)
    ended = traced.end()
    check_equal(ended.code, 1, ended)
    failure = result_of(run)["failure"]
    check_equal([failure[k] for k in ("type", "signal", "rank", "hook", "step")],
                ["signal", "SIGKILL", 1, "on_train_batch_start", 12], ended)
    check_code(fit(run, *PLACED, "--resume", "latest"), 0)
    check_equal(digest(run), digest(whole))
    check_none_left()


def story_sigint_to_all_processes_stops_at_a_step_boundary_and_resumes(folder):
    whole, run = os.path.join(folder, "whole"), os.path.join(folder, "run")
    check_code(fit(whole), 0)
    place = {"rank": 1, "step": 5}
    traced = Traced(run, *PLACED, hold=("on_train_batch_start", place))
    traced.wait_for("on_train_batch_start", **place)
    # To all processes, as a terminal sends it.
    for pid in rank_processes(traced.pid()).values():
        os.kill(pid, signal.SIGINT)
    traced.signal(signal.SIGINT)
    traced.wait_for_note("stopping")
    traced.release()
    ended = traced.end()
    check_equal(ended.code, 130, ended)
    check_equal(result_of(run)["status"], "stopped")
    check_code(fit(run, "--resume", "latest"), 0)
    check_equal(digest(run), digest(whole), "stopped as processes, resumed as threads")
    check_none_left()


def story_no_rank_process_outlives_a_killed_program(folder):
    traced = Traced(os.path.join(folder, "run"), *PLACED, "--max-epochs", "1000")
    traced.wait_for("on_train_batch_start", rank=1, step=5)
    traced.signal(signal.SIGKILL)
    traced.end()
    check_none_left()


def story_no_socket_or_file_is_left_when_all_processes_are_killed_at_once(folder):
    own = os.path.join(folder, "tmp")
    os.mkdir(own)
    for by in COMMUNICATORS:
        traced = Traced(os.path.join(folder, by), *PLACED, "--max-epochs", "1000", "--communicator", by, TMPDIR=own)
        traced.wait_for("on_train_batch_start", rank=1, step=5)
        pids = family(traced.pid())
        check(len(pids) >= 3, pids)
        sockets, paths = held_by(pids)
        check(sockets & sockets_of_the_machine(), f"{by}: {sockets}")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        traced.end()
        check_none_left(by)
        check_gone(sockets)
        check_equal(os.listdir(own), [], by)
        # No file is left where shared memory and temporary files are kept.
        left = [p for p in paths if p.startswith(("/dev/shm/", own)) and os.path.exists(p)]
        check_equal(left, [], by)


def story_a_rank_stopped_by_sigstop_is_named_and_killed(folder):
    def stopped(by):
        return fit(os.path.join(folder, by), *PLACED, "--communicator", by, "--fault",
                   "stop@rank=1,hook=backward,step=3")
    with concurrent.futures.ThreadPoolExecutor() as together:
        for by, ended in zip(COMMUNICATORS, together.map(stopped, COMMUNICATORS)):
            check_code(ended, 1)
            failure = result_of(os.path.join(folder, by))["failure"]
            check_equal([failure[k] for k in ("type", "signal", "rank", "hook", "step")],
                        ["deadline", "SIGSTOP", 1, "backward", 3], ended)
            check_in("was stopped (SIGSTOP)", failure["what"])
            check("left behind" not in ended.err, ended)
    check_none_left()


def story_a_communicator_that_cannot_connect_processes_is_refused(folder):
    ended = fit(os.path.join(folder, "run"), *PLACED, "--communicator", "inproc")
    check_equal(ended.code, 6, ended)
    check_in("auto, shm, tcp, hier", ended.err)
    names = {c["name"]: c for c in troupe("doctor", "--json").json()["communicators"]}
    for by in ("inproc", "shm", "tcp", "hier"):
        check(names[by]["available"] and "--placement" in names[by]["why"], names)


def story_sighup_to_the_process_group_is_handled_by_the_parent_only(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, *PLACED, "--max-epochs", 100_000, "--limit-val-batches", 0, before=["setsid"])
    traced.wait_for("training_step", rank=1, step=5)
    os.killpg(traced.pid(), signal.SIGHUP)
    ended = check_code(traced.end(), 129)
    check_in("SIGHUP: stopping", ended.err)
    check_equal((result_of(run)["status"], result_of(run)["failure"]), ("stopped", None))
    check_none_left(ended)


def story_a_rank_killed_in_its_teardown_costs_no_metrics(folder):
    for rank, restarts in ((0, 0), (1, 3)):
        run = os.path.join(folder, str(rank))
        ended = fit(run, *PLACED, "--max-restarts", restarts, "--fault", f"kill@rank={rank},hook=teardown")
        check(result_of(run)["metrics"]["train/loss"] > 0, ended)
        check_same_metrics(run)


def story_ranks_may_have_more_connections_than_a_shell_allows(folder):
    many = ["fit", "--ranks", 2, "--shards", 16, "--placement", "processes", "--communicator", "tcp", "--max-steps", 2,
            "--progress", "never"]
    check_code(troupe(*many, "--run-dir", os.path.join(folder, "run"), before=["prlimit", "--nofile=80:4096"]), 0)


if __name__ == "__main__":
    main(globals())
