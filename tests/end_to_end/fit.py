"""Goal: fit, test, validate and predict on two ranks give the documented folder, metrics and files, reproducibly."""

import json
import os

from troupe_program import (SMALL, Traced, check, check_code, check_equal, check_in, checkpoints_of, fit,
                            is_hex_digest, main, metrics_of, result_of, troupe)

RESULT = {"schema": str, "status": str, "epochs": int, "steps": int, "samples": int, "ranks": int, "generation": int,
          "metrics": dict, "weights_digest": str, "seconds": dict, "samples_per_second": float, "waiting_share": list,
          "non_finite_steps": int, "failure": type(None)}


def story_a_fit_writes_its_run_folder_and_prints_its_accuracy_last(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run), 0)
    result = result_of(run)
    check_equal({k: type(v) for k, v in result.items()}, RESULT)
    check_equal(list(result), list(RESULT))
    check_equal((result["schema"], result["status"]), ("troupe.result/1", "finished"))
    check_equal((result["epochs"], result["steps"], result["samples"], result["ranks"]), (2, 32, 512, 2))
    check_equal(sorted(result["metrics"]),
                ["test/accuracy", "test/loss", "train/loss", "val/accuracy", "val/loss"])
    check(is_hex_digest(result["weights_digest"]), result)
    check(0 < result["seconds"]["to_first_step"] < result["seconds"]["total"], result)
    accuracy = f"{result['metrics']['test/accuracy']:.4f}"
    check_equal(ended.out.splitlines()[-1], f"test accuracy {accuracy}, run folder {run}")
    check_equal(sorted(os.listdir(run)),
                ["checkpoints", "config.toml", "events.jsonl", "figures.csv", "lock", "metrics.csv", "result.json"])
    check_equal(os.readlink(os.path.join(run, "checkpoints", "latest")), "step-00000032")
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as f:
        events = [json.loads(line)["event"] for line in f]
    for event in ("rank_started", "generation_active", "checkpoint_written", "job_ended"):
        check_in(event, events)


def story_metrics_csv_has_a_row_per_logged_step(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--log-every-n-steps", 4), 0)
    rows = metrics_of(run)
    logged = [r["step"] for r in rows if "train/loss" in r]
    check_equal([s for s in logged if s % 4 == 0][:4], [4, 8, 12, 16])
    check_equal([(r["step"], r["epoch"]) for r in rows if "val/accuracy" in r], [(16, 0), (32, 1)])
    check_equal([(r["step"], r["epoch"]) for r in rows if "test/accuracy" in r], [(32, 1)])


def story_figures_csv_has_learning_rate_throughput_and_memory(folder):
    run, asked = os.path.join(folder, "run"), os.path.join(folder, "asked")
    names = ["run/learning_rate", "run/process_memory_mib", "run/samples_per_second"]
    traced = Traced(run, "--log-every-n-steps", 4, hold=("training_step", {"step": 14}))
    traced.wait_for("training_step", step=14)
    live = check_code(troupe("status", run, "--json"), 0).json()["live"]["metrics"]
    check("train/loss" in live and not set(names) & set(live), live)
    traced.release()
    check_code(traced.end(), 0)
    rows = metrics_of(run, "figures.csv")
    check_equal([row["step"] for row in rows], list(range(4, 33, 4)))
    check_equal({row["run/learning_rate"] for row in rows}, {0.05})
    for row in rows:
        check(row["run/samples_per_second"] > 0 and row["run/process_memory_mib"] > 20, row)
    for kept in (result_of(run)["metrics"], *metrics_of(run)):
        check(not set(names) & set(kept), kept)
    often = ("--log-every-n-steps", 4, "--checkpoint-every-n-steps", 8)
    killed = os.path.join(folder, "killed")
    check_code(fit(killed, *often, "--fault", "kill@rank=0,hook=training_step,step=14"), -9)
    check_code(fit(killed, *often, "--resume", "latest"), 0)
    check_equal([row["step"] for row in metrics_of(killed, "figures.csv")], list(range(4, 33, 4)))
    check_code(fit(asked, "--log-every-n-steps", 4, "--callback", "figures"), 0)
    check("figures.csv" not in os.listdir(asked), "a second file of the same figures")
    check_equal(sorted(name for name in metrics_of(asked)[0] if name.startswith("run/")), names)
    check_equal(result_of(asked)["weights_digest"], result_of(run)["weights_digest"])


def story_a_report_of_a_batch_with_fewer_samples_than_ranks_has_its_values(folder):
    run = os.path.join(folder, "run")
    # The second step of an epoch has one sample: three of the four ranks run no step.
    check_code(fit(run, "--ranks", 4, "--set", "data.samples=33", "--log-every-n-steps", 1,
                   "--callback", "lr_monitor"), 0)
    check_equal([row["step"] for row in metrics_of(run, "figures.csv")], [1, 2, 3, 4])
    check_equal([row["step"] for row in metrics_of(run) if "train/loss" in row], [1, 2, 3, 4])


def story_equal_seeds_give_equal_weights_and_another_seed_does_not(folder):
    digests = []
    for i, seed in enumerate((5, 5, 5, 6)):
        run = os.path.join(folder, str(i))
        check_code(fit(run, "--seed", seed, "--set", "model.dropout=0.3"), 0)
        digests.append(result_of(run)["weights_digest"])
    check_equal(len(set(digests[:3])), 1, digests)
    check(digests[3] != digests[0], digests)


def story_a_fit_from_a_saved_configuration_gives_the_same_weights(folder):
    first, again = os.path.join(folder, "first"), os.path.join(folder, "again")
    check_code(fit(first, "--optimizer", "adam", "--learning-rate", "0.01", "--accumulate-grad-batches", 3), 0)
    check_code(troupe("fit", "--config", os.path.join(first, "config.toml"), "--run-dir", again), 0)
    check_equal(result_of(again)["weights_digest"], result_of(first)["weights_digest"])


def story_json_prints_the_result_and_quiet_prints_only_the_last_line(folder):
    run, other = os.path.join(folder, "run"), os.path.join(folder, "other")
    ended = check_code(fit(run, "--json"), 0)
    check_equal(ended.json(), result_of(run))
    quiet = check_code(fit(other, "--quiet"), 0)
    check_equal(len(quiet.out.splitlines()), 1, quiet)
    check_equal(quiet.err, "")


def story_variables_override_the_configuration_file_and_flags_add_to_both(folder):
    run = os.path.join(folder, "run")
    config = os.path.join(folder, "job.toml")
    with open(config, "w", encoding="utf-8") as f:
        f.write("max_epochs = 1\nseed = 3\n[model]\nname = 'cnn'\n")
    ended = check_code(troupe("fit", "--config", config, "--data", "synthetic", "--run-dir", run, "--json", "--set",
                              "data.samples=32", "--set", "data.evaluation_samples=8", TROUPE_RANKS="1",
                              TROUPE_MAX_EPOCHS="3", TROUPE_BATCH_SIZE="8"), 0)
    check_equal((ended.json()["ranks"], ended.json()["epochs"], ended.json()["steps"]), (1, 3, 12))
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as f:
        check_in('name = "cnn"', f.read())


def story_limits_shorten_a_fit_and_fast_dev_run_writes_no_checkpoint(folder):
    run = os.path.join(folder, "run")
    result = check_code(fit(run, "--limit-train-batches", 3, "--limit-val-batches", "0.5", "--limit-test-batches", 0,
                            "--json"), 0).json()
    check_equal(result["steps"], 6)
    check("test/accuracy" not in result["metrics"], result)
    fast = os.path.join(folder, "fast")
    result = check_code(fit(fast, "--fast-dev-run", "--json", "--checkpoint-every-n-steps", 1), 0).json()
    check_equal((result["steps"], result["epochs"]), (1, 1))
    check("test/accuracy" in result["metrics"] and is_hex_digest(result["weights_digest"]), result)
    check_equal(checkpoints_of(fast), [])


def story_with_max_steps_0_a_fit_writes_only_the_initial_checkpoint(folder):
    run = os.path.join(folder, "run")
    ended = check_code(fit(run, "--max-steps", 0), 0)
    check_equal(ended.out.splitlines()[-1], f"run folder {run}")
    check_equal(checkpoints_of(run), ["step-00000000"])
    check_equal(result_of(run)["steps"], 0)


def story_test_validate_and_predict_use_the_weights_of_a_run(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run), 0)
    figures = result_of(run)["metrics"]
    for command, prefix in (("test", "test"), ("validate", "val")):
        said = check_code(troupe(command, "--run-dir", run, "--json"), 0).json()
        check_equal((said["schema"], said["command"], said["status"]), ("troupe.evaluation/1", command, "finished"))
        check_equal(said["metrics"], {k: v for k, v in figures.items() if k.startswith(prefix + "/")})
    checkpoint = os.path.join(run, "checkpoints", "latest")
    three = check_code(troupe("test", "--checkpoint", checkpoint, "--ranks", 3, "--json"), 0).json()
    check_equal(three["metrics"]["test/accuracy"], figures["test/accuracy"])
    check_in(f"test/accuracy {figures['test/accuracy']:.4f}", troupe("test", "--run-dir", run).out)
    predicted = check_code(troupe("predict", "--run-dir", run), 0).lines()
    check_equal([p["sample"] for p in predicted], list(range(40)))
    # Sample i of the synthetic data belongs to class i mod 10.
    right = sum(p["class"] == p["sample"] % 10 for p in predicted)
    check_equal(right / 40, figures["test/accuracy"])


def story_an_evaluation_of_no_batches_names_the_limit(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--limit-test-batches", 0, "--max-epochs", 1), 0)
    ended = check_code(troupe("test", "--run-dir", run), 0)
    for part in ("`test` has used no data", "config.toml:", "--limit-test-batches 1.0 takes all"):
        check_in(part, ended.err, ended)
    check_equal(troupe("test", "--run-dir", run, "--limit-test-batches", "1.0").err, "")
    for command, name in (("validate", "val"), ("predict", "predict")):
        ended = check_code(troupe(command, "--run-dir", run, f"--limit-{name}-batches", "0.0", "--json"), 0)
        check_in(f"limit_{name}_batches is 0 (flag --limit-{name}-batches)", ended.err, ended)


def story_a_fit_starts_from_exported_weights(folder):
    trained, started = os.path.join(folder, "trained"), os.path.join(folder, "started")
    check_code(fit(trained), 0)
    weights = os.path.join(folder, "weights.safetensors")
    check_code(troupe("checkpoint", "export", trained, "--format", "safetensors", "--output", weights), 0)
    check_code(fit(started, "--init-weights", weights, "--max-steps", 0, "--seed", 99), 0)
    check_equal(result_of(started)["weights_digest"], result_of(trained)["weights_digest"])
    ended = check_code(troupe("test", *SMALL, "--init-weights", weights, "--json"), 0)
    check_equal(ended.json()["metrics"]["test/accuracy"], result_of(trained)["metrics"]["test/accuracy"])


def story_a_loss_that_is_not_finite_causes_one_warning_and_is_counted(folder):
    run, stopped = os.path.join(folder, "run"), os.path.join(folder, "stopped")
    ended = check_code(fit(run, "--learning-rate", "1e30"), 0)
    result = result_of(run)
    count = result["non_finite_steps"]
    check(20 < count < result["steps"], ended)
    check_equal(ended.err.count("warning: the loss is not finite at step"), 1, ended)
    check_in(f"warning: the loss of {count} of 32 steps was not finite", ended.err)
    check("train/non_finite_steps" not in result["metrics"], result)
    check_equal(check_code(fit(os.path.join(folder, "good")), 0).err, "")
    # A stopped and resumed run has the same count.
    check_code(fit(stopped, "--learning-rate", "1e30", "--max-steps", 21), 0)
    check_code(fit(stopped, "--learning-rate", "1e30", "--max-steps", 32, "--resume", "latest"), 0)
    check_equal(result_of(stopped)["non_finite_steps"], count)


def story_trace_hooks_writes_the_hooks_of_every_rank_in_order(folder):
    run, trace = os.path.join(folder, "run"), os.path.join(folder, "trace.jsonl")
    check_code(fit(run, "--limit-train-batches", 2, "--limit-test-batches", 0, "--max-epochs", 1, "--trace-hooks",
                   trace), 0)
    with open(trace, encoding="utf-8") as f:
        text = f.read()
    check_in('{"rank":0,"stage":"train","hook":"on_train_batch_start","epoch":0,"step":0,"batch":0}\n', text)
    lines = [json.loads(line) for line in text.splitlines()]
    hooks = [[e["hook"] for e in lines if e["rank"] == rank] for rank in (0, 1)]
    for each in hooks:
        check_equal((each[0], each[-1]), ("connect", "teardown"))
        check(each.index("optimizer_step") < each.index("training_step"), each)
    shared = [[h for h in each if h not in ("prepare_data", "save_checkpoint")] for each in hooks]
    check_equal(shared[0], shared[1])


if __name__ == "__main__":
    main(globals())
