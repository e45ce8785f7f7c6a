"""Goal: `troupe watch` follows a run elsewhere until it ends, and says how it ended. On a terminal a fit and a watch
show each rank."""

import json
import os
import pty
import re
import signal
import subprocess
import threading

from troupe_program import (PROGRAM, SMALL, Traced, check, check_code, check_equal, check_in, environment, fail, fit,
                            main, metrics_of, result_of, troupe)


def watching(run, *arguments):
    return subprocess.Popen([PROGRAM, "watch", run, "--interval", "0.05", *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({}))


class OnTerminal:
    """A call whose standard error is a terminal. `wait_for` waits until it shows what a pattern describes."""

    def __init__(self, *arguments):
        self._terminal, end = pty.openpty()
        self._process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=end,
                                         env=environment({"TERM": "xterm"}))
        os.close(end)
        self._shown, self._more, self._ended = b"", threading.Condition(), False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                more = os.read(self._terminal, 4096)
            except OSError:  # the program has closed it
                more = b""
            with self._more:
                self._shown += more
                self._ended = not more
                self._more.notify_all()
            if not more:
                return

    def wait_for(self, pattern):
        with self._more:
            while not (found := re.search(pattern, self._shown)):
                if self._ended:
                    fail(f"{pattern!r} was not shown: {self._shown[-4000:]!r}")
                self._more.wait()
            return found

    def end(self, number=None):
        """Its exit code."""
        if number:
            self._process.send_signal(number)
        self._process.communicate()
        self._reader.join()
        os.close(self._terminal)
        return self._process.returncode


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


def story_the_test_of_a_fit_is_in_its_last_epoch(folder):
    run = os.path.join(folder, "run")
    running = Traced(run, "--fault", "stall@rank=0,hook=test_step,ms=600000")
    running.wait_for("test_step")
    watch = watching(run)
    line = watch.stdout.readline()
    while "step 32" not in line:
        check(line, "the watch ended")
        line = watch.stdout.readline()
    check_in("epoch 2/2  ", line)
    running.signal(signal.SIGKILL)
    running.end()
    watch.communicate()


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


RANKS = rb"rank 0 +\d+ samples/s  waiting +\d+\.\d %\x1b\[K\r\nrank 1 +\d+ samples/s  waiting +\d+\.\d %\x1b\[K"


def story_a_fit_on_a_terminal_shows_each_rank(folder):
    run = os.path.join(folder, "run")
    endless = ["--max-epochs", "100000", "--set", "log_every_n_steps=1"]
    fitting = OnTerminal("fit", "--run-dir", run, *SMALL, *endless, "--progress", "auto")
    fitting.wait_for(rb"\r\x1b\[2Aepoch [^\n]*loss [^\n]*\r\n" + RANKS)
    looking = OnTerminal("watch", run, "--interval", "0.05")
    looking.wait_for(rb"samples/s[^\n]*\n[^\n]*train/loss[^\n]*\nrank 0 [^\n]*%\r\nrank 1 [^\n]*%\r\ncheckpoints")
    check_equal(fitting.end(signal.SIGTERM), 143)
    check_equal(looking.end(), 0)
    # They are for the terminal alone, unless they are asked for.
    check_equal([name for row in metrics_of(run) for name in row if name.startswith("rank/")], [])
    check_equal([name for name in result_of(run)["metrics"] if name.startswith("rank/")], [])
    asked = os.path.join(folder, "asked")
    check_code(fit(asked, "--callback", "ranks", "--set", "log_every_n_steps=4"), 0)
    check(all(0 <= row["rank/1/waiting_share"] <= 1 for row in metrics_of(asked) if "train/loss" in row), asked)


def story_a_note_takes_the_place_of_the_lines(folder):
    run = os.path.join(folder, "run")
    running = running_fit(run)
    with open(os.path.join(run, "result.json"), "w", encoding="utf-8") as f:
        f.write("{")
    looking = OnTerminal("watch", run, "--interval", "0.05")
    found = looking.wait_for(rb"checkpoints [^\n]*\n([^\n]*)note: [^\n]*\n")
    running.signal(signal.SIGTERM)
    check_code(running.end(), 143)
    check_equal(looking.end(), 0)
    check_equal(found[1], b"\x1b[4A\x1b[J\r\x1b[K")


def story_a_run_that_has_ended_is_shown_once(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    ended = check_code(troupe("watch", run), 0)
    check_equal(ended.out, troupe("status", run).out)
    check_code(troupe("watch", os.path.join(folder, "absent")), 3)
    check_code(troupe("watch", run, "--interval", "0"), 2)


if __name__ == "__main__":
    main(globals())
