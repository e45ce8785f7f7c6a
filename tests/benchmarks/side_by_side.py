"""Runs Troupe and its peers in turn, round by round, and prints the tables of ratios for docs/performance.md.

Called by tests/bench.sh, which installs the dependencies. Each measurement becomes a JSON line of the results file."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import recovery

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = os.path.join(HERE, "peers")
KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1K": KIB, "64K": 64 * KIB, "1M": MIB, "16M": 16 * MIB, "100M": 100 * MIB}
MODELS = {"mlp": (128, ["--model", "mlp", "--set", "model.hidden=[1024,1024]"]), "cnn": (64, ["--model", "cnn"])}
CROWD_SIZES = ["1K", "1M", "16M"]  # for four ranks
PARTS = ["collectives", "training", "start", "recovery"]
BEGIN, END = "<!-- tests/bench.sh writes from here -->", "<!-- to here -->"
FLOOR = "staging's floor"
TIME_LIMIT = 300  # seconds of one call; a call that hangs is reported as a failure


def mpirun(ranks):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks)]


failed = recovery.failed


def call(command, environment=None):
    """Runs a command and returns the JSON objects that it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT,
                              env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
    except subprocess.TimeoutExpired:
        raise failed(f"no end within {TIME_LIMIT} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise failed(said[-1] if said else f"exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def in_turn(round_number, calls):
    """Runs the calls in turn. Each round begins with another call, so that no call always follows the same one."""
    first = round_number % len(calls)
    for one in [*calls[first:], *calls[:first]]:
        one()


class bench:
    def __init__(self, given):
        self.given = given
        self.results = open(given.results, "w", encoding="utf-8")
        self.seen = {}    # by (subject, what): figures by round
        self.broken = {}  # by (subject, kind): the reason
        self.load = os.getloadavg()[0]

    def python(self, ranks, script, *arguments):
        return call([self.given.python, "-B", "-m", "torch.distributed.run", "--standalone",
                     "--nproc-per-node", str(ranks), os.path.join(PEERS, script), *map(str, arguments)],
                    {"TROUPE_BENCH_BEGAN": str(time.time())})

    def troupe(self, *arguments, before=()):
        return call([*before, self.given.troupe, "bench", *arguments, "--json"])

    def note(self, round_number, subject, what, figure):
        self.seen.setdefault((subject, what), {})[round_number] = figure
        line = {"schema": "troupe.side_by_side/1", "round": round_number, "subject": subject, "what": what,
                "load": os.getloadavg()[0], **figure}
        print(json.dumps(line), file=self.results, flush=True)

    def attempt(self, subject, kind, measure):
        """Measures a subject. If it fails once it is left out from then on, with the reason below the table."""
        if (subject, kind) in self.broken:
            return
        print(f"  {subject}, {kind}", file=sys.stderr, flush=True)
        try:
            measure()
        except failed as error:
            self.broken[subject, kind] = str(error)
            print(f"    left out: {error}", file=sys.stderr, flush=True)

    # Collectives: seconds of one all_reduce, by size and number of ranks.

    def collective(self, round_number, subject, ranks, rows):
        names = {size: name for name, size in SIZES.items()}
        for row in rows:
            what = (ranks, names[row["bytes"]])
            self.note(round_number, subject, what, {"seconds": row["seconds"]})
            if subject == "troupe inproc":
                self.note(round_number, "bare loop", what, {"seconds": row["bare_loop_seconds"]})
            if row.get("staging_floor_seconds"):
                self.note(round_number, FLOOR, what, {"seconds": row["staging_floor_seconds"]})

    def collectives(self, round_number, ranks, size_names):
        sizes = [str(SIZES[name]) for name in size_names]
        kind = f"all_reduce of {ranks}"

        def measured(subject, command):
            self.attempt(subject, kind, lambda: self.collective(round_number, subject, ranks, command()))

        def ours(subject, flags):
            before = mpirun(ranks) if subject == "mpi" else ()
            measured(f"troupe {subject}", lambda: self.troupe(
                "collectives", "--bytes", ",".join(sizes), "--rounds", "3", "--ranks", str(ranks), *flags,
                before=before))

        in_turn(round_number, [
            *(lambda one=one: ours(*one) for one in self.given.communicators),
            lambda: measured("Open MPI", lambda: call([*mpirun(ranks), self.given.mpi_program, *sizes])),
            lambda: measured("Gloo, Python", lambda: self.python(ranks, "gloo_all_reduce.py", *sizes))])

    # Training: samples per second of two ranks, one thread each.

    def training(self, round_number, model):
        peers = (("ddp", "Python DDP"), ("lightning", "Lightning"))
        in_turn(round_number, [
            *(lambda one=one: self.troupe_training(round_number, model, *one) for one in self.given.placements),
            lambda: self.passes(round_number, model),
            *(lambda one=one: self.peer_training(round_number, model, *one) for one in peers)])

    def troupe_training(self, round_number, model, name, placement):
        batch, flags = MODELS[model]

        def measure():
            row = self.troupe("fit", *flags, "--batch-size", str(batch), "--max-steps", str(self.given.steps),
                              "--rounds", "1", *placement)[0]
            self.note(round_number, f"troupe {name}", model,
                      {key: row[key] for key in ("samples_per_second", "speed_up", "waiting_share")})
            self.note(round_number, f"troupe {name}, no sums", model,
                      {key: row["apart_" + key] for key in ("speed_up", "waiting_share")})

        self.attempt(f"troupe {name}", model, measure)

    def passes(self, round_number, model):
        def measure():
            row = call([self.given.floor_program, model, str(MODELS[model][0]), str(self.given.steps)])[0]
            self.note(round_number, "passes alone", model, {"samples_per_second": row["passes"]})
            self.note(round_number, "passes and steps", model, {"samples_per_second": row["with_step"]})

        self.attempt("passes alone", model, measure)

    def peer_training(self, round_number, model, kind, subject):
        def measure():
            row = self.python(2, "train.py", kind, model, MODELS[model][0], self.given.steps)[0]
            self.note(round_number, subject, model, {"samples_per_second": row["samples_per_second"]})
            if model == "mlp":
                self.note(round_number, subject, "start", {"to_first_step": row["to_first_step"]})

        self.attempt(subject, model, measure)

    # Start: seconds from the start of the program to the end of the first step.

    def start(self, round_number):
        for name, flags in self.given.placements:
            def measure(name=name, flags=flags):
                with tempfile.TemporaryDirectory() as folder:
                    result = call([self.given.troupe, "fit", "--json", "--run-dir", os.path.join(folder, "run"),
                                   *MODELS["mlp"][1], "--max-steps", "1", "--limit-val-batches", "0",
                                   "--limit-test-batches", "0", "--progress", "never", *flags])[-1]
                self.note(round_number, f"troupe {name}", "start",
                          {"to_first_step": result["seconds"]["to_first_step"]})
            self.attempt(f"troupe {name}", "start", measure)

    # Recovery: seconds from kill -9 of one of four ranks to the next committed step.

    def recovery(self, round_number):
        def ours():
            for row in self.troupe("recovery", "--rounds", str(self.given.kills)):
                name = f"troupe {row['on_loss']}" + (f", {row['spares']} spares" if row["spares"] else "")
                for which in ("median", "worst"):
                    self.note(round_number, name, f"recovery, {which}",
                              {"seconds": row["milliseconds"]["next_step"][which] / 1000})

        def peer(name, measure):
            took = list(measure(self.given.python, self.given.kills))
            for which, seconds in (("median", statistics.median(took) / 1000), ("worst", max(took) / 1000)):
                self.note(round_number, name, f"recovery, {which}", {"seconds": seconds})

        in_turn(round_number, [
            lambda: self.attempt("troupe", "recovery", ours),
            *(lambda one=one: self.attempt(one[0], "recovery", lambda: peer(*one))
              for one in recovery.peers().items())])

    def run(self):
        for round_number in range(self.given.rounds):
            print(f"round {round_number + 1} of {self.given.rounds}", file=sys.stderr, flush=True)
            for part in self.given.parts:
                self.part(round_number, part)

    def part(self, round_number, part):
        if part == "collectives":
            self.collectives(round_number, 2, self.given.sizes)
            self.collectives(round_number, 4, self.given.crowd_sizes)
        elif part == "training":
            for model in MODELS:
                self.training(round_number, model)
        elif part == "start":
            self.start(round_number)
        else:
            self.recovery(round_number)

    # The table.

    def median(self, subject, what, field):
        figures = [one[field] for one in self.seen.get((subject, what), {}).values() if field in one]
        return statistics.median(figures) if figures else None

    def ratios(self, subject, base, what, field, more_is_better):
        """Ratios within each round, so that a slow minute of the machine affects both subjects."""
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
        """Each column is a pair: its title, and what was measured."""
        rows = [[title, *(name for name, _ in columns)]]
        for subject in subjects:
            cells = [self.cell(subject, base, what, field, more_is_better, shown) for _, what in columns]
            if any(cell != "-" for cell in cells):
                rows.append([subject, *cells])
        if len(rows) == 1:
            return []
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        rows.insert(1, ["-" * width for width in widths])
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
        return [*lines, ""]

    def of_floor(self, sizes):
        """The cost of the communicator relative to bare copying through slots."""
        shares = []
        for size in sizes:
            ratios = self.ratios("troupe shm, staged", FLOOR, (2, size), "seconds", False)
            if ratios:
                shares.append(f"{size} x{statistics.median(ratios):.3g} ({min(ratios):.3g}..{max(ratios):.3g})")
        return [f"`shm, staged` beside staging's floor: {', '.join(shares)}.", ""] if shares else []

    def tables(self, began):
        subjects = list(dict.fromkeys(subject for subject, _ in self.seen))
        against_loop = ["bare loop", *[s for s in subjects if s != "bare loop"]]
        lines = [f"Medians of {self.given.rounds} rounds in turn, and the ratio with its lowest and highest round. "
                 f"{time.strftime('%Y-%m-%d', time.gmtime(began))}, {os.cpu_count()} cores ({processor()}), "
                 f"load {self.load:.1f} before, {time.time() - began:.0f} s.", ""]
        for ranks, sizes in ((2, self.given.sizes), (4, self.given.crowd_sizes)):
            lines += headed(f"**all_reduce(sum, float32), {ranks} ranks**: time, and how near it comes to the bare "
                            "loop (x1: as fast).",
                            self.table("", against_loop, [(name, (ranks, name)) for name in sizes], "bare loop",
                                       "seconds", False, duration))
            if ranks == 2:
                lines += self.of_floor(sizes)
        lines += self.training_tables(subjects)
        lines += headed("**From the program's start to the end of its first step** (mlp, 2 ranks).",
                        self.table("", subjects, [("seconds", "start")], "Python DDP", "to_first_step", False,
                                   duration))
        kills = [(which, f"recovery, {which}") for which in ("median", "worst")]
        lines += headed("**kill -9 of one of four ranks**: time to the next committed step. Of each round's "
                        f"{self.given.kills} kills, the median and the worst.",
                        self.table("", subjects, kills, "torchrun", "seconds", False, duration))
        lines += [f"Left out: {subject}, {kind}: {why}" for (subject, kind), why in self.broken.items()]
        return "\n".join(lines).rstrip() + "\n"

    def training_tables(self, subjects):
        same = [(model, model) for model in MODELS]
        ours = [s for s in subjects if s.startswith("troupe")]
        return [
            *headed("**Training on Fashion-MNIST, 2 ranks, one thread each**: samples/s, and over Python's DDP.",
                    self.table("", subjects, same, "Python DDP", "samples_per_second", True, lambda x: f"{x:.0f}")),
            *headed("Of the same runs: speed-up over one rank; the largest share of a step that a rank waited.",
                    self.table("speed-up", ours, same, None, "speed_up", True, lambda x: f"{x:.2f}")),
            *self.table("waiting", ours, same, None, "waiting_share", True, lambda x: f"{100 * x:.1f} %"),
        ]


def headed(text, table):
    return [text, "", *table] if table else []


def duration(seconds):
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as facts:
        return next((line.split(":", 1)[1].strip() for line in facts if line.startswith("model name")), "unknown")


def write_into(page, text):
    """Replaces the text between the two marks of a page."""
    with open(page, encoding="utf-8") as file:
        before, found, rest = file.read().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"bench: {page} lacks the marks {BEGIN} and {END}")
    with open(page, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n{END}{after}")


def arguments():
    reader = argparse.ArgumentParser(description=__doc__)
    for name in ("--troupe", "--python", "--mpi-program", "--floor-program", "--results"):
        reader.add_argument(name, required=True)
    reader.add_argument("--quick", action="store_true", help="2 rounds, fewer sizes and steps")
    reader.add_argument("--page", help="a page whose tables are replaced")
    reader.add_argument("--only", choices=PARTS, help="nothing but this part")
    given = reader.parse_args()
    if given.page and given.only:
        reader.error("--page needs all parts: leave --only out")
    given.parts = [given.only] if given.only else PARTS
    given.rounds = 2 if given.quick else 5
    given.kills = 2 if given.quick else 5
    given.steps = 40 if given.quick else 150
    given.sizes = ["1K", "1M", "16M"] if given.quick else list(SIZES)
    given.crowd_sizes = ["1K"] if given.quick else CROWD_SIZES
    return given


def usable(given):
    """Finds which communicators this program has, and which placements fit supports with them."""
    said = subprocess.run([given.troupe, "doctor", "--json"], capture_output=True, text=True, check=True)
    names = [one["name"] for one in json.loads(said.stdout)["communicators"] if one["available"]]
    given.communicators = [(name, ["--communicator", name]) for name in names if name in ("inproc", "shm", "tcp")]
    if "shm" in names:
        given.communicators.append(("shm, staged", ["--communicator", "shm", "--memory", "ordinary"]))
    given.communicators.append(("mpi", ["--communicator", "mpi"]))  # usable under mpirun only
    given.placements = [("inproc", ["--communicator", "inproc"])]
    if not given.quick:
        given.placements.append(("inproc, separate step", ["--communicator", "inproc",
                                                           "--set", "strategy.fused_step=false"]))
    given.placements += [(name, ["--communicator", name, "--placement", "processes"])
                         for name in names if name in ("shm", "tcp")]


def main():
    given = arguments()
    usable(given)
    rounds = bench(given)
    if rounds.load > 0.3:
        print(f"other work is running here (load {rounds.load:.1f}): the figures will be worse than on an idle machine",
              file=sys.stderr)
    began = time.time()
    rounds.run()
    text = rounds.tables(began)
    print(text)
    if given.page:
        write_into(given.page, text)
    print(f"All measurements: {given.results}", file=sys.stderr)


if __name__ == "__main__":
    main()
