"""Goal: fits with equal settings end in equal bits, under any load and with any failures.

Draws settings at random: optimizer, schedule, precision, accumulation, callbacks, validations, checkpoints. Each draw
is run once undisturbed, and then in other ways: ranks as threads, as processes or in those of a launcher, fewer
processes than shards, another communicator, hooks one by one, failures of ranks that the job outlives, and failures
that end it, after which it is resumed. Weights, metrics and the end must be those of the undisturbed run. Called by
tests/same_bits.sh.
"""

import csv
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = os.environ["TROUPE_PROGRAM"]
STEP = os.path.join(os.path.dirname(__file__), "end_to_end/step.py")
JOBS = itertools.count(os.getpid() * 1000)
AT_ONCE = 2 * (os.cpu_count() or 1)
WAYS = 3       # of each draw
LIMIT = 300    # seconds of one call
RESUMES = 4    # at most, of one run
REFUSED = 3    # the exit code for settings that cannot be used together
# teardown is left out: a failure there may cost a job whose result is still due.
HOOKS = ("setup configure_model setup_optimizers on_fit_start process_dataloader on_train_start on_train_epoch_start "
         "batch_to_device on_train_batch_start training_step optimizer_zero_grad pre_backward backward post_backward "
         "on_before_optimizer_step optimizer_step lr_scheduler_step on_train_batch_end on_train_epoch_end on_train_end "
         "on_fit_end on_sanity_check_end on_validation_start validation_step on_validation_epoch_end on_validation_end "
         "test_step barrier optimizer_state on_save_checkpoint save_checkpoint restore_state").split()
LIKELY = ["training_step", "backward", "optimizer_step", "on_train_batch_end", "validation_step", "on_save_checkpoint"]
OF_TIME = ("seconds", "memory", "share", "time")  # values that differ from run to run have these in their names


def some(draw, chance, *words):
    return list(words) if draw.random() < chance else []


def setting(key, value):
    return ["--set", f"{key}={value}"]


def drawn_model(draw):
    name = draw.choice(["mlp", "mlp", "mlp", "cnn"])
    # The large one's state goes to a new rank in several chunks.
    hidden = setting("model.hidden", draw.choice(["[16]", "[8,8]", "[1500]"])) if name == "mlp" else []
    return ["--model", name, *hidden, *setting("model.dropout", draw.choice([0.0, 0.2])), "--data", "synthetic",
            *setting("data.samples", draw.choice([64, 97, 128, 200])),
            *setting("data.evaluation_samples", draw.choice([0, 13, 40])), "--batch-size", draw.choice([4, 7, 8])]


def drawn_optimizer(draw):
    words = ["--optimizer", draw.choice(["sgd", "adam", "adamw"]), "--learning-rate", draw.choice([0.01, 0.003])]
    if draw.random() < 0.5:
        words += setting("optimizer.scheduler", draw.choice(["cosine", "polynomial"]))
        words += setting("optimizer.warmup_epochs", draw.choice([0, 1]))
    words += some(draw, 0.3, "--precision", draw.choice(["64-true", "bf16-true", "bf16-mixed", "16-mixed"]))
    words += some(draw, 0.3, "--gradient-clip-val", 0.5, "--gradient-clip-algorithm", draw.choice(["norm", "value"]))
    words += draw.choice([[], [], ["--accumulate-grad-batches", draw.choice([2, 3])],
                          ["--accumulate-schedule", "1:2,2:3"]])
    words += some(draw, 0.2, *setting("strategy.bucket_cap_mb", draw.choice([0.001, 0.01])))
    words += some(draw, 0.1, *setting("strategy.overlap", "false"))
    words += some(draw, 0.1, *setting("strategy.find_unused_parameters", "true"))
    return words + some(draw, 0.15, *setting("strategy.comm_hook", draw.choice(["f16_compress", "bf16_compress"])))


def drawn_callbacks(draw):
    average = draw.choice(["", "", f"ema,decay=0.9,every_n_steps={draw.choice([1, 2])}",
                           f"swa,start={draw.choice([0.3, 0.5])}"])
    words = ["--callback", average] if average else []
    words += some(draw, 0.2, "--callback", f"lr_monitor,every={draw.choice(['step', 'epoch'])}")
    words += some(draw, 0.2, "--callback", "gradient_norms")
    monitor = draw.choice(["", "", "val/loss", "train/loss"])
    if monitor:
        words += setting("early_stopping.monitor", monitor) + setting("early_stopping.patience", draw.choice([0, 1]))
    return words


def drawn_lengths(draw):
    words = ["--max-epochs", draw.choice([2, 3, 4]), "--log-every-n-steps", draw.choice([1, 3, 5, 50])]
    words += some(draw, 0.2, "--max-steps", draw.choice([7, 13])) + some(draw, 0.2, "--min-epochs", 2)
    words += draw.choice([[], ["--val-check-interval", draw.choice([3, 0.5])], ["--check-val-every-n-epoch", 2],
                          ["--check-val-every-n-epoch", 0, "--val-check-interval", 5], ["--limit-val-batches", 0]])
    words += some(draw, 0.15, "--limit-train-batches", draw.choice([5, 0.7]))
    words += some(draw, 0.5, "--checkpoint-every-n-steps", draw.choice([1, 3, 5]))
    words += some(draw, 0.2, *setting("checkpoint.every_epoch", "false"))
    return words + ["--keep-last", draw.choice([1, 3]), "--keep-best", draw.choice([0, 1, 2])]


def drawn_settings(draw):
    words = drawn_model(draw) + drawn_optimizer(draw) + drawn_callbacks(draw) + drawn_lengths(draw)
    return [*map(str, words), "--seed", str(draw.randrange(100)), "--quiet"]


def drawn_faults(draw, shards, kinds, losses):
    """At most so many of them end a process."""
    words = []
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        step = f",step={draw.randrange(30)}" if draw.random() < 0.8 else ""
        hook = draw.choice(LIKELY if draw.random() < 0.5 else HOOKS)
        kind = draw.choice(kinds if losses > 0 else ["throw"])
        losses -= kind != "throw"
        words += ["--fault", f"{kind}@rank={draw.randrange(shards)},hook={hook}{step}"]
    return words


def launched_way(draw, shards):
    """Processes that a launcher starts. A lost one is not replaced, and at least one has to be left."""
    spares = draw.choice([0, 0, 1])
    ranks = draw.randrange(1 if spares else 2, shards + 1)
    words = ["--shards", str(shards), *draw.choice([[], ["--communicator", "tcp"], ["--communicator", "hier"]])]
    words += ["--spares", str(spares)] if spares else []
    words += some(draw, 0.2, "--fine") + ["--max-restarts", "20"]
    return ranks + spares, words + drawn_faults(draw, shards, ["throw", "kill", "exit"], ranks + spares - 1), False


def drawn_way(draw, shards):
    """Another way to run the same fit: the number of processes that a launcher starts, or 0, flags, and whether
    failures end it."""
    if shards > 1 and draw.random() < 0.15:
        return launched_way(draw, shards)
    words, ranks, kinds = [], shards, ["throw"]
    if draw.random() < 0.6:
        words += ["--placement", "processes"]
        kinds += ["kill", "exit"]
        if shards > 1 and draw.random() < 0.4:
            ranks = draw.randrange(1, shards + 1)
            words += ["--shards", str(shards)]
        words += some(draw, 0.3, "--communicator", "tcp") if ranks > 1 else []
        words += some(draw, 0.4, "--on-loss", "shrink") + some(draw, 0.2, "--spares", "1")
    words += some(draw, 0.2, "--fine") + some(draw, 0.2, *setting("strategy.fused_step", "false"))
    words += ["--ranks", str(ranks)]
    resumes = draw.random() < 0.35
    words += [] if resumes else ["--max-restarts", "20"]
    return 0, words + drawn_faults(draw, shards, kinds, shards * 3), resumes


def without_faults(words):
    return [word for at, word in enumerate(words) if word != "--fault" and (at == 0 or words[at - 1] != "--fault")]


def fit(words, folder, launched=0):
    """The exit code, the command, and what it printed. A launcher ends with the code of a task that was killed, so of
    its processes the result is looked at."""
    command = [PROGRAM, "fit", *words, "--run-dir", folder]
    variables = dict(os.environ)
    if launched:
        command = [sys.executable, STEP, str(launched), *command]
        variables["SLURM_JOB_ID"] = str(next(JOBS))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
                          start_new_session=True) as run:
        try:
            out, err = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    code = run.returncode
    if launched and code not in (0, REFUSED):
        code = 0 if result_of(folder).get("status") == "finished" else code
    return code, " ".join(command), out + err


def fit_and_resume(words, folder, resumes, launched):
    code, command, text = fit(words, folder, launched)
    for _ in range(RESUMES if resumes else 0):
        if code in (0, REFUSED):
            break
        saved = os.path.join(folder, "checkpoints")
        if os.path.isdir(saved) and os.listdir(saved):
            code, then, text = fit([*without_faults(words), "--resume", "latest"], folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            code, then, text = fit(without_faults(words), folder)
        command += f"\n  {then}"
    return code, command, text


def result_of(folder):
    """Empty if there is none."""
    try:
        with open(os.path.join(folder, "result.json"), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def rows_of(folder):
    with open(os.path.join(folder, "metrics.csv"), encoding="utf-8") as file:
        rows = [{key: number for key, number in row.items() if number and not any(word in key for word in OF_TIME)}
                for row in csv.DictReader(file)]
    return [row for row in rows if set(row) - {"step", "epoch"}]


def end_of(folder):
    """What must be equal."""
    result = result_of(folder)
    end = {key: result[key] for key in ("weights_digest", "status", "epochs", "steps", "samples", "non_finite_steps")}
    end["metrics"] = {key: number for key, number in result["metrics"].items()
                      if not any(word in key for word in OF_TIME)}
    return {**end, "rows": rows_of(folder)}


def differences(expected, got):
    for key, there in expected.items():
        if key == "rows" and len(there) == len(got[key]):
            yield from (f"{a}\n  {b}" for a, b in zip(there, got[key]) if a != b)
        elif there != got[key]:
            yield f"{key}: {there}\n  {got[key]}"


class Draws:
    """What all threads share."""

    def __init__(self, seconds, seed):
        self._lock = threading.Lock()
        self._next = seed
        self._end = time.monotonic() + seconds
        self.kinds = self.fits = 0
        self.problems = []

    def next(self):
        with self._lock:
            if time.monotonic() > self._end or self.problems:
                return None
            self._next += 1
            return self._next - 1

    def ended(self, fits):
        with self._lock:
            self.kinds += 1
            self.fits += fits

    def failed(self, problem):
        with self._lock:
            self.problems.append(problem)

    def going_on(self):
        return not self.problems and time.monotonic() < self._end


def run_draw(draws, seed, folder):
    draw = random.Random(seed)
    settings, shards = drawn_settings(draw), draw.choice([1, 2, 3, 4])
    plain = os.path.join(folder, "plain")
    code, command, text = fit([*settings, "--ranks", str(shards)], plain)
    if code == REFUSED:
        return
    if code != 0:
        draws.failed(f"draw {seed} ended with {code}:\n  {command}\n{text}")
        return
    expected, fits = end_of(plain), 1
    for number in range(WAYS):
        if not draws.going_on():
            break
        launched, words, resumes = drawn_way(draw, shards)
        place = os.path.join(folder, str(number))
        code, other, text = fit_and_resume([*settings, *words], place, resumes, launched)
        if code == REFUSED:
            continue
        fits += 1
        found = [f"ended with {code}\n{text}"] if code != 0 else list(differences(expected, end_of(place)))
        if found:
            draws.failed("\n  ".join([f"draw {seed}, undisturbed:", command, "disturbed:", other, *found[:4]]))
    draws.ended(fits)


def work(draws, folder):
    while (seed := draws.next()) is not None:
        place = os.path.join(folder, str(seed))
        os.mkdir(place)
        try:
            run_draw(draws, seed, place)
        except (OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
            draws.failed(f"draw {seed}: {error!r}")
        shutil.rmtree(place, ignore_errors=True)


def main(seconds, seed):
    draws = Draws(seconds, seed)
    print(f"{seconds} s of fits, {AT_ONCE} at a time (bash tests/same_bits.sh {seconds} {seed})", flush=True)
    with tempfile.TemporaryDirectory(prefix="troupe-same-bits-") as folder:
        workers = [threading.Thread(target=work, args=(draws, folder)) for _ in range(AT_ONCE)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for problem in draws.problems:
        print(problem, file=sys.stderr)
    print(f"{draws.fits} fits of {draws.kinds} kinds, {len(draws.problems)} problems")
    return 1 if draws.problems or draws.fits == 0 else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
