"""Goal: fits with equal settings end in equal bits under any load.

Repeats fits and compares the digests of their weights. The placement of the ranks, the communicator, a fused or
separate step and a resume in between must not change the digest. Called by tests/same_bits.sh.
"""

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ["TROUPE_PROGRAM"]
AT_ONCE = 5 * (os.cpu_count() or 1) // 2
STEPS = 60
SETTINGS = ["--model", "mlp", "--data", "synthetic", "--set", "model.hidden=[16]", "--max-epochs", "100", "--quiet",
            "--limit-val-batches", "0", "--limit-test-batches", "0", "--num-sanity-val-batches", "0"]
# Each of these shapes has one expected digest.
SHAPES = list(itertools.product(("sgd", "adam", "adamw"), ("0.0", "0.2"), (1, 2, 3, 4)))
# Ways of running that must not change the digest. Processes are rarer because each of them loads LibTorch.
WAYS = [["--placement", "threads"], ["--placement", "threads", "--set", "strategy.fused_step=false"]] * 3 + [
    ["--placement", "processes"], ["--placement", "processes", "--communicator", "tcp"]]


def settings_of(shape, way):
    optimizer, dropout, ranks = shape
    return [*SETTINGS, "--optimizer", optimizer, "--set", f"model.dropout={dropout}", "--ranks", str(ranks), *way]


def run(arguments, folder):
    command = [PROGRAM, "fit", *arguments, "--run-dir", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return " ".join(command)


class Repeats:
    """State shared by all threads: the first digest of each shape, and the problems found."""

    def __init__(self, seconds, seed):
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._end = time.monotonic() + seconds
        self._first = {}  # shape -> (digest, command)
        self.runs = 0
        self.problems = []

    def next(self):
        with self._lock:
            if time.monotonic() > self._end or self.problems:
                return None
            return self._random.choice(SHAPES), self._random.choice(WAYS), self._random.randrange(4) == 0

    def ended(self, shape, digest, command):
        with self._lock:
            self.runs += 1
            expected, first = self._first.setdefault(shape, (digest, command))
            if digest != expected:
                self.problems.append(f"{shape}: {expected} of\n  {first}\nand {digest} of\n  {command}")

    def failed(self, error):
        with self._lock:
            self.problems.append(str(error))

    def shapes(self):
        return len(self._first)


def work(repeats, folder):
    for number in itertools.count():
        drawn = repeats.next()
        if drawn is None:
            return
        shape, way, resumed = drawn
        place = os.path.join(folder, str(number))
        settings = settings_of(shape, way)
        try:
            if resumed:
                run([*settings, "--max-steps", str(STEPS // 3)], place)
                command = run([*settings, "--max-steps", str(STEPS), "--resume", "latest"], place)
            else:
                command = run([*settings, "--max-steps", str(STEPS)], place)
            with open(os.path.join(place, "result.json"), encoding="utf-8") as result:
                repeats.ended(shape, json.load(result)["weights_digest"], command)
        except (RuntimeError, OSError) as error:
            repeats.failed(error)
        shutil.rmtree(place, ignore_errors=True)


def main(seconds, seed):
    repeats = Repeats(seconds, seed)
    print(f"{seconds} s of fits, {AT_ONCE} at a time, {len(SHAPES)} kinds "
          f"(bash tests/same_bits.sh {seconds} {seed})", flush=True)
    with tempfile.TemporaryDirectory(prefix="troupe-same-bits-") as folder:
        workers = []
        for number in range(AT_ONCE):
            own = os.path.join(folder, str(number))
            os.mkdir(own)
            workers.append(threading.Thread(target=work, args=(repeats, own)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for problem in repeats.problems:
        print(problem, file=sys.stderr)
    print(f"{repeats.runs} fits of {repeats.shapes()} kinds, {len(repeats.problems)} problems")
    return 1 if repeats.problems else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
