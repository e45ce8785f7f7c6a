"""Goal: every mistake of a user gives the documented exit code and an error that names the cause and a fix."""

import gzip
import json
import os
import re
import shutil
import stat

from troupe_program import (SMALL, check, check_code, check_equal, check_in, fit, main, result_of, troupe)

FASHION = "/usr/share/datasets/fashion-mnist"


def refused(code, parts, *arguments, **variables):
    ended = check_code(troupe(*arguments, **variables), code)
    check_equal(ended.out, "", ended)
    for part in parts:
        check_in(part, ended.err, ended)


def story_wrong_flags_are_usage_errors_with_suggestions(folder):
    run = os.path.join(folder, "run")
    refused(2, ['"--rnks"', '"--ranks"'], "fit", "--rnks", 3)
    refused(2, ['"fitt"', '"fit"'], "fitt")
    refused(2, ["ranks", '"two"', "an integer is needed"], "fit", "--run-dir", run, "--ranks", "two")
    refused(2, ["--help"])
    refused(2, ["--run-dir", "--checkpoint"], "test")
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_wrong_keys_and_values_are_configuration_errors_with_suggestions(folder):
    run, config = os.path.join(folder, "run"), os.path.join(folder, "job.toml")
    refused(3, ['"model.hiden"', '"model.hidden"'], "fit", "--run-dir", run, "--set", "model.hiden=[1]")
    refused(3, ["model.name", '"mpl"', '"mlp"'], "fit", "--run-dir", run, "--model", "mpl")
    refused(3, ["ranks", "0", "1"], "fit", "--run-dir", run, "--ranks", 0)
    refused(3, ["TROUPE_RANKS", "an integer"], "fit", "--run-dir", run, TROUPE_RANKS="many")
    with open(config, "w", encoding="utf-8") as f:
        f.write("gradient_clip_val = nan\n")
    refused(3, ["gradient_clip_val = nan (file", "must be finite"], "fit", "--run-dir", run, "--config", config)
    with open(config, "w", encoding="utf-8") as f:
        f.write("ranks = 2\n\n[optimiser]\nlearning_rate = 0.1\n")
    refused(3, ["job.toml:4", "optimizer.learning_rate"], "fit", "--run-dir", run, "--config", config)
    refused(3, ["throw@rank=0,hook=trainin_step", '"training_step"'], "fit", "--run-dir", run, "--fault",
            "throw@rank=0,hook=trainin_step")
    refused(3, ["the rank of a fault is 7", "from 0 to 1"], "fit", "--run-dir", run, "--fault",
            "throw@rank=7,hook=training_step")
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_what_ranks_would_refuse_is_refused_before_the_run_has_a_folder(folder):
    run = os.path.join(folder, "run")
    for parts, arguments in ((["single_device has one rank, not 2", "data_parallel"], ["--strategy", "single_device"]),
                             (["single_device has one rank, not 2"], ["--strategy", "single_device", "--ranks", 1,
                                                                      "--shards", 2]),
                             (["val_check_interval is 17 batches, but an epoch has 16"], ["--val-check-interval", 17]),
                             (["val_check_interval is 3 batches, but an epoch has 2"], ["--val-check-interval", 3,
                                                                                        "--overfit-batches", 2]),
                             (["the accelerator cpu has no graphs"], ["--callback", "lazy_report"]),
                             (["the accelerator cpu has no graphs"], ["--callback", "lazy_report", "--accelerator",
                                                                      "cpu"]),
                             (['"csv" stands there twice'], ["--logger", "csv,tensorboard,csv"])):
        refused(3, parts, "fit", *SMALL, "--run-dir", run, *arguments)
    refused(2, ['max_steps = "" (flag --max-steps): an integer is needed'], "fit", *SMALL, "--run-dir", run,
            "--max-steps=", "--json")
    check(not os.path.exists(run), "a refused call leaves no folder")
    for name, arguments in (("16", ["--val-check-interval", 16]), ("none", ["--val-check-interval", 17,
                                                                            "--limit-val-batches", 0]),
                            ("across", ["--val-check-interval", 17, "--check-val-every-n-epoch", 0]),
                            ("one", ["--strategy", "single_device", "--ranks", 1])):
        check_code(fit(os.path.join(folder, name), *arguments), 0)


def story_a_batch_size_that_would_overflow_is_refused_with_its_limit(folder):
    run = os.path.join(folder, "run")
    for size in (2**31, 2**63 - 1):
        refused(3, ["batch_size", str(size), "2147483647"], "fit", *SMALL, "--run-dir", run, "--batch-size", size)
    refused(3, ["--batch-size", "2147483647"], "data", "order", "--size", 20, "--batch-size", 2**63 - 1)
    check(not os.path.exists(run), "a refused call leaves no folder")
    check_code(fit(run, "--batch-size", 2**31 - 1, "--accumulate-grad-batches", 2**31 - 1), 0)
    result = result_of(run)
    check_equal((result["steps"], result["samples"]), (2, 512))


def story_a_folder_given_as_configuration_file_is_refused(folder):
    run = os.path.join(folder, "run")
    refused(3, [folder, "folder", "config.toml"], "fit", *SMALL, "--run-dir", run, "--config", folder)
    check_equal(check_code(troupe("config", "validate", folder), 3).out, "")
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_config_validate_names_options_that_the_strategy_refuses(folder):
    file = os.path.join(folder, "job.toml")
    restarts = "[elastic]\nmax_restarts = 1\n[strategy]\n"
    for text, part in ((restarts + "fused_step = true\n", "strategy.fused_step"),
                       (restarts + "comm_hook = 'powersgd'\n", "powersgd"),
                       ("ranks = 2\n[strategy]\nname = 'single_device'\n", "single_device has one rank, not 2")):
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        refused(3, [part], "config", "validate", file)


def story_help_lists_only_what_this_build_supports(folder):
    run = os.path.join(folder, "run")
    texts = check_code(troupe("fit", "--help"), 0).out + check_code(troupe("config", "schema"), 0).out
    listed = [w for w in re.split(r"[^a-z0-9_-]+", texts) if w == "simulated"]
    check_equal(listed, [])
    refused(3, ["simulated", "threads or processes"], "fit", *SMALL, "--run-dir", run, "--placement", "simulated")
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_ranks_train_on_lazy_tensors_and_mixed_precision_is_refused(folder):
    run = os.path.join(folder, "run")
    lazy = ["--accelerator", "lazy"]
    check_in("lazy", check_code(troupe("doctor"), 0).out)
    refused(6, ["elastic.shards = 4 and ranks = 2", "use --ranks 4"], "fit", *SMALL, "--run-dir", run, *lazy, "--ranks",
            2, "--shards", 4)
    refused(3, ["no mixed precision", "32-true"], "fit", *SMALL, "--run-dir", run, *lazy, "--precision", "bf16-mixed")
    check(not os.path.exists(run), "a refused call leaves no folder")
    for ranks, placement in ((1, "threads"), (2, "threads"), (2, "processes")):
        ends = []
        for name in ("lazy", "cpu"):
            place = os.path.join(folder, f"{name}-{ranks}-{placement}")
            run_on = ["--ranks", ranks, "--placement", placement, "--accelerator", name]
            check_code(fit(place, *run_on, "--max-steps", 4), 0)
            ends.append(result_of(place))
        lazily, eagerly = ends
        check_equal((lazily["steps"], lazily["samples"]), (eagerly["steps"], eagerly["samples"]))
        apart = abs(lazily["metrics"]["train/loss"] - eagerly["metrics"]["train/loss"])
        check(apart < 1e-5, f"the losses of {ranks} ranks as {placement} are {apart} apart")


def story_each_precision_that_help_lists_trains(folder):
    schema = json.loads(check_code(troupe("config", "schema"), 0).out)
    names = schema["properties"]["precision"]["enum"]
    check_equal(names, ["32-true", "64-true", "bf16-true", "bf16-mixed", "16-true", "16-mixed", "32", "64", "16",
                        "bf16"])
    about = check_code(troupe("doctor"), 0).out
    for name in names[:6]:  # the others are short names of them
        check_code(fit(os.path.join(folder, name), "--precision", name, "--max-steps", 1, "--optimizer", "sgd"), 0)
        check_in(name, about)
    run = os.path.join(folder, "run")
    for optimizer in ("adam", "adamw"):
        refused(3, ["16-true", "eps 1e-08 is 0 in float16", "16-mixed"], "fit", *SMALL, "--run-dir", run, "--precision",
                "16-true", "--optimizer", optimizer)
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_powersgd_trains_and_is_refused_where_ranks_may_be_lost(folder):
    how = ["--set", "strategy.comm_hook=powersgd", "--set", "strategy.powersgd.start_step=0", "--set",
           "strategy.powersgd.rank=2", "--max-steps", 2]
    check_code(fit(os.path.join(folder, "trained"), *how), 0)
    run = os.path.join(folder, "run")
    refused(3, ['strategy.comm_hook = "powersgd"', "elastic.max_restarts to 0"], "fit", *SMALL, "--run-dir", run, *how,
            "--max-restarts", 1)
    check(not os.path.exists(run), "a refused call leaves no folder")


def story_a_run_folder_that_is_not_writable_or_holds_a_run_is_refused(folder):
    refused(3, ["/proc/nowhere", "--run-dir"], "fit", *SMALL, "--run-dir", "/proc/nowhere")
    taken = os.path.join(folder, "file")
    with open(taken, "w", encoding="utf-8"):
        pass
    refused(3, [taken, "--run-dir"], "fit", *SMALL, "--run-dir", os.path.join(taken, "run"))
    run = os.path.join(folder, "run")
    check_code(fit(run, "--max-steps", 1), 0)
    refused(3, [run, "--resume latest"], "fit", *SMALL, "--run-dir", run)


def story_missing_data_are_an_error_with_the_path_and_a_fix(folder):
    ended = troupe("fit", "--run-dir", os.path.join(folder, "run"), "--data-dir", os.path.join(folder, "absent"))
    check_code(ended, 3)
    check_in(os.path.join(folder, "absent"), ended.err)
    check_in("dataset-fashion-mnist", ended.err)


def story_damaged_data_are_an_error_with_the_file(folder):
    if not os.path.isdir(FASHION):
        return
    data = os.path.join(folder, "data")
    shutil.copytree(FASHION, data)
    images = next(os.path.join(data, n) for n in sorted(os.listdir(data)) if n.startswith("train-images"))
    with open(images, "rb") as f:
        whole = f.read()
    with open(images, "wb") as f:
        f.write(whole[: len(whole) // 2])
    ended = check_code(troupe("fit", "--run-dir", os.path.join(folder, "run"), "--data-dir", data), 3)
    check_in("train-images", ended.err)
    with open(images, "wb") as f:
        f.write(gzip.compress(b"not an IDX file"))
    ended = check_code(troupe("fit", "--run-dir", os.path.join(folder, "again"), "--data-dir", data), 3)
    check_in("train-images", ended.err)


def story_a_missing_checkpoint_exits_with_5_and_a_missing_device_with_6(folder):
    run = os.path.join(folder, "run")
    refused(5, [run], "fit", *SMALL, "--run-dir", run, "--resume", "latest")
    refused(5, [run], "test", "--run-dir", run)
    refused(5, [run], "checkpoint", "inspect", run)
    refused(6, ["devices = 2", "--devices auto"], "fit", *SMALL, "--run-dir", run, "--accelerator", "cpu", "--devices",
            2)
    about = {d["name"]: d for d in json.loads(check_code(troupe("doctor", "--json"), 0).out)["devices"]}
    if about["cuda"]["available"]:
        print("not checked here: a refusal without a GPU, because there is one")
    else:  # the words of doctor
        refused(6, ["cuda", about["cuda"]["about"]], "fit", *SMALL, "--run-dir", run, "--accelerator", "cuda")
    refused(6, ["carries tensors of GPUs", "--communicator auto"], "fit", *SMALL, "--run-dir", run, "--accelerator",
            "cpu", "--communicator", "nccl")


def story_an_export_replaces_only_a_file_and_only_with_force(folder):
    run, pipe, file = (os.path.join(folder, name) for name in ("run", "pipe", "model.pt"))
    check_code(fit(run, "--max-steps", 1), 0)
    os.mkfifo(pipe)
    for arguments in ([pipe], [pipe, "--force"], [folder, "--force"]):
        refused(3, [arguments[0], "--output"], "checkpoint", "export", run, "--output", *arguments)
    check(stat.S_ISFIFO(os.stat(pipe).st_mode), "a pipe stays a pipe")
    check_code(troupe("checkpoint", "export", run, "--output", file), 0)
    first = os.path.getsize(file)
    refused(3, [file, "--force"], "checkpoint", "export", run, "--format", "safetensors", "--output", file)
    check_equal(os.path.getsize(file), first)
    check_code(troupe("checkpoint", "export", run, "--format", "safetensors", "--output", file, "--force"), 0)
    check(os.path.getsize(file) != first, "--force replaces the file")
    check_equal(sorted(os.listdir(folder)), ["model.pt", "pipe", "run"])


def story_weights_that_do_not_fit_are_refused(folder):
    small, run = os.path.join(folder, "small"), os.path.join(folder, "run")
    check_code(fit(small, "--max-steps", 1), 0)
    weights = os.path.join(folder, "weights.safetensors")
    check_code(troupe("checkpoint", "export", small, "--format", "safetensors", "--output", weights), 0)
    ended = fit(run, "--set", "model.hidden=[17]", "--init-weights", weights)
    check(ended.code in (3, 5), ended)
    check_in("net.1.weight", ended.err)


def story_reading_commands_print_json_with_a_schema(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--max-steps", 3), 0)
    latest = os.path.join(run, "checkpoints", "latest")
    for arguments in (["models", "--json"], ["doctor", "--json"], ["config", "print", "--json"], ["config", "schema"],
                      ["status", run, "--json"], ["checkpoint", "inspect", latest, "--json"],
                      ["checkpoint", "verify", latest, "--json"], ["checkpoint", "list", run, "--json"]):
        ended = check_code(troupe(*arguments), 0)
        objects = [ended.json()] if arguments[:2] == ["config", "schema"] else ended.lines()
        check(all(o["schema"].startswith("troupe.") for o in objects), ended)
    inspected = troupe("checkpoint", "inspect", latest, "--json").json()
    check_equal((inspected["step"], inspected["epoch"], inspected["ranks"]), (3, 0, 2))
    check_equal([t["name"] for t in inspected["tensors"]][:2], ["net.1.weight", "net.1.bias"])
    check_equal(sorted(inspected["files"][0]), ["bytes", "hash", "name"])


def story_doctor_prints_bytes_that_are_no_text(folder):
    launcher = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "\udcff", "SLURM_PROCID": "0"}  # the byte 0xff
    named = check_code(troupe("doctor", "--json", **launcher), 0).json()["problems"]
    check(any("SLURM_NTASKS" in one and "\ufffd" in one for one in named), named)


def story_what_follows_the_end_of_flags_is_no_flag(folder):
    run = os.path.join(folder, "-r1")
    check_code(fit(run, "--max-steps", "1"), 0)
    there = ["bash", "-c", 'cd "$0" && exec "$@"', folder]
    for arguments in (["status", "--", "-r1"], ["report", "--json", "--", "-r1"]):
        check_in("-r1", check_code(troupe(*arguments, before=there), 0).out)
    for arguments in (["status", "--", "-r1", "-r2"], ["status", "-r1"], ["status", "--", "-r1", "--"]):
        check_code(troupe(*arguments, before=there), 2)
    check_in('unknown argument "-r2"', troupe("status", "--", "-r1", "-r2", before=there).err)


def story_a_variable_holds_a_list_of_texts(folder):
    def callbacks(text):
        lines = check_code(troupe("config", "print", TROUPE_CALLBACK=text), 0).out.splitlines()
        return next(line for line in lines if line.startswith("callbacks"))

    check_in('callbacks = ["ema", "lr_monitor"]', callbacks('["ema","lr_monitor"]'))
    check_in('callbacks = ["ema"]', callbacks("ema"))
    check_in('callbacks = ["[ema"]', callbacks("[ema"))


def story_models_prints_the_layers_of_each_model(folder):
    plain, layered = (check_code(troupe("models", *more), 0).out for more in ([], ["--layers"]))
    check("Linear" not in plain, plain)
    mlp = layered[layered.index("mlp "):]
    check_in("Linear", mlp)
    ended = check_code(troupe("models", "--layers", "--json"), 0)
    check(all("Trainable params" in model["layers"] for model in ended.lines()), ended)


def story_the_list_of_checkpoints_marks_the_best_one(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--set", "checkpoint.mode=max", "--set", "checkpoint.monitor=val/loss"), 0)
    first, last = check_code(troupe("checkpoint", "list", run, "--json"), 0).lines()
    check_equal((first["monitor"], last["monitor"]), ("val/loss", "val/loss"))
    check(first["value"] > last["value"], (first, last))  # so the first one is the best for `max`
    check_equal([one["best"] for one in (first, last)], [True, False])
    check_equal([one["latest"] for one in (first, last)], [False, True])
    texts = check_code(troupe("checkpoint", "list", run), 0).out.splitlines()
    check_in("  best: val/loss ", texts[0])
    check("best" not in texts[1] and texts[1].endswith("  latest"), texts)
    # Without its configuration nothing says what the run compared.
    os.remove(os.path.join(run, "config.toml"))
    entries = check_code(troupe("checkpoint", "list", run, "--json"), 0).lines()
    check_equal([(one["monitor"], one["value"], one["best"]) for one in entries], 2 * [(None, None, False)])


def story_only_accelerators_of_this_build_are_offered(folder):
    about = {d["name"]: d for d in check_code(troupe("doctor", "--json"), 0).json()["devices"]}
    accelerator = check_code(troupe("config", "schema"), 0).json()["properties"]["accelerator"]
    with_cuda = "was built without CUDA" not in about["cuda"]["about"]
    check_equal("cuda" in accelerator["enum"], with_cuda)
    check_equal("cuda" in accelerator.get("x-other-builds", []), not with_cuda)
    helped = check_code(troupe("fit", "--help"), 0).out
    part = helped[helped.index("--accelerator"):helped.index("--devices")]
    check_equal("cuda" in part, with_cuda, part)


def story_data_order_prints_the_samples_of_each_batch_and_rank(folder):
    lines = check_code(troupe("data", "order", "--size", 20, "--ranks", 2, "--batch-size", 4, "--json"), 0).lines()
    check_equal(sorted(s for line in lines for s in line["samples"]), list(range(20)))
    check_equal([(line["batch"], line["rank"], len(line["samples"])) for line in lines],
                [(0, 0, 4), (0, 1, 4), (1, 0, 4), (1, 1, 4), (2, 0, 2), (2, 1, 2)])
    check_equal(json.dumps(lines), json.dumps(troupe("data", "order", "--size", 20, "--ranks", 2, "--batch-size", 4,
                                                     "--json").lines()))


def story_a_configuration_that_is_no_regular_file_is_named(folder):
    piped = ["bash", "-c", "echo 'max_epochs = 1' | \"$0\" \"$@\""]
    ended = check_code(troupe("config", "print", "--config", "/dev/stdin", before=piped), 3)
    check_in("/dev/stdin: it is no regular file; name a TOML file", ended.err)


def story_a_folder_with_too_long_a_name_is_named(folder):
    long = os.path.join(folder, "a" * 300)
    for ended in (fit(long), fit(os.path.join(folder, "run"), "--resume", long), troupe("test", "--run-dir", long)):
        check(ended.code in (3, 5), ended)
        check_in(f"{long}", ended.err)
        check_in("File name too long", ended.err)


def story_without_a_terminal_nothing_is_coloured_or_redrawn(folder):
    ended = check_code(fit(os.path.join(folder, "run"), "--progress", "auto"), 0)
    check("\x1b" not in ended.out + ended.err and "\r" not in ended.out + ended.err, ended)


if __name__ == "__main__":
    main(globals())
