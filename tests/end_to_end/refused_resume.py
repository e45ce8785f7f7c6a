"""Goal: a resume with settings that must not change is refused, with the reason, and a refused call changes no file."""

import os

from troupe_program import check, check_code, check_equal, check_in, checkpoints_of, fit, main, result_of, troupe

HALF = ["--max-steps", 20]  # of 32; an epoch has 16
WHOLE = ["--max-steps", 1000]


def everything(folder):
    """The bytes of every file below a folder, and the target of every link."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(place, name)
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif os.path.isfile(path):
                with open(path, "rb") as f:
                    found[path] = f.read()
            else:
                found[path] = None
    return found


def refused(folder, run, code, parts, *arguments):
    before = everything(folder)
    ended = check_code(fit(run, *arguments), code)
    for part in parts:
        check_in(part, ended.err, ended)
    after = everything(folder)
    changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
    check(not changed, f"changed by a refused call: {changed}\n{ended}")


def story_a_resume_with_other_ranks_or_batch_size_consumes_the_rest_of_the_epoch(folder):
    data = ["--set", "data.samples=960", "--max-epochs", 1]
    first = [*data, "--ranks", 2, "--batch-size", 16]
    for name, now in {"ranks": ["--ranks", 3], "batches": ["--batch-size", 7],
                      "both": ["--ranks", 1, "--batch-size", 50],
                      "processes": ["--ranks", 3, "--placement", "processes"]}.items():
        run = os.path.join(folder, name)
        check_code(fit(run, *first, "--max-steps", 10), 0)
        check_code(fit(run, *first, *now, *WHOLE, "--resume", "latest"), 0)
        result = result_of(run)
        check_equal((result["status"], result["samples"], result["epochs"]), ("finished", 960, 1), name)


def story_a_resume_with_a_forbidden_change_names_it_and_writes_nothing(folder):
    run = os.path.join(folder, "run")
    whole = os.path.join(folder, "whole")
    check_code(fit(whole), 0)
    check_code(fit(run, *HALF), 0)
    for code, parts, arguments in (
            (3, ["made with seed 0, this run has 1", "--seed 0"], ["--seed", 1]),
            (3, ["256 samples of training data, this run has 200"], ["--set", "data.samples=200"]),
            (5, ["do not fit the model", "net"], ["--set", "model.hidden=[17]"]),
            (5, ["it is of sgd, not of adam"], ["--optimizer", "adam"]),
            (6, ["nccl"], ["--communicator", "nccl"]),
            (3, ["val_check_interval"], ["--val-check-interval", 0]),
            (3, ["has finished 1 epochs, but max_epochs is 0"], ["--max-epochs", 0]),
            (3, ["steps, but max_steps is 1"], ["--max-steps", 1]),
    ):
        refused(folder, run, code, parts, *HALF, "--resume", "latest", *arguments)
        refused(folder, run, code, parts, "--resume", os.path.join(run, "checkpoints", "latest"), *arguments)
    # Without the wrong argument the same call continues the run.
    check_code(fit(run, *WHOLE, "--resume", "latest"), 0)
    check_equal(result_of(run)["weights_digest"], result_of(whole)["weights_digest"])


def story_a_resume_with_other_options_of_the_optimizer_is_refused(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *HALF, "--learning-rate", 0.02), 0)
    for key, value, then in (("learning-rate", 0.1, "0.02"), ("momentum", 0.5, "0.9"), ("weight-decay", 0.01, "0.0")):
        flag = f"--{key}"
        parts = [f"optimizer.{key.replace('-', '_')} = {value} (flag {flag})", f"is of a run with {then}",
                 "leave this one out", "--init-weights"]
        refused(folder, run, 3, parts, *WHOLE, "--resume", "latest", flag, value)
        refused(folder, run, 3, parts, "--resume", os.path.join(run, "checkpoints", "latest"), flag, value)
    refused(folder, run, 3, ["(--set)"], "--resume", "latest", "--set", "optimizer.learning_rate=0.1")
    other = os.path.join(folder, "other.toml")
    with open(other, "w") as file:
        file.write("[optimizer]\nmomentum = 0.5\n")
    refused(folder, run, 3, [f"(file {other}:2)"], "--resume", "latest", "--config", other)
    # The proposed way: a fresh run from the weights.
    weights = os.path.join(run, "checkpoints", "latest", "model.safetensors")
    check_code(fit(os.path.join(folder, "fresh"), *HALF, "--init-weights", weights, "--learning-rate", 0.1), 0)
    # The run's own value is no change.
    check_code(fit(run, *WHOLE, "--resume", "latest", "--learning-rate", 0.02, "--momentum", 0.9), 0)


def story_a_resume_with_another_schedule_is_refused(folder):
    run, whole = (os.path.join(folder, name) for name in ("run", "whole"))
    made = ["--learning-rate", 0.02, "--set", "optimizer.scheduler=cosine", "--set", "optimizer.warmup_epochs=1"]
    check_code(fit(whole, *made), 0)
    check_code(fit(run, *HALF, *made), 0)
    for key, value, then in (("scheduler", '"polynomial"', '"cosine"'), ("scheduler", '"none"', '"cosine"'),
                             ("warmup_epochs", 0, 1)):
        parts = [f"optimizer.{key} = {value} (--set)", f"is of a run with {then}", "leave this one out"]
        refused(folder, run, 3, parts, *WHOLE, "--resume", "latest", "--set", f"optimizer.{key}={value}")
    # Another configuration file need not repeat the run's options: they go on, and config.toml says so.
    other = os.path.join(folder, "other.toml")
    with open(other, "w", encoding="utf-8") as file:
        file.write("ranks = 2\n")
    check_code(fit(run, *WHOLE, "--resume", "latest", "--config", other), 0)
    check_equal(result_of(run)["weights_digest"], result_of(whole)["weights_digest"])
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as file:
        text = file.read()
    for line in ("learning_rate = 0.02", 'scheduler = "cosine"', "warmup_epochs = 1"):
        check_in(line, text)


def story_a_schedule_keeps_its_length(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--set", "optimizer.scheduler=cosine"), 0)
    epochs = result_of(run)["epochs"]
    refused(folder, run, 3, [f"max_epochs = {epochs + 2} (flag --max-epochs)", f"is of a run with {epochs}",
                             "--init-weights"], "--resume", "latest", "--max-epochs", epochs + 2)


def story_weights_that_a_run_began_with_are_not_read_again(folder):
    run, whole, weights = (os.path.join(folder, name) for name in ("run", "whole", "w.safetensors"))
    check_code(fit(whole, *HALF), 0)
    os.rename(os.path.join(whole, "checkpoints", "latest", "model.safetensors"), weights)
    check_code(fit(run, *HALF, "--init-weights", weights), 0)
    refused(folder, run, 2, ["init_weights (flag --init-weights)", "both name weights"], *WHOLE, "--resume", "latest",
            "--init-weights", weights)
    ended = check_code(troupe("test", "--run-dir", run, "--init-weights", weights, "--progress", "never"), 2)
    check_in("both name weights", ended.err)
    os.remove(weights)
    check_code(fit(run, *WHOLE, "--resume", "latest"), 0)
    check_code(troupe("test", "--run-dir", run, "--progress", "never"), 0)


def story_a_run_is_resumed_through_a_link(folder):
    real, run = os.path.join(folder, "real"), os.path.join(folder, "link", "run")
    os.mkdir(real)
    os.symlink(real, os.path.join(folder, "link"))
    check_code(fit(run, *HALF), 0)
    check_code(fit(run, *WHOLE, "--resume", os.path.join(real, "run", "checkpoints", "step-00000020")), 0)
    check_equal(checkpoints_of(run), ["step-00000032"])  # an older one is removed, as without a link


def story_a_resume_with_another_data_set_is_refused(folder):
    run = os.path.join(folder, "run")
    data = "/usr/share/datasets/fashion-mnist"
    if not os.path.isdir(data):
        print("SKIPPED: no second data set here")
        return
    check_code(fit(run, *HALF, "--set", "model.hidden=[4]"), 0)
    ended = check_code(troupe("fit", "--run-dir", run, "--data", "fashion_mnist", "--resume", "latest"), 3)
    for part in ("made with data set synthetic, this run has fashion_mnist", "--data synthetic",
                 "data.samples (file", "has no effect: the data set fashion_mnist has no data.samples"):
        check_in(part, ended.err, ended)


def story_a_resume_into_the_folder_of_another_run_is_refused(folder):
    one, other, link = (os.path.join(folder, name) for name in ("one", "other", "link"))
    check_code(fit(one, *HALF), 0)
    check_code(fit(other, *HALF), 0)
    os.symlink(one, link)
    for named in (one, link, os.path.join(one, "checkpoints", "latest"),
                  os.path.join(one, "checkpoints", "step-00000020")):
        refused(folder, other, 3, [f"{other} holds another run", "leave out --run-dir", "name a new folder"], *WHOLE,
                "--resume", named)
    # The same run, through a link and with a slash at the end.
    check_code(fit(link, *WHOLE, "--resume", os.path.join(one, "checkpoints", "latest/")), 0)
    check_code(fit(os.path.join(folder, "new"), *WHOLE, "--resume", one), 0)


def story_a_fit_with_wrong_settings_leaves_no_folder(folder):
    run = os.path.join(folder, "new", "run")
    for code, arguments in ((3, ["--data", "csv", "--data-dir", os.path.join(folder, "absent")]),
                            (3, ["--val-check-interval", 0]),
                            (6, ["--communicator", "nccl"]),
                            (6, ["--communicator", "inproc", "--placement", "processes"])):
        ended = fit(run, *arguments)
        check(ended.code in (code, 2), ended)
        check(not os.path.exists(os.path.join(folder, "new")), f"a folder was left\n{ended}")


def story_a_resume_of_a_finished_run_evaluates_its_weights(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    before = result_of(run)
    check_code(fit(run, "--resume", "latest"), 0)
    check_equal(result_of(run)["metrics"], before["metrics"])
    check_equal(result_of(run)["weights_digest"], before["weights_digest"])
    check_equal(checkpoints_of(run)[-1], "step-00000032")
    tested = check_code(troupe("test", "--run-dir", run, "--progress", "never", "--json"), 0).json()
    check_equal(tested["metrics"]["test/accuracy"], before["metrics"]["test/accuracy"])
    for path in (run, run + "/", os.path.join(run, "checkpoints", "latest")):
        named = check_code(troupe("test", "--checkpoint", path, "--progress", "never", "--json"), 0).json()
        check_equal(named["metrics"], tested["metrics"], path)
    other = os.path.join(folder, "other")
    check_code(fit(other, "--resume", run, "--max-epochs", 3), 0)
    check_equal(result_of(other)["epochs"], 3)


def story_a_new_folder_goes_on_with_the_settings_of_the_checkpoint(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--gradient-clip-val", 0.5, "--precision", "bf16-mixed", "--callback", "ema", "--ranks", 1), 0)

    def config_of(place):
        with open(os.path.join(place, "config.toml"), encoding="utf-8") as file:
            return [line for line in file if not line.startswith(("#", "max_epochs"))]

    for name, named in (("of_run", run), ("of_checkpoint", os.path.join(run, "checkpoints", "latest"))):
        other = os.path.join(folder, name)
        ended = check_code(troupe("fit", "--run-dir", other, "--resume", named, "--max-epochs", 3, "--progress",
                                  "never"), 0)
        check_in(f"settings of {os.path.relpath(os.path.join(run, 'config.toml'))}" if name == "of_checkpoint" else
                 f"settings of {os.path.join(run, 'config.toml')}", ended.err, ended)
        check_equal((config_of(other), result_of(other)["epochs"]), (config_of(run), 3))
    # Another file replaces them.
    plain = os.path.join(folder, "plain.toml")
    with open(plain, "w", encoding="utf-8") as file:
        file.write("ranks = 1\nbatch_size = 4\n")
    other = os.path.join(folder, "other")
    check_code(fit(other, "--resume", run, "--config", plain, "--max-epochs", 3), 0)
    check(config_of(other) != config_of(run), "the settings of the run were read")


def story_an_evaluation_of_a_folder_without_the_checkpoint_is_refused(folder):
    run, other = (os.path.join(folder, name) for name in ("run", "other"))
    check_code(fit(run, *HALF), 0)
    check_code(fit(other, *HALF), 0)
    checkpoint = os.path.join(run, "checkpoints", "step-00000020")
    for command in ("test", "validate", "predict"):
        for wrong in (other, os.path.join(folder, "typo")):
            ended = check_code(troupe(command, "--run-dir", wrong, "--checkpoint", checkpoint), 3)
            check_in(f'run_dir = "{wrong}" (flag --run-dir) is no run with the checkpoint {checkpoint}', ended.err)
            check_equal(ended.out, "", ended)
    for right in (["--run-dir", run], ["--run-dir", run + "/"], []):
        check_code(troupe("test", *right, "--checkpoint", checkpoint, "--progress", "never"), 0)


def story_an_evaluation_notes_the_settings_that_it_has_no_use_for(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, *HALF, "--logger", "csv,tensorboard"), 0)
    before = everything(folder)
    ended = check_code(troupe("test", "--run-dir", run, "--progress", "never", "--logger", "tensorboard",
                              "--metrics-port", 0, "--profiler", "torch"), 0)
    for part in ("logger (flag --logger)", "metrics_port (flag --metrics-port)", "profiler (flag --profiler)"):
        check_in(f"note: {part} has no effect on test\n", ended.err, ended)
    check_equal(everything(folder), before)
    ended = check_code(troupe("test", "--run-dir", run, "--progress", "never", "--profiler", "simple"), 0)
    check("has no effect" not in ended.err, ended)


if __name__ == "__main__":
    main(globals())
