"""Goal: status, stop and scale reach a running fit through the socket in its folder. What is wrong with a request is
answered, and never disturbs the job. SIGTERM to the process of one rank does not end the job."""

import json
import os
import signal
import socket
import stat
import subprocess

from processes import check_none_left, rank_processes
from troupe_program import (Traced, check, check_code, check_equal, check_in, checkpoints_of, fit, main, result_of,
                            troupe)

PLACED = ["--placement", "processes"]
ENDLESS = ["--max-epochs", 100_000, "--limit-val-batches", 0]
# Ranks in processes run ahead of the trace by some steps. Steps of this model take milliseconds, so that a fit of 320
# steps is not over at once, and the script reads the trace as fast as it is written.
SLOW = ["--set", "model.hidden=[1024,1024]", "--limit-val-batches", 0]
LONG = ["--max-epochs", 20, *SLOW]
PLACE = ("training_step", {"rank": 0, "step": 9})


def held(run, *arguments, **more):
    """A fit whose ranks wait a few batches after step 9, until `release`."""
    traced = Traced(run, *arguments, hold=PLACE, **more)
    traced.wait_for(PLACE[0], **PLACE[1])
    return traced


def running(run, *arguments, **more):
    """A fit that has begun step 9."""
    traced = Traced(run, *arguments, **more)
    traced.wait_for(PLACE[0], **PLACE[1])
    return traced


def digest(run):
    return result_of(run)["weights_digest"]


def connected(run):
    """The path may be longer than an address, and this one leads through the open folder."""
    folder = os.open(run, os.O_PATH | os.O_DIRECTORY)
    to = socket.socket(socket.AF_UNIX)
    to.connect(f"/proc/self/fd/{folder}/control.sock")  # waits for a place
    to.settimeout(60)
    os.close(folder)
    return to


def lines_from(to):
    return to.makefile("r", encoding="utf-8")


def asked(to, text):
    to.sendall(text.encode() + b"\n")
    return json.loads(lines_from(to).readline())


def check_ended_by_stop(ended, run):
    check_code(ended, 75)
    result = result_of(run)
    check_equal((result["status"], result["failure"]), ("stopped", None), ended)
    check_equal(checkpoints_of(run)[-1], f"step-{result['steps']:08}")
    check(not os.path.exists(os.path.join(run, "control.sock")), "the socket is left")


def story_another_host_with_the_same_folder_names_the_host_of_the_program(folder):
    elsewhere = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$0" "$@"']
    if subprocess.run([*elsewhere, "true"], check=False).returncode != 0:
        print("no other name of the host here")
        return
    run = os.path.join(folder, "run")
    path, traced = os.path.join(run, "control.sock"), held(run)
    os.rename(path, path + ".hidden")  # no other host can connect to it
    status = troupe("status", run, "--json", before=elsewhere).json()
    check_equal((status["state"], status["other_host"], status["live"]), ("running", socket.gethostname(), None))
    check_in(f"its program is on host {socket.gethostname()}", troupe("status", run, before=elsewhere).out)
    check_in(f"is on host {socket.gethostname()}: call troupe stop there",
             check_code(troupe("stop", run, before=elsewhere), 3).err)
    check_in(f"another program is running there, on host {socket.gethostname()}",
             check_code(fit(run, "--resume", "latest", before=elsewhere), 3).err)
    os.rename(path + ".hidden", path)
    check_equal(troupe("status", run, "--json").json()["other_host"], None)
    traced.release()
    check_code(traced.end(), 0)


def story_stop_ends_the_fit_with_a_checkpoint_and_it_can_be_resumed(folder):
    plain, run = os.path.join(folder, "plain"), os.path.join(folder, "run")
    check_code(fit(plain), 0)
    traced = held(run)
    check_equal(check_code(troupe("stop", run), 0).out, f"{run}: stopping\n")
    traced.wait_for_note("asked to stop: stopping at the next step boundary")
    check_equal(troupe("status", run, "--json").json()["live"]["state"], "stopping")
    check_code(troupe("stop", run), 0)  # changes nothing
    traced.release()
    check_ended_by_stop(traced.end(), run)
    check(9 <= result_of(run)["steps"] < 32, result_of(run))
    check_code(fit(run, "--resume", "latest"), 0)
    check_equal(digest(run), digest(plain))


def story_stop_ends_ranks_in_processes_and_they_can_be_resumed(folder):
    plain, run = os.path.join(folder, "plain"), os.path.join(folder, "run")
    check_code(fit(plain, *LONG), 0)
    traced = held(run, *LONG, *PLACED)
    check_code(troupe("stop", run), 0)
    traced.release()
    check_ended_by_stop(traced.end(), run)
    check_code(fit(run, *LONG, "--resume", "latest"), 0)
    check_equal(digest(run), digest(plain))
    check_none_left()


def story_stop_now_ends_the_fit_at_once_and_says_what_is_saved(folder):
    run = os.path.join(folder, "run")
    traced = Traced(run, "--detect-seconds", "0.1", "--fault", "stall@rank=0,hook=training_step,step=21,ms=3600000")
    traced.wait_for("training_step", rank=0, step=21)
    while "step-00000016" not in checkpoints_of(run):
        os.sched_yield()
    check_equal(check_code(troupe("stop", run, "--now"), 0).out, f"{run}: ending now\n")
    ended = check_code(traced.end(), 75)
    result = result_of(run)
    check_equal((result["status"], result["failure"]["type"]), ("failed", "aborted"), ended)
    check_in("saved up to step 16 of 2", ended.err)
    check("ended at once after" in ended.out, ended)


def story_status_asks_the_program_while_it_lives_and_reads_the_files_then(folder):
    run = os.path.join(folder, "run")
    traced = running(run, *ENDLESS, *SLOW, *PLACED, "--ranks", 3, "--max-restarts", 5, "--fault",
                     "kill@rank=1,hook=training_step,step=4")
    said = check_code(troupe("status", run, "--json"), 0).json()
    check_equal(said["state"], "running")
    live = said["live"]
    check_equal({key: live[key] for key in ("pid", "stage", "state", "generation", "ranks", "shards", "restarts",
                                            "restarts_left")},
                {"pid": traced.pid(), "stage": "train", "state": "active", "generation": 2, "ranks": 3, "shards": 3,
                 "restarts": 1, "restarts_left": 4})
    check(live["step"] >= 8, live)
    check(live["failures"] >= 1 and len(live["newest_failures"]) == live["failures"], live)
    check(any(f["rank"] == 1 and "SIGKILL" in f["what"] for f in live["newest_failures"]), live)
    shown = check_code(troupe("status", run), 0).out
    for part in ("active (train), generation 2, ranks 3", "restarts 1, left 4", "SIGKILL"):
        check_in(part, shown)
    check_code(troupe("stop", run), 0)
    check_ended_by_stop(traced.end(), run)
    said = check_code(troupe("status", run, "--json"), 0).json()
    check_equal((said["state"], said["live"]), ("stopped", None))
    check_equal(said["result"]["generations"][0]["ended_by"]["signal"], "SIGKILL")
    check_none_left()


def story_the_rate_of_a_run_is_known_after_a_while(folder):
    run = os.path.join(folder, "run")
    traced = running(run, *ENDLESS)
    live = {"samples_per_second": None}
    while live["samples_per_second"] is None:
        live = troupe("status", run, "--json").json()["live"]
    check(live["samples_per_second"] > 0, live)
    check_equal(live["failures"], 0)
    check_code(troupe("stop", run), 0)
    check_ended_by_stop(traced.end(), run)


def story_scale_is_passed_on_or_refused_with_a_reason(folder):
    threads, placed = os.path.join(folder, "threads"), os.path.join(folder, "placed")
    traced = held(threads)
    check_in("begin the run with --placement processes", check_code(troupe("scale", threads, "--ranks", 1), 3).err)
    check_in("give an integer from 1 on", check_code(troupe("scale", threads, "--ranks", 0), 3).err)
    traced.release()
    check_code(traced.end(), 0)
    fixed = os.path.join(folder, "fixed")
    traced = held(fixed, *PLACED)
    check_in("begin it with --max-restarts", check_code(troupe("scale", fixed, "--ranks", 1), 3).err)
    traced.release()
    check_code(traced.end(), 0)
    traced = held(placed, *PLACED, "--max-restarts", 2)
    check_in("with 99 ranks: the run has 2 shards", check_code(troupe("scale", placed, "--ranks", 99), 3).err)
    check_equal(check_code(troupe("scale", placed, "--ranks", 1), 0).out, f"{placed}: asked for 1 ranks\n")
    traced.wait_for_note("asked to go on with 1 rank")
    traced.release()
    check_code(traced.end(), 0)
    check_equal(digest(placed), digest(threads))
    check_none_left()


def story_scale_in_the_test_after_a_fit_is_refused(folder):
    run = os.path.join(folder, "run")
    place = {"rank": 0, "batch": 3}
    traced = Traced(run, *PLACED, "--max-restarts", 2, "--set", "data.evaluation_samples=8000", "--limit-val-batches",
                    0, hold=("on_test_batch_start", place))
    traced.wait_for("on_test_batch_start", **place)
    check_in("the fit has ended", check_code(troupe("scale", run, "--ranks", 1), 3).err)
    traced.release()
    ended = check_code(traced.end(), 0)
    check("asked to go on" not in ended.err, ended)
    check_none_left()


def story_a_run_that_does_not_live_takes_no_request(folder):
    run = os.path.join(folder, "run")
    check_in("no program runs in", check_code(troupe("stop", run), 3).err)
    traced = held(run)
    traced.signal(signal.SIGKILL)
    traced.release()
    traced.end()
    check(os.path.exists(os.path.join(run, "control.sock")), "a killed program removes no socket")
    check_in("no program runs in", check_code(troupe("scale", run, "--ranks", 2), 3).err)
    said = check_code(troupe("status", run, "--json"), 0).json()
    check_equal((said["state"], said["live"]), ("interrupted", None))
    traced = held(run, "--resume", "latest")
    check_equal(troupe("status", run, "--json").json()["live"]["state"], "active")
    traced.release()
    check_code(traced.end(), 0)


def story_a_stopped_program_is_named_and_status_reads_the_files(folder):
    run = os.path.join(folder, "run")
    traced = held(run)
    traced.signal(signal.SIGSTOP)
    said = check_code(troupe("status", run, "--json"), 0)
    check_equal((said.json()["state"], said.json()["live"]), ("running", None))
    check_in("has not answered within 10 s", said.err)
    traced.signal(signal.SIGCONT)
    traced.release()
    check_code(traced.end(), 0)


def story_a_folder_with_a_long_path_has_a_socket_of_this_user_only(folder):
    run = os.path.join(folder, *["a-name-of-forty-characters-in-a-long-path"] * 5)
    traced = held(run)
    mode = os.stat(os.path.join(run, "control.sock")).st_mode
    check(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode))
    check_code(troupe("stop", run), 0)
    traced.release()
    check_ended_by_stop(traced.end(), run)


def story_a_file_in_place_of_the_socket_is_kept_and_the_run_goes_on(folder):
    run = os.path.join(folder, "run")
    os.mkdir(run)
    with open(os.path.join(run, "control.sock"), "w", encoding="utf-8") as f:
        f.write("mine")
    ended = check_code(fit(run), 0)
    check_in("control.sock is there and is no socket: remove it", ended.err)
    with open(os.path.join(run, "control.sock"), encoding="utf-8") as f:
        check_equal(f.read(), "mine")


def story_wrong_requests_are_answered_and_do_not_disturb_the_job(folder):
    plain, run = os.path.join(folder, "plain"), os.path.join(folder, "run")
    check_code(fit(plain), 0)
    traced = held(run)
    with connected(run) as to:
        for text, part in (("", "one JSON object"), ("no json", "one JSON object"), ("[1]", "one JSON object"),
                           ('{"command": 7}', "there are: status, stop, scale"),
                           ('{"command": "fly"}', 'no command "fly"; there are: status, stop, scale'),
                           ('{"command": "stop", "now": 1}', "true or false"),
                           ('{"command": "scale"}', "give an integer from 1 on"),
                           ('{"command": "scale", "ranks": 1e9}', "give an integer from 1 on"),
                           ("[" * 2000, "one JSON object"), ("\x00\x7f", "one JSON object")):
            answer = asked(to, text)
            check_in(part, answer["error"], text)
            check("ok" not in answer, answer)
        check_equal(asked(to, '{"command":"status"}')["ok"], True)
        # Two requests in one packet get two answers.
        to.sendall(b'{"command":"status"}\n{"command":"status"}\n')
        answers = lines_from(to)
        check_equal([json.loads(answers.readline())["ok"] for _ in range(2)], [True, True])
    with connected(run) as to:
        to.sendall(b"x" * 5000)
        answers = lines_from(to)
        check_in("at most 4096 bytes", json.loads(answers.readline())["error"])
        check_equal(answers.readline(), "")
    traced.release()
    check_code(traced.end(), 0)
    check_equal(digest(run), digest(plain))


def story_slow_and_many_clients_block_neither_the_job_nor_each_other(folder):
    run = os.path.join(folder, "run")
    traced = held(run)
    deaf = connected(run)
    deaf.setblocking(False)
    try:
        while True:  # until its answers and its requests fill the sockets' buffers
            deaf.sendall(b'{"command":"status"}\n' * 100)
    except BlockingIOError:
        pass
    silent = [connected(run) for _ in range(20)]
    # The connections that have been silent for longest are closed for newer ones.
    check_equal(silent[0].recv(1), b"")
    check_equal(asked(silent[-1], '{"command":"status"}')["ok"], True)
    check_code(troupe("stop", run), 0)
    traced.release()
    check_ended_by_stop(traced.end(), run)
    for one in (deaf, *silent):
        one.close()


def story_sigterm_to_the_process_of_one_rank_does_not_end_the_job(folder):
    plain, run = os.path.join(folder, "plain"), os.path.join(folder, "run")
    check_code(fit(plain, *LONG), 0)
    traced = running(run, *LONG, *PLACED)
    os.kill(rank_processes(traced.pid())[1], signal.SIGTERM)
    check_code(traced.end(), 0)
    check_equal(digest(run), digest(plain))
    check_none_left()


def story_sigterm_to_the_program_and_all_its_ranks_stops_the_fit_with_a_checkpoint(folder):
    run = os.path.join(folder, "run")
    traced = running(run, *ENDLESS, *SLOW, *PLACED, before=["setsid"])
    os.killpg(traced.pid(), signal.SIGTERM)
    check_code(traced.end(), 143)
    result = result_of(run)
    check_equal((result["status"], checkpoints_of(run)[-1]), ("stopped", f"step-{result['steps']:08}"))
    check_none_left()


if __name__ == "__main__":
    main(globals())
