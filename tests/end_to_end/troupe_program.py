"""Runs the built program for the scripts of this folder. Its path is in TROUPE_PROGRAM."""

import fcntl
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import traceback

PROGRAM = os.environ.get("TROUPE_PROGRAM")
# A fit of synthetic data that takes seconds: 2 ranks, 8 samples each per batch, 16 batches per epoch.
SMALL_DATA = ["--data", "synthetic", "--set", "data.samples=256", "--set", "data.evaluation_samples=40",
              "--batch-size", "8", "--max-epochs", "2", "--progress", "never"]
SMALL = [*SMALL_DATA, "--set", "model.hidden=[16]"]


class Ended:
    """How one call ended: code, out, err."""

    def __init__(self, arguments, code, out, err):
        self.arguments, self.code, self.out, self.err = arguments, code, out, err

    def json(self):
        return json.loads(self.out)

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def __str__(self):
        return (f"troupe {' '.join(self.arguments)}\nended with {self.code}\n"
                f"-- standard output\n{self.out}-- standard error\n{self.err}")


# In the environment of every process that this test starts, and of the processes that those start.
STARTED_BY = ("TEST_OF_TROUPE", str(os.getpid()))


def environment(variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TROUPE_")}
    return {**clean, **dict([STARTED_BY]), **variables}


def troupe(*arguments, before=(), **variables):
    """Runs the program to its end. `before` is a command that starts it, if any."""
    arguments = [str(a) for a in arguments]
    done = subprocess.run([*before, PROGRAM, *arguments], capture_output=True, text=True, check=False,
                          env=environment(variables))
    return Ended(arguments, done.returncode, done.stdout, done.stderr)


def fit(run, *arguments, **variables):
    """A small fit into the folder `run`."""
    return troupe("fit", "--run-dir", run, *SMALL, *arguments, **variables)


def is_at(entry, hook, where):
    return entry["hook"] == hook and all(entry[k] == v for k, v in where.items())


class Traced:
    """A running fit, or another command, whose hook trace is read: `wait_for` returns when a rank enters a hook.

    With `hold`, a hook and its position, no entry after that one is read before `release`. The pipe is full soon, so
    that the ranks wait a few batches later, however slow this script is. `release` may hold the program again: at the
    last of several such entries that are read in this order.
    """

    def __init__(self, run, *arguments, command="fit", hold=None, before=(), **variables):
        small = SMALL if command == "fit" else ()
        self.arguments = [str(a) for a in (command, "--run-dir", run, *small, *arguments)]
        self._folder = tempfile.TemporaryDirectory(prefix="troupe-trace-")
        fifo = os.path.join(self._folder.name, "trace")
        os.mkfifo(fifo)
        # A reader's end that does not wait for the program, which may end before it opens the trace.
        source = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, 4096)
        self._heard = []
        self._more = threading.Condition()
        self._ended = False
        self._notes = ""
        self._noted = threading.Condition()
        self._notes_end = False
        self._hold = [hold] if hold else []
        self._released = threading.Event()
        self._process = subprocess.Popen([*before, PROGRAM, *self.arguments, "--trace-hooks", fifo], text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(variables))
        threading.Thread(target=self._read, args=(source, os.pidfd_open(self._process.pid)), daemon=True).start()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._process.stderr:
            with self._noted:
                self._notes += line
                self._noted.notify_all()
        with self._noted:
            self._notes_end = True
            self._noted.notify_all()

    def _read(self, source, life):
        select.select([source, life], [], [])
        os.close(life)
        os.set_blocking(source, True)
        with open(source, encoding="utf-8") as trace:
            for line in trace:
                entry = json.loads(line)
                with self._more:
                    self._heard.append(entry)
                    self._more.notify_all()
                if self._hold and is_at(entry, *self._hold[0]):
                    self._hold.pop(0)
                    if not self._hold:
                        self._released.wait()
                        self._released.clear()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, hook, **where):
        """Waits for the first entry of `hook` at this position. Fails when the program ends before."""
        at = 0
        with self._more:
            while True:
                for entry in self._heard[at:]:
                    if is_at(entry, hook, where):
                        return entry
                at = len(self._heard)
                if self._ended:
                    fail(f"the program ended before {hook} at {where}\n{self.end()}")
                self._more.wait()

    def release(self, *hold):
        self._hold = list(hold)
        self._released.set()

    def pid(self):
        return self._process.pid

    def signal(self, number):
        self._process.send_signal(number)

    def wait_for_note(self, part):
        """Waits for a line of standard error that contains `part`."""
        with self._noted:
            self._noted.wait_for(lambda: part in self._notes or self._notes_end)
        check_in(part, self._notes)

    def end(self):
        out = self._process.stdout.read()
        self._process.wait()
        self._listener.join()
        return Ended(self.arguments, self._process.returncode, out, self._notes)


def result_of(run):
    with open(os.path.join(run, "result.json"), encoding="utf-8") as f:
        return json.load(f)


def checkpoints_of(run):
    folder = os.path.join(run, "checkpoints")
    return sorted(n for n in os.listdir(folder) if n != "latest") if os.path.isdir(folder) else []


def metrics_of(run, name="metrics.csv"):
    """metrics.csv, or figures.csv, as a list of dictionaries without empty cells."""
    with open(os.path.join(run, name), encoding="utf-8") as f:
        header, *rows = [line.rstrip("\n").split(",") for line in f]
    return [{k: float(v) for k, v in zip(header, row) if v} for row in rows]


def check_same_metrics(run):
    """result.json has the last values of metrics.csv, which has no row twice."""
    rows = metrics_of(run)
    last = {name: value for row in rows for name, value in row.items() if name not in ("step", "epoch")}
    check_equal(result_of(run)["metrics"], last, rows)
    check_equal(len({tuple(sorted(row.items())) for row in rows}), len(rows), rows)


def fail(text):
    raise AssertionError(text)


def check(holds, about=""):
    if not holds:
        fail(str(about))


def check_equal(what, expected, about=""):
    check(what == expected, f"{what!r}\nis not\n{expected!r}\n{about}")


def check_in(part, text, about=""):
    check(part in text, f"{part!r}\nis not in\n{text}\n{about}")


def check_code(ended, code):
    check(ended.code == code, f"exit code {ended.code}, expected {code}\n{ended}")
    return ended


def main(stories):
    """Runs every function of `stories` whose name begins with `story_`, each in a folder of its own."""
    if not PROGRAM:
        print("SKIPPED: TROUPE_PROGRAM names no program")
        sys.exit(77)
    wanted = sys.argv[1:]
    if absent := [name for name in wanted if name not in stories]:
        sys.exit(f"no such story: {', '.join(absent)}")
    failed = []
    for name, story in sorted(stories.items()):
        if not name.startswith("story_") or (wanted and name not in wanted):
            continue
        # A program of a story that failed may still write into its folder.
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-", ignore_cleanup_errors=True) as folder:
            try:
                story(folder)
                print(f"passed  {name}", flush=True)
            except Exception as error:
                failed.append(name)
                text = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
                print(f"FAILED  {name}\n{text}", flush=True)
    print(f"{len(failed)} failed" if failed else "all passed")
    sys.exit(bool(failed))


def is_hex_digest(text):
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None
