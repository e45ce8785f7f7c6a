"""Goal: `troupe watch` follows a run elsewhere until it ends, and says how it ended."""

import json
import os
import pty
import signal
import subprocess

from troupe_program import PROGRAM, Traced, check, check_code, check_equal, check_in, environment, fit, main, troupe


def watching(run, *arguments):
    return subprocess.Popen([PROGRAM, "watch", run, "--interval", "0.05", *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({}))


def running_fit(run):
    running = Traced(run, "--max-epochs", "100000", "--set", "log_every_n_steps=1")
    running.wait_for("backward", step=20)
    return running


def story_a_run_is_followed_to_its_end(folder):
    run = os.path.join(folder, "run")
    running = running_fit(run)
    watch = watching(run, "--json")
    seen = json.loads(watch.stdout.readline())
    check_equal(seen["state"], "running")
    check_equal(seen["live"]["pid"], running.pid())
    check(seen["live"]["step"] >= 19, seen)
    check_in("train/loss", seen["live"]["metrics"])
    check_equal(seen["live"]["epochs"], 100000)
    running.signal(signal.SIGTERM)
    check_code(running.end(), 143)
    out, err = watch.communicate()
    check_equal(watch.returncode, 0, err)
    last = json.loads(out.splitlines()[-1])
    check_equal(last["state"], "stopped")
    check_equal(last["result"]["status"], "stopped")


def story_text_has_a_line_per_look(folder):
    run = os.path.join(folder, "run")
    running = running_fit(run)
    watch = watching(run)
    line = watch.stdout.readline()
    check_in("active", line)
    check_in("step ", line)
    check_in("train/loss", line)
    running.signal(signal.SIGTERM)
    check_code(running.end(), 143)
    out, _ = watch.communicate()
    check_in(f"{run}: stopped", out)


def story_a_terminal_shows_lines_over_the_last_ones(folder):
    run = os.path.join(folder, "run")
    running = running_fit(run)
    terminal, end = pty.openpty()
    watch = subprocess.Popen([PROGRAM, "watch", run, "--interval", "0.05"], text=True, stdout=subprocess.PIPE,
                             stderr=end, env=environment({"TERM": "xterm"}))
    os.close(end)
    shown = b""
    while shown.count(b"\x1b[4A\x1b[J") < 3:
        shown += os.read(terminal, 4096)
    check_in(f"{run}: active (train), generation 1, ranks 2, shards 2", shown.decode())
    check_in("checkpoints ", shown.decode())
    running.signal(signal.SIGTERM)
    check_code(running.end(), 143)
    out, _ = watch.communicate()
    os.close(terminal)
    check_in(f"{run}: stopped", out)


def story_a_run_that_has_ended_is_shown_once(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    ended = check_code(troupe("watch", run), 0)
    check_equal(ended.out, troupe("status", run).out)
    check_code(troupe("watch", os.path.join(folder, "absent")), 3)
    check_code(troupe("watch", run, "--interval", "0"), 2)


if __name__ == "__main__":
    main(globals())
