"""Goal: a value or a file that would need all memory, overflow or break a file of the run is refused, with the fix."""

import os
import subprocess

from troupe_program import PROGRAM, SMALL, check, check_code, check_equal, check_in, environment, fit, main, troupe


def refused(code, parts, *arguments, **variables):
    ended = check_code(troupe(*arguments, **variables), code)
    check_equal(ended.out, "", ended)
    for part in parts:
        check_in(part, ended.err, ended)
    check("internal error" not in ended.err, ended)


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)


def story_times_are_bounded(folder):
    run = os.path.join(folder, "run")
    for key in ("max-time", "val-check-time"):
        refused(3, [key.replace("-", "_"), "at most 100000"], "fit", *SMALL, "--run-dir", run, f"--{key}",
                "110000:00:00:00")
    check(not os.path.exists(run), "a refused call leaves no folder")
    check_code(fit(run, "--max-steps", 1, "--max-time", "100000:23:59:59"), 0)


def story_a_path_that_is_not_utf8_is_refused(folder):
    run = os.fsencode(folder) + b"/r\xfcn"
    done = subprocess.run([PROGRAM, "fit", "--run-dir", run, *SMALL], capture_output=True, check=False,
                          env=environment({}))
    said = done.stderr.decode()  # the error itself is UTF-8
    check_equal(done.returncode, 3, said)
    check_in("run_dir", said)
    check_in("UTF-8", said)
    check(not os.path.exists(run), "a refused call leaves no folder")
    check_code(fit(os.path.join(folder, "rün"), "--max-steps", 1), 0)


def story_a_policy_of_checkpoints_without_checkpoints_is_refused(folder):
    run, config = os.path.join(folder, "run"), os.path.join(folder, "job.toml")
    off = ["fit", *SMALL, "--run-dir", run, "--no-enable-checkpointing"]
    refused(3, ["checkpoint.every_n_steps (flag --checkpoint-every-n-steps)", "leave one of them out"], *off,
            "--checkpoint-every-n-steps", 3)
    refused(3, ["checkpoint.monitor (--set)"], *off, "--set", "checkpoint.monitor=val/accuracy")
    refused(3, ["checkpoint.keep_last (variable TROUPE_KEEP_LAST)"], *off, TROUPE_KEEP_LAST="3")
    check(not os.path.exists(run), "a refused call leaves no folder")
    write(config, "[checkpoint]\nkeep_last = 3\n")
    check_code(troupe(*off, "--config", config), 0)


def story_counts_are_bounded(folder):
    run = os.path.join(folder, "run")
    for given in (2**32 + 1, "[0,4294967296]", "[-1]"):
        refused(3, ["devices", "nearest possible value"], "fit", *SMALL, "--run-dir", run, f"--devices={given}")
    check(not os.path.exists(run), "a refused call leaves no folder")
    refused(3, ["--ranks = 4097", "4096"], "data", "order", "--size", 4, "--ranks", 4097)
    refused(3, ["--size", str(2**28)], "data", "order", "--size", 2**28 + 1)
    for command in ("learning-rate", "batch-size"):
        for steps in (0, -5):
            refused(2, ["--steps", "1"], "tune", command, *SMALL, f"--steps={steps}")
    for rate in ("--min-rate=nan", "--max-rate=inf"):
        refused(2, [rate.split("=", maxsplit=1)[0], "finite"], "tune", "learning-rate", *SMALL, rate)
    refused(2, ["0.05"], "watch", folder, "--interval", "0.01")


def story_an_option_of_a_callback_is_given_once(folder):
    run = os.path.join(folder, "run")
    for text, part in (("ema,decay=0.5,decay=0.6", "decay stands there twice"),
                       ("swa,start=0.5,start_epoch=1", "leave one of them out"),
                       ("ema,decay=nan", "is no number")):
        refused(3, [part], "fit", *SMALL, "--run-dir", run, "--callback", text)
    check(not os.path.exists(run), "a refused call leaves no folder")


if __name__ == "__main__":
    main(globals())
