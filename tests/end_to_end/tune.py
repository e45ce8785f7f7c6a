"""Goal: `troupe tune` finds a learning rate and a batch size with the flags of a fit, and leaves no files."""

import os

from troupe_program import SMALL, check, check_code, check_equal, check_in, main, troupe

RATE = ["tune", "learning-rate", *SMALL, "--steps", 40, "--min-rate", 1e-4, "--max-rate", 10]


def story_a_learning_rate_is_found_and_is_the_same_in_processes(folder):
    before = set(os.listdir("."))
    found = check_code(troupe(*RATE, "--json"), 0).json()
    check_equal((found["schema"], found["command"]), ("troupe.tune/1", "learning-rate"))
    check_equal(len(found["rates"]), len(found["losses"]))
    check(10 < len(found["rates"]) <= 40, "some losses are left out at both ends")
    check_equal(found["rates"][0], 1e-4)
    check_in(found["learning_rate"], found["rates"], found)
    check(all(a < b for a, b in zip(found["rates"], found["rates"][1:])), "rates rise")
    check_equal(check_code(troupe(*RATE, "--json", "--placement", "processes"), 0).json(), found)
    said = check_code(troupe(*RATE), 0)
    number = f"{found['learning_rate']:.6g}"
    check_equal(said.out, f"learning rate {number}; use it with --learning-rate {number}\n")
    check_equal(set(os.listdir(".")), before)


def story_growth_and_seed_take_effect(folder):
    line = check_code(troupe(*RATE, "--json", "--growth", "linear", "--stop-at", 0), 0).json()
    check_equal(len(line["rates"]), 40)
    steps = [b - a for a, b in zip(line["rates"][1:], line["rates"][2:])]
    check(max(steps) - min(steps) < 1e-6, "equal steps")
    other = check_code(troupe(*RATE, "--json", "--seed", 5), 0).json()
    check(other["losses"] != check_code(troupe(*RATE, "--json"), 0).json()["losses"], "another seed, other losses")


def story_too_few_losses_are_an_error_that_says_what_helps(folder):
    ended = check_code(troupe("tune", "learning-rate", *SMALL, "--steps", 5), 1)
    check_in("raise --steps", ended.err, ended)


def story_a_batch_size_is_doubled_up_to_the_largest_allowed(folder):
    ended = check_code(troupe("tune", "batch-size", *SMALL, "--max-size", 24, "--json"), 0)
    check_equal(ended.json(), {"schema": "troupe.tune/1", "command": "batch-size", "batch_size": 24})
    for size in (2, 4, 8, 16, 24):
        check_in(f"batch size {size}: fits\n", ended.err, ended)


def story_a_batch_size_above_the_data_is_not_tried(folder):
    ended = check_code(troupe("tune", "batch-size", *SMALL, "--ranks", 2, "--set", "data.samples=32",
                              "--max-size", 4096), 0)
    check_in("batch size 16: fits\nbatch size 32: holds all training samples\n", ended.err, ended)
    check_in("batch size 16; use it with --batch-size 16", ended.out, ended)


def story_a_batch_of_more_shards_than_ranks_is_not_larger_than_the_data(folder):
    ended = check_code(troupe("tune", "batch-size", *SMALL, "--ranks", 2, "--shards", 8, "--set", "data.samples=64",
                              "--max-size", 4096), 0)
    check_in("batch size 8: fits\nbatch size 16: holds all training samples\n", ended.err, ended)
    check_in("batch size 8; use it with --batch-size 8", ended.out, ended)


def story_callbacks_of_a_run_do_not_change_a_search(folder):
    curves = os.path.join(folder, "curves")
    plain = check_code(troupe(*RATE, "--log-every-n-steps", 1, "--json"), 0).json()
    more = ["swa", f"tensorboard,folder={curves}", "early_stopping,monitor=train/loss,patience=1"]
    with_them = check_code(troupe(*RATE, "--log-every-n-steps", 1, "--json",
                                  *(part for one in more for part in ("--callback", one))), 0)
    check_equal(with_them.json(), plain)
    check(not os.path.exists(curves), "the search left files")


def story_a_search_restarts_nothing_and_drops_the_spares_of_a_run(folder):
    elastic = ["--placement", "processes", "--max-restarts", 3, "--spares", 1]
    check_equal(check_code(troupe(*RATE, "--json", *elastic), 0).json(), check_code(troupe(*RATE, "--json"), 0).json())
    ended = check_code(troupe("tune", "batch-size", *SMALL, "--max-size", 4, "--json", *elastic), 0)
    check_equal(ended.json()["batch_size"], 4)
    lost = check_code(troupe(*RATE, *elastic, "--fault", "kill@rank=1,hook=training_step,step=2"), 1)
    check_in("rank 1", lost.err, lost)


def story_a_batch_size_that_does_not_fit_into_the_memory_ends_the_search(folder):
    limit = 2560 << 20  # of addresses; a batch of 8192 takes 512 MiB for each result of the wide layer
    wide = ["--set", "model.hidden=[16384]", "--set", "data.samples=8192", "--ranks", 1, "--steps", 1]
    ended = check_code(troupe("tune", "batch-size", *SMALL, *wide, "--first-size", 64, "--json",
                              before=["prlimit", f"--as={limit}"]), 0)
    found = ended.json()["batch_size"]
    check_in(f"batch size {2 * found}: failed\n", ended.err, ended)


def story_what_cannot_be_tuned_is_refused(folder):
    for arguments, code, part in ((["learning-rate", "--run-dir", folder], 2, "leave out run_dir"),
                                  (["learning-rate", "--min-rate", 2], 3, "0 < min < max"),
                                  (["learning-rate", "--growth", "cubic"], 2, "exponential or linear"),
                                  (["batch-size", "--margin", 1], 2, "below 1"),
                                  (["batch-size", "--max-size", 0], 3, "at least 1"),
                                  (["batch-size", "--limit-train-batches", 0], 3, "--limit-train-batches"),
                                  (["learning-rate", "--limit-train-batches", 0], 3, "--limit-train-batches"),
                                  (["batch-size", "--fault", "throw@rank=0,hook=backward,what=oops"], 1, "oops"),
                                  (["learning-rate", "--set", f"resume={folder}"], 2, "leave out resume (--set)"),
                                  ([], 2, "troupe tune --help")):
        ended = check_code(troupe("tune", *arguments, *(SMALL if arguments else [])), code)
        check_in(part, ended.err, ended)


def story_settings_without_an_effect_are_noted(folder):
    trace = os.path.join(folder, "t.json")
    ended = check_code(troupe(*RATE, "--trace", trace, "--metrics-port", 0, "--profiler", "simple", "--set",
                              "logger=tensorboard", TROUPE_RUN_DIR=folder, TROUPE_TRACE_HOOKS=trace), 0)
    for part in ("trace (flag --trace)", "metrics_port (flag --metrics-port)", "profiler (flag --profiler)",
                 "logger (--set)"):
        check_in(f"note: {part} has no effect on tune\n", ended.err, ended)
    # Variables may be for other calls.
    check_in("the variable TROUPE_RUN_DIR has no effect", ended.err, ended)
    check_equal(ended.err.count("has no effect"), 5, ended)
    check_equal(os.listdir(folder), [])


if __name__ == "__main__":
    main(globals())
