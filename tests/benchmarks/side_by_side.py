"""Runs Troupe and its peers in turn, round by round, and prints one table of ratios.

Called by tests/bench.sh, which installs what this needs. Each measurement is a line of JSON in the results' file."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "peers")
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1K": KIB, "64K": 64 * KIB, "1M": MIB, "16M": 16 * MIB, "100M": 100 * MIB}
MODELS = {"mlp": (128, ["--model", "mlp", "--set", "model.hidden=[1024,1024]"]), "cnn": (64, ["--model", "cnn"])}
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
TIME_LIMIT = 300  # seconds of one call: what hangs is a finding, not a wait


class failed(Exception):
    """A call that gave no figures; its text says why."""


def call(command, environment=None):
    """The objects that a call prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
    except subprocess.TimeoutExpired:
        raise failed(f"no end within {TIME_LIMIT} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise failed(said[-1] if said else f"exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class bench:
    def __init__(self, given):
        self.given = given
        self.results = open(given.results, "w", encoding="utf-8")
        self.seen = {}    # (subject, what) to figures by round
        self.broken = {}  # (subject, kind) to why

    def python(self, script, *arguments):
        return call([self.given.python, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                     os.path.join(PEERS, script), *map(str, arguments)])

    def troupe(self, *arguments, before=()):
        return call([*before, self.given.troupe, "bench", *arguments, "--json"])

    def note(self, round_number, subject, what, figure):
        self.seen.setdefault((subject, what), {})[round_number] = figure
        line = {"schema": "troupe.side_by_side/1", "round": round_number, "subject": subject, "what": what,
                "load": os.getloadavg()[0], **figure}
        print(json.dumps(line), file=self.results, flush=True)

    def attempt(self, subject, kind, measure):
        """A subject that fails once is left out from then on, with the reason below the table."""
        if (subject, kind) in self.broken:
            return
        print(f"  {subject}, {kind}", file=sys.stderr, flush=True)
        try:
            measure()
        except failed as error:
            self.broken[subject, kind] = str(error)
            print(f"    left out: {error}", file=sys.stderr, flush=True)

    # Collectives: seconds of one all_reduce of two ranks, by size.

    def collective(self, round_number, subject, rows):
        names = {size: name for name, size in SIZES.items()}
        for row in rows:
            self.note(round_number, subject, names[row["bytes"]], {"seconds": row["seconds"]})
            if subject == "troupe inproc":
                self.note(round_number, "bare loop", names[row["bytes"]], {"seconds": row["bare_loop_seconds"]})

    def collectives(self, round_number):
        sizes = [str(SIZES[name]) for name in self.given.sizes]
        flags = ["collectives", "--bytes", ",".join(sizes), "--rounds", "3"]
        for name, more in self.given.communicators:
            before = MPIRUN if name == "mpi" else ()
            self.attempt(f"troupe {name}", "all_reduce", lambda name=name, more=more, before=before: self.collective(
                round_number, f"troupe {name}", self.troupe(*flags, "--communicator", name, *more, before=before)))
        self.attempt("Open MPI", "all_reduce", lambda: self.collective(
            round_number, "Open MPI", call([*MPIRUN, self.given.mpi_program, *sizes])))
        self.attempt("Gloo, Python", "all_reduce", lambda: self.collective(
            round_number, "Gloo, Python", self.python("gloo_all_reduce.py", *sizes)))

    # Training: samples per second of two ranks, one thread each.

    def training(self, round_number, model):
        batch, flags = MODELS[model]
        steps = self.given.steps
        ours = ["fit", *flags, "--batch-size", str(batch), "--max-steps", str(steps), "--rounds", "1"]
        for name, more in self.given.placements:
            def measure(name=name, more=more):
                row = self.troupe(*ours, *more)[0]
                self.note(round_number, f"troupe {name}", model,
                          {key: row[key] for key in ("samples_per_second", "speed_up", "waiting_share")})
            self.attempt(f"troupe {name}", model, measure)
        for kind, subject in (("ddp", "Python DDP"), ("lightning", "Lightning")):
            self.attempt(subject, model, lambda kind=kind, subject=subject: self.note(
                round_number, subject, model, self.python("train.py", kind, model, batch, steps)[0]))

    def run(self):
        for round_number in range(self.given.rounds):
            print(f"round {round_number + 1} of {self.given.rounds}", file=sys.stderr, flush=True)
            self.collectives(round_number)
            for model in MODELS:
                self.training(round_number, model)

    # The table.

    def median(self, subject, what, field):
        figures = [one[field] for one in self.seen.get((subject, what), {}).values() if field in one]
        return statistics.median(figures) if figures else None

    def ratios(self, subject, base, what, field, more_is_better):
        """Round by round, so that a slow minute of the machine hits both."""
        mine, theirs = self.seen.get((subject, what), {}), self.seen.get((base, what), {})
        values = [mine[r][field] / theirs[r][field] for r in mine if r in theirs and theirs[r][field] > 0]
        return values if more_is_better else [1 / value for value in values]

    def cell(self, subject, base, what, field, more_is_better, shown):
        middle = self.median(subject, what, field)
        if middle is None:
            return "-"
        ratios = self.ratios(subject, base, what, field, more_is_better)
        if not ratios or subject == base:
            return shown(middle)
        low, high = min(ratios), max(ratios)
        return f"{shown(middle)}  x{statistics.median(ratios):.3g} ({low:.3g}..{high:.3g})"

    def table(self, title, subjects, columns, base, field, more_is_better, shown):
        rows = [[title, *columns]]
        for subject in subjects:
            cells = [self.cell(subject, base, what, field, more_is_better, shown) for what in columns]
            if any(cell != "-" for cell in cells):
                rows.append([subject, *cells])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        rows.insert(1, ["-" * width for width in widths])
        for row in rows:
            print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |")
        print()

    def tell(self, began):
        subjects = list(dict.fromkeys(subject for subject, _ in self.seen))
        print(f"\nMedians of {self.given.rounds} rounds in turn; in parentheses the lowest and the highest round. "
              f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.time() - began:.0f} s.\n")
        print("all_reduce(sum, float32), 2 ranks: time, and how near it comes to the bare loop (1 is as fast).\n")
        self.table("", ["bare loop", *[s for s in subjects if s != "bare loop"]], self.given.sizes, "bare loop",
                   "seconds", False, duration)
        print("Training on Fashion-MNIST, 2 ranks, one thread each: samples/s, and over Python's DDP.\n")
        self.table("", subjects, list(MODELS), "Python DDP", "samples_per_second", True, lambda x: f"{x:.0f}")
        print("Of the same runs: speed-up over one rank, and the share of a step spent waiting.\n")
        ours = [s for s in subjects if s.startswith("troupe")]
        self.table("speed-up", ours, list(MODELS), None, "speed_up", True, lambda x: f"{x:.2f}")
        self.table("waiting", ours, list(MODELS), None, "waiting_share", True, lambda x: f"{100 * x:.1f} %")
        for (subject, kind), why in self.broken.items():
            print(f"left out: {subject}, {kind}: {why}")


def duration(seconds):
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def arguments():
    reader = argparse.ArgumentParser(description=__doc__)
    for name in ("--troupe", "--python", "--mpi-program", "--results"):
        reader.add_argument(name, required=True)
    reader.add_argument("--quick", action="store_true", help="2 rounds, fewer sizes and steps")
    given = reader.parse_args()
    given.rounds = 2 if given.quick else 5
    given.steps = 40 if given.quick else 150
    given.sizes = ["1K", "1M", "16M"] if given.quick else list(SIZES)
    return given


def usable(given):
    """Which communicators this program has, and where fit's ranks can live with them."""
    said = subprocess.run([given.troupe, "doctor", "--json"], capture_output=True, text=True, check=True)
    names = [one["name"] for one in json.loads(said.stdout)["communicators"] if one["available"]]
    given.communicators = [(name, []) for name in names if name in ("inproc", "shm", "tcp")] + [("mpi", [])]
    given.placements = [("inproc", ["--communicator", "inproc"])]
    given.placements += [(f"{name}, processes", ["--communicator", name, "--placement", "processes"])
                         for name in names if name in ("shm", "tcp")]


def main():
    given = arguments()
    usable(given)
    busy = os.getloadavg()[0]
    if busy > 0.3:
        print(f"other work is running here (load {busy:.1f}): figures will be worse than they are", file=sys.stderr)
    began = time.time()
    rounds = bench(given)
    rounds.run()
    rounds.tell(began)
    print(f"\nEvery measurement: {given.results}")


if __name__ == "__main__":
    main()
