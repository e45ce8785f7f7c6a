"""Goal: a job whose ranks get signals all the time ends like an undisturbed run and leaves nothing behind.

Called by tests/churn.sh. The seed determines kinds, ranks and times of the signals. It does not determine at which step
a signal arrives.
"""

import collections
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from datetime import datetime

from elastic import check_generations
from processes import process_table
from troupe_program import PROGRAM, check, check_equal, environment

SETTINGS = ["--placement", "processes", "--data", "synthetic", "--set", "data.samples=4096",
            "--set", "data.evaluation_samples=64", "--set", "model.hidden=[32]", "--set", "model.dropout=0.2",
            "--batch-size", "8", "--optimizer", "adamw", "--learning-rate", "0.001", "--max-epochs", "100000",
            "--checkpoint-every-n-steps", "20", "--log-every-n-steps", "5", "--progress", "never"]
RESTARTS = ["--max-restarts", "1000000", "--spares", os.environ.get("TROUPE_CHURN_SPARES", "0")]
CALIBRATION_STEPS = 50
SLOWER = 3             # how much longer than the undisturbed run the disturbed one is expected to take
MARK = "CHURN_MARK"    # a variable of the environment that all processes of a fit inherit
GROWTH = {"descriptors": 3, "threads": 3, "mappings": 60}  # allowed between two halves of a process's life
GONE_SECONDS = 10      # how long the last process may take to disappear


# What a signal to a rank may lead to: the types and signals of the failures that it may cause. A rank ignores SIGTERM:
# it must not cause any failure. Here is the place for a rank that leaves: its generation ends without a failure.
KINDS = {
    "kill": (signal.SIGKILL, {("signal", "SIGKILL")}),
    # Without a signal when a deadline of the generation passes before the stop is noticed.
    "stop": (signal.SIGSTOP, {("deadline", "SIGSTOP"), ("deadline", None)}),
    "term": (signal.SIGTERM, set()),
}
Draw = collections.namedtuple("Draw", "gap kind process stopped")
Hit = collections.namedtuple("Hit", "time kind pid")


def draws(seed, ranks):
    """About one signal a second. Half of the stopped ranks continue; troupe has to kill the others."""
    drawn = random.Random(seed)
    sent = os.environ.get("TROUPE_CHURN_KINDS", "kill kill stop term").split()
    while True:
        kind = drawn.choice(sent)
        yield Draw(min(drawn.expovariate(1), 4), kind, drawn.randrange(ranks),
                   drawn.uniform(0.05, 1.5) if drawn.randrange(2) else None)


def wait_for_end(pid):
    """Returns at the end of the process, or after GONE_SECONDS."""
    try:
        one = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([one], [], [], GONE_SECONDS)
    os.close(one)


class Fit:
    """A running fit in a folder. Everything that it starts carries a mark."""

    def __init__(self, folder, name, ranks, steps, *arguments):
        self.run, self.temporary = os.path.join(folder, name), os.path.join(folder, name + ".tmp")
        os.mkdir(self.temporary)
        self._mark = f"{MARK}={uuid.uuid4()}"
        self._said = open(os.path.join(folder, name + ".err"), "w+", encoding="utf-8")
        self.command = [PROGRAM, "fit", "--run-dir", self.run, "--ranks", str(ranks), "--max-steps", str(steps),
                        *SETTINGS, *arguments]
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self._said,
                                        env=environment({"TMPDIR": self.temporary, **dict([self._mark.split("=")])}))

    def rank_processes(self):
        """The pid of each process of ranks, by its number."""
        return {int(words[2]): pid for pid, parent, words in process_table()
                if parent == self.process.pid and len(words) > 2 and words[1] == "--troupe-rank"}

    def left(self):
        """All processes that carry the mark."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if self._mark.encode() in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
        return found

    def said(self):
        self._said.seek(0)
        return self._said.read()

    def end(self, seconds):
        """Ends all processes of the fit that still run after this time. Returns their pids."""
        try:
            self.process.wait(seconds)
            for pid in self.left():
                wait_for_end(pid)
        except subprocess.TimeoutExpired:
            pass
        left = self.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        return left

    def result(self):
        with open(os.path.join(self.run, "result.json"), encoding="utf-8") as f:
            return json.load(f)

    def text(self, name):
        with open(os.path.join(self.run, name), encoding="utf-8") as f:
            return f.read()

    def files(self):
        return sorted(os.path.relpath(os.path.join(folder, name), self.run)
                      for folder, below, names in os.walk(self.run) for name in [*names, *below])


    def events(self):
        return [json.loads(line) for line in self.text("events.jsonl").splitlines()]

    def training_seconds(self):
        """From the first step that is possible to the end of the last one."""
        events = self.events()
        first = next(e["time"] for e in events if e["event"] == "generation_active")
        last = next(e["time"] for e in events if e["event"] == "teardown")
        return (datetime.fromisoformat(last[:-1]) - datetime.fromisoformat(first[:-1])).total_seconds()

    def steps_per_second(self):
        return self.result()["steps"] / self.training_seconds()


def medians(samples):
    return [statistics.median(column) for column in zip(*samples)]


class Usage:
    """What processes hold, sampled while they run."""

    def __init__(self):
        self._samples = collections.defaultdict(list)  # by pid: numbers of descriptors, threads and mappings
        self.shared = set()  # files in shared memory

    def sample(self, pid):
        try:
            targets = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
            with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
                mapped = [line.split(None, 5)[-1].strip() for line in f]
            self._samples[pid].append((len(targets), len(os.listdir(f"/proc/{pid}/task")), len(mapped)))
            self.shared |= {path for path in [*targets, *mapped] if path.startswith("/dev/shm/")}
        except OSError:
            pass  # it has ended

    def leaks(self):
        """Numbers whose median grew from the first to the second half of a process's life, above what processes usually
        have: a rank may need the first half to start."""
        usual = medians(one for samples in self._samples.values() for one in samples)
        for pid, samples in self._samples.items():
            half = len(samples) // 2
            if half < 5:
                continue
            for (what, most), common, before, now in zip(GROWTH.items(), usual, medians(samples[:half]),
                                                         medians(samples[half:])):
                if now > max(common, before) + most:
                    yield f"process {pid}: {what} grew from {before} to {now} over {len(samples)} signals"


class Churn:
    """Sends signals to the ranks of a fit until it ends."""

    def __init__(self, fit, seed, ranks):
        self._fit, self._draws = fit, draws(seed, ranks)
        self.hits = []
        self.usage = Usage()

    def run(self, seconds):
        deadline = time.monotonic() + seconds
        for draw in self._draws:
            try:
                self._fit.process.wait(draw.gap)
                return
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() > deadline:
                return
            pids = self._fit.rank_processes()
            for pid in [self._fit.process.pid, *pids.values()]:
                self.usage.sample(pid)
            oldest = sorted(pids)
            if draw.process < len(oldest):
                self._send(draw, pids[oldest[draw.process]])

    def _send(self, draw, pid):
        try:
            one = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(one, KINDS[draw.kind][0])
        except ProcessLookupError:
            os.close(one)
            return
        self.hits.append(Hit(time.time(), draw.kind, pid))
        if draw.kind == "stop" and draw.stopped:
            threading.Timer(draw.stopped, self._continue, (one,)).start()
        else:
            os.close(one)

    def _continue(self, one):
        try:
            signal.pidfd_send_signal(one, signal.SIGCONT)
        except ProcessLookupError:
            pass
        os.close(one)


def check_causes(result, hits):
    """Each generation ended because of a signal, and no signal ended two."""
    allowed = collections.Counter(kind for hit in hits for kind in KINDS[hit.kind][1])
    allowed["left"] = sum(hit.kind == "term" for hit in hits)
    ended = [g["ended_by"] for g in result["generations"][:-1]]
    counted = collections.Counter((one["type"], one["signal"]) if isinstance(one, dict) else one for one in ended)
    for kind, count in counted.items():
        check(count <= allowed[kind], f"{count} generations ended by {kind}, "
              f"but only {allowed[kind]} signals may have caused that")
    harmful = [hit for hit in hits if KINDS[hit.kind][1]]
    check(result["restarts"] <= len(harmful), f"{result['restarts']} restarts after {len(harmful)} signals")


def check_kills_are_known(fit, hits):
    """The job reported the end of each killed process, unless the fit was over."""
    failed = sum(e["event"] in ("rank_failed", "survivor") for e in fit.events())
    # A process that was asked to leave may have had no rank any more.
    kills = sum(hit.kind == "kill" for hit in hits) - sum(hit.kind == "term" for hit in hits)
    check(failed >= kills, f"at least {kills} ranks were killed, events.jsonl has {failed} failures")


def check_equal_end(plain, disturbed):
    expected, result = plain.result(), disturbed.result()
    check_equal((result["status"], result["failure"]), ("finished", None))
    for key in ("weights_digest", "steps", "epochs", "samples", "metrics"):
        check_equal(result[key], expected[key], key)
    check_equal(disturbed.text("metrics.csv"), plain.text("metrics.csv"), "metrics.csv")


def check_files(plain, disturbed, usage):
    check_equal(disturbed.files(), plain.files(), "files of the run's folder")
    check_equal(os.listdir(disturbed.temporary), [], "files in TMPDIR")
    left = [path for path in usage.shared if os.path.exists(path)]
    check_equal(left, [], "files in shared memory")


def problems_of(plain, disturbed, churn, left):
    """Runs all checks, so that one violation does not hide another."""
    result = disturbed.result
    checks = [
        lambda: check_equal(left, [], "processes that were left, or that did not end in time"),
        lambda: check_equal(disturbed.process.returncode, 0, "exit code"),
        lambda: check_equal_end(plain, disturbed),
        lambda: check_generations(result()),
        lambda: check(all(g["steps_redone"] in (0, 1) for g in result()["generations"]), "more than one step redone"),
        lambda: check_causes(result(), churn.hits),
        lambda: check_kills_are_known(disturbed, churn.hits),
        lambda: check_files(plain, disturbed, churn.usage),
        lambda: check_equal(list(churn.usage.leaks()), [], "growth")]
    for one in checks:
        try:
            one()
        except (AssertionError, OSError, ValueError, KeyError) as error:
            yield f"{type(error).__name__}: {error}"


def undisturbed(folder, name, ranks, steps):
    one = Fit(folder, name, ranks, steps)
    left = one.end(600)
    check(one.process.returncode == 0 and not left,
          f"{' '.join(one.command)}\nended with {one.process.returncode}, left {left}\n{one.said()}")
    return one


def steps_for(calibration, took, seconds):
    """The steps of two runs, one of them disturbed, that take this time together."""
    start = took - calibration.training_seconds()
    return max(CALIBRATION_STEPS, int(calibration.steps_per_second() * (seconds - 2 * start) / (1 + SLOWER)))


def report(plain, disturbed, hits):
    counts = collections.Counter(hit.kind for hit in hits)
    result = disturbed.result()
    print(f"{result['steps']} steps; signals: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}; "
          f"{result['restarts']} restarts, {sum(g['steps_redone'] for g in result['generations'])} steps redone\n"
          f"steps per second: {disturbed.steps_per_second():.1f} disturbed, {plain.steps_per_second():.1f} undisturbed")


def main(seconds, seed, ranks):
    print(f"{seconds} s with {ranks} ranks and a signal a second (bash tests/churn.sh {seconds} {seed})", flush=True)
    folder = tempfile.mkdtemp(prefix="troupe-churn-")
    began = time.monotonic()
    calibration = undisturbed(folder, "calibration", ranks, CALIBRATION_STEPS)
    took = time.monotonic() - began
    steps = steps_for(calibration, took, seconds - took)
    plain = undisturbed(folder, "undisturbed", ranks, steps)
    disturbed = Fit(folder, "disturbed", ranks, steps, *RESTARTS)
    churn = Churn(disturbed, seed, ranks)
    churn.run(10 * seconds)
    problems = list(problems_of(plain, disturbed, churn, disturbed.end(60)))
    for hit in churn.hits if problems else ():
        print(hit, file=sys.stderr)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"{len(problems)} violations; the files are in {folder}", file=sys.stderr)
        return 1
    report(plain, disturbed, churn.hits)
    print(f"no violation in {time.monotonic() - began:.0f} s")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
