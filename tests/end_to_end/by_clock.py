"""Goal: checkpoints and validations by the clock, and both profilers, work from the command line."""

import json
import os

from troupe_program import check, check_code, check_equal, check_in, fit, main, result_of


def saves_of(run):
    """How many checkpoints were due: on a slow disk a newer one replaces those that wait to be written."""
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as f:
        written = [x["details"] for x in map(json.loads, f) if x["event"] == "checkpoint_written"]
    return sum(1 + int(details.get("skipped", 0)) for details in written)


def story_checkpoints_by_the_minute_are_beside_those_of_epochs(folder):
    often, never = os.path.join(folder, "often"), os.path.join(folder, "never")
    check_code(fit(never, "--checkpoint-every-n-minutes", 1000), 0)
    check_equal(saves_of(never), 2)
    check_code(fit(often, "--set", "checkpoint.every_n_minutes=0.000001"), 0)
    check_equal(saves_of(often), 32)
    check_equal(result_of(often)["weights_digest"], result_of(never)["weights_digest"])


def story_validations_by_the_clock_replace_the_interval(folder):
    run = os.path.join(folder, "run")
    trace = os.path.join(folder, "hooks")
    check_code(fit(run, "--val-check-time", "10:00:00:00", "--trace-hooks", trace), 0)
    with open(trace, encoding="utf-8") as f:
        stages = {x["stage"] for x in map(json.loads, f) if x["hook"] == "on_validation_start"}
    check_equal(stages, {"sanity"})
    check_in("val/loss", check_code(fit(os.path.join(folder, "other")), 0).out, "by default there are some")


def story_a_job_that_restarts_goes_by_the_clock_too(folder):
    run, plain = os.path.join(folder, "run"), os.path.join(folder, "plain")
    check_code(fit(plain), 0)
    check_code(fit(run, "--set", "checkpoint.every_n_minutes=0.000001", "--val-check-time", "10:00:00:00",
                   "--max-restarts", 1, "--fault", "throw@rank=1,hook=backward,step=5"), 0)
    check(saves_of(run) >= 32 - 5, f"one after each step that the second generation made: {saves_of(run)}")
    check_equal(len(result_of(run)["generations"]), 2)
    check_equal(result_of(run)["weights_digest"], result_of(plain)["weights_digest"])


def story_a_time_of_another_form_is_refused(folder):
    ended = check_code(fit(os.path.join(folder, "run"), "--val-check-time", "ten minutes"), 3)
    check_in("DD:HH:MM:SS", ended.err)


def story_the_simple_profiler_prints_a_table_of_hooks(folder):
    for placement in ("threads", "processes"):
        ended = check_code(fit(os.path.join(folder, placement), "--profiler", "simple", "--placement", placement), 0)
        rows = {line.split()[0]: line.split() for line in ended.err.splitlines() if line.endswith("%")}
        check_equal((rows["training_step"][1], rows["on_train_epoch_end"][1]), ("32", "2"))
        check_in("all", rows, ended)
    quiet = check_code(fit(os.path.join(folder, "quiet"), "--profiler", "simple", "--quiet"), 0)
    check_in("on_train_epoch_end", quiet.err, quiet)
    plain = check_code(fit(os.path.join(folder, "plain")), 0)
    check("training_step" not in plain.err, "no table without the setting")


def story_the_trace_of_libtorch_has_hooks_and_operators(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--profiler", "torch"), 0)
    with open(os.path.join(run, "torch_trace.json"), encoding="utf-8") as f:
        names = [event.get("name") for event in json.load(f)["traceEvents"]]
    check_equal(names.count("training_step"), 3)
    check(any(name and name.startswith("aten::") for name in names), "operators")
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as f:
        check("torch_profiler" not in f.read(), "a resumed run is not profiled")
    again = check_code(fit(run, "--resume", "latest", "--max-epochs", 3), 0)
    check_code(again, 0)


if __name__ == "__main__":
    main(globals())
