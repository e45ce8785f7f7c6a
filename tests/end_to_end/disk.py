"""Goal: with a full disk the terminal reports the failure at once, files stay whole, and the run does not succeed.

A limit on file size (RLIMIT_FSIZE) stands for the full disk, because it needs no privileges.
"""

import json
import os
import sys

from troupe_program import (Traced, check, check_code, check_equal, check_in, checkpoints_of, fit, main, metrics_of,
                            result_of, troupe)

BYTES = 3000  # more than config.toml and result.json, less than a checkpoint or many events
# Python ignores SIGXFSZ, the signal of a write beyond the limit. The program starts with its default, as in a shell.
def limited(size):
    return {"before": [sys.executable, "-c", "import os, resource, signal, sys\n"
                       f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
                       "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
                       "os.execv(sys.argv[1], sys.argv[1:])"]}


LIMITED = limited(BYTES)
EVERY = ["--checkpoint-every-n-steps", 1]


def events_of(run):
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as f:
        text = f.read()
    check(text.endswith("\n"), text[-200:])
    return [json.loads(line)["event"] for line in text.splitlines()]


def story_a_fit_whose_last_checkpoint_cannot_be_written_fails(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, *EVERY, **LIMITED), 5)
    said = ended.err.splitlines()
    result = result_of(run)
    check_equal((result["status"], result["steps"]), ("failed", 32), ended)
    check_equal((result["failure"]["hook"], result["failure"]["step"]), ("save_checkpoint", 32), ended)
    check_in("model.safetensors", result["failure"]["what"])
    check_equal(sum("the checkpoint of step" in line for line in said), 1, ended)
    check_in("failed in save_checkpoint at step 32", ended.err)
    check_in("nothing is saved", ended.err)
    check_in("failed after 2 epochs", ended.out)
    check("finished" not in ended.out, ended)
    check_equal(checkpoints_of(run), [])
    events = events_of(run)
    check_in("checkpoint_failed", events)
    # The number of attempted checkpoints, and so of events, depends on the speed of the disk.
    check("job_ended" in events or "events.jsonl lacks" in ended.err, ended)
    check(metrics_of(run), "metrics.csv is whole")


def story_the_terminal_reports_a_failed_checkpoint_while_the_fit_continues(folder):
    run = os.path.join(folder, "run")
    place = {"rank": 0, "step": 20}
    traced = Traced(run, *EVERY, hold=("on_train_batch_start", place), **LIMITED)
    traced.wait_for("on_train_batch_start", **place)
    traced.wait_for_note("was not written")
    traced.release()
    check_code(traced.end(), 5)


def story_a_full_disk_ends_the_trace_of_hooks_and_not_the_fit(folder):
    trace = os.path.join(folder, "hooks.jsonl")
    for more in ([], ["--max-restarts", 1]):
        run = os.path.join(folder, f"run{len(more)}")
        ended = check_code(fit(run, "--max-epochs", 8, "--trace-hooks", trace, *more,
                               **limited(120_000)), 0)
        check_equal(result_of(run)["steps"], 128, ended)
        check(checkpoints_of(run), ended)
        check_equal(ended.err.count(f"the trace ends early: cannot write {trace}: File too large"), 1, ended)
        with open(trace, encoding="utf-8") as f:
            check(all(json.loads(line) for line in f), "a partial line")


def story_without_symbolic_links_checkpoints_are_written_and_found(folder):
    run = os.path.join(folder, "run")
    no_links = {"LD_PRELOAD": os.environ["TROUPE_NO_LINKS"]}
    ended = check_code(fit(run, *EVERY, "--max-epochs", 1, **no_links), 0)
    check_equal(ended.err.count("has no symbolic links"), 1, ended)
    check_equal(os.listdir(os.path.join(run, "checkpoints")), ["step-00000016"])
    ended = check_code(fit(run, *EVERY, "--max-epochs", 2, "--resume", "latest", **no_links), 0)
    check_equal(result_of(run)["steps"], 32, ended)
    check_equal(os.listdir(os.path.join(run, "checkpoints")), ["step-00000032"])
    check_in("  latest\n", check_code(troupe("checkpoint", "list", run), 0).out)


if __name__ == "__main__":
    main(globals())
