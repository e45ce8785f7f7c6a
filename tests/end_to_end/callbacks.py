"""Goal: callbacks given by name take part in the program's runs, with ranks as threads and as processes."""

import csv
import os

from troupe_program import check, check_code, check_equal, check_in, fit, main, result_of

EMA = "ema,decay=0.9"


def digest_of(run, *arguments):
    check_code(fit(run, *arguments), 0)
    return result_of(run)["weights_digest"]


def story_names_from_flag_file_and_set_are_the_same(folder):
    config = os.path.join(folder, "job.toml")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f'callbacks = ["lr_monitor,log_momentum=true", "{EMA}"]\nlog_every_n_steps = 1\n')
    flagged, filed, listed, plain = (os.path.join(folder, name) for name in ("flag", "file", "set", "plain"))
    one = digest_of(flagged, "--callback", "lr_monitor,log_momentum=true", "--callback", EMA, "--log-every-n-steps", 1)
    check_equal(digest_of(filed, "--config", config), one)
    check_equal(digest_of(listed, "--set", f'callbacks=["lr_monitor", "{EMA}"]'), one)
    check(digest_of(plain) != one, "the average is not the last weights")
    with open(os.path.join(flagged, "metrics.csv"), encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    check_equal((float(rows[3]["lr-SGD"]), float(rows[3]["lr-SGD-momentum"])), (0.05, 0.9))


def story_an_average_is_the_same_in_processes_and_after_a_resume(folder):
    whole, processes, halves = (os.path.join(folder, name) for name in ("whole", "processes", "halves"))
    expected = digest_of(whole, "--callback", EMA)
    check_equal(digest_of(processes, "--callback", EMA, "--placement", "processes"), expected)
    check(digest_of(halves, "--callback", EMA, "--max-steps", 10) != expected, "half a run is not the whole one")
    check_equal(digest_of(halves, "--callback", EMA, "--max-steps", 32, "--resume", "latest"), expected)


def story_a_timer_ends_a_run_early(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--callback", "timer,max_seconds=0.000000001", "--max-epochs", 100), 0)
    check(result_of(run)["steps"] in (1, 2), "the first look at the clock, or the second")


def story_unknown_names_and_options_are_refused_with_the_known_ones(folder):
    run = os.path.join(folder, "run")
    for text, parts in (("emma", ['unknown callback "emma"', "lr_monitor, gradient_norms", "ema, swa"]),
                        ("ema,dekay=1", ['"dekay=1" is no option of ema', "decay, every_n_steps"]),
                        ("ema,decay=high", ['decay = "high" is no number']),
                        ("ema,decay=2", ["decay is not between 0 and 1"]),
                        ("device_stats,a=1", ["it has none"])):
        ended = check_code(fit(run, "--callback", text), 3)
        for part in parts:
            check_in(part, ended.err, ended)
    check(not os.path.exists(run), "a refused call leaves no folder")


if __name__ == "__main__":
    main(globals())
