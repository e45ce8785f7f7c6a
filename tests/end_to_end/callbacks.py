"""Goal: callbacks given by name take part in the program's runs, with ranks as threads and as processes."""

import csv
import json
import os

from troupe_program import check, check_code, check_equal, check_in, checkpoints_of, fit, main, result_of, troupe

EMA = "ema,decay=0.9"
# The same policies as options and as callbacks: 8 steps in the first epoch, 4 in each other one, and an end after the
# fourth validation, because no loss improves by so much.
BY_OPTION = ["--set", "early_stopping.monitor=val/loss", "--set", "early_stopping.min_delta=100",
             "--checkpoint-every-n-steps", 11, "--set", "checkpoint.every_epoch=false", "--keep-last", 2,
             "--set", "checkpoint.monitor=val/accuracy", "--set", "checkpoint.mode=max",
             "--accumulate-schedule", "0:2,1:4"]
BY_CALLBACK = ["early_stopping,monitor=val/loss,min_delta=100",
               "model_checkpoint,every_epoch=false,every_n_steps=11,keep_last=2,monitor=val/accuracy,mode=max",
               "gradient_accumulation_scheduler,0=2,1=4"]
FLAGS = [word for text in BY_CALLBACK for word in ("--callback", text)]
LONG = ["--max-epochs", 9]


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


def ending_of(run):
    result = result_of(run)
    return result["status"], result["steps"], result["weights_digest"], checkpoints_of(run)


def bests_of(run):
    listed = check_code(troupe("checkpoint", "list", run, "--json"), 0).lines()
    return [(one["step"], one["monitor"], one["best"]) for one in listed]


def story_policies_by_callback_are_those_by_option(folder):
    by_option = os.path.join(folder, "options")
    check_code(fit(by_option, *LONG, *BY_OPTION), 0)
    expected = ending_of(by_option)
    check_equal(expected[:2], ("finished", 20))
    check_equal(expected[3], ["step-00000011", "step-00000020"])
    config = os.path.join(folder, "job.toml")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f"callbacks = {json.dumps(BY_CALLBACK)}\n")
    processes = ["--placement", "processes"]
    kill = ["--max-restarts", 2, "--fault", "kill@rank=1,hook=training_step,step=13"]
    for name, how in (("threads", FLAGS), ("file", ["--config", config]), ("processes", [*FLAGS, *processes]),
                      ("killed", [*FLAGS, *processes, *kill])):
        run = os.path.join(folder, name)
        ended = check_code(fit(run, *LONG, *how), 0)
        check_equal(ending_of(run), expected, ended)
        check_equal(result_of(run).get("restarts", 0), int(name == "killed"), ended)
        check_equal(bests_of(run), bests_of(by_option))


def story_a_resumed_run_goes_on_counting_for_a_callback(folder):
    whole, halves = os.path.join(folder, "whole"), os.path.join(folder, "halves")
    check_code(fit(whole, *LONG, *FLAGS), 0)
    check_code(fit(halves, *LONG, *FLAGS, "--max-steps", 14), 0)
    check_code(fit(halves, *LONG, "--max-steps", 1000, "--resume", "latest"), 0)
    check_equal(ending_of(halves)[:3], ending_of(whole)[:3])


def story_a_callback_and_a_setting_that_contradict_each_other_are_refused(folder):
    run = os.path.join(folder, "run")
    stops, saves, accumulates = BY_CALLBACK
    for text, setting, parts in (
            (stops, ["--set", "early_stopping.monitor=val/loss"], ["option stop_early (early_stopping.monitor)"]),
            (saves, ["--keep-last", 3], ["option checkpoint.keep_last is 3, and that of model_checkpoint is 2"]),
            (saves, ["--no-enable-checkpointing"], ["enable_checkpointing is false", "model_checkpoint"]),
            (accumulates, ["--accumulate-grad-batches", 2],
             ["option accumulate_grad_batches is 2", "gradient_accumulation_scheduler is 0:2,1:4"])):
        ended = check_code(fit(run, "--callback", text, *setting), 3)
        for part in [*parts, "leave one of them out"]:
            check_in(part, ended.err, ended)
    check(not os.path.exists(run), "a refused call leaves no folder")
    check_code(fit(run, *FLAGS, "--fast-dev-run", 1), 0)


def story_the_schema_names_each_callback(folder):
    refused = check_code(fit(os.path.join(folder, "run"), "--callback", "emma"), 3)
    known = refused.err.strip().split("use one of ")[1].split(", ")
    described = json.loads(check_code(troupe("config", "schema"), 0).out)["properties"]["callbacks"]["description"]
    check(len(known) > 10, known)
    check_equal(sorted(described.split("repeat: ")[1].split(", ")), sorted(known))


def story_callbacks_that_cannot_work_end_a_fit_before_its_first_step(folder):
    two_timers = ["--callback", "timer,max_seconds=100", "--callback", "timer,max_seconds=50,every=epoch"]
    for code, part, callbacks in ((3, "it never starts", ["--callback", "swa,start=1.0"]),
                                  (1, "failed in on_train_start", two_timers)):
        ended = check_code(fit(os.path.join(folder, f"run{code}"), *callbacks), code)
        check_in(part, ended.err, ended)


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
