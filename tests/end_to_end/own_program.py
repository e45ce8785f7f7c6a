"""Goal: a program with a model and data of its own (apps/examples/command_line.cpp) has the command line of `troupe`.

TROUPE_PROGRAM is that program.
"""

import os
import shutil
import subprocess

from troupe_program import check, check_code, check_equal, check_in, checkpoints_of, main, result_of, troupe

MPIRUN = shutil.which("mpirun")
SMALL = ["--set", "model.hidden=16", "--set", "data.samples=256", "--batch-size", "8", "--progress", "never"]


def fit(run, *arguments, **variables):
    """2 ranks, 16 batches of 8 samples per rank and epoch."""
    return troupe("fit", "--run-dir", run, *SMALL, *arguments, **variables)


def settings_of(*arguments, **variables):
    return check_code(troupe("config", "print", *arguments, "--json", **variables), 0).json()["settings"]


def story_the_first_model_and_data_are_trained_tested_and_used(folder):
    run = os.path.join(folder, "run")
    fitted = check_code(fit(run, "--max-epochs", 2, "--json"), 0).json()
    check_equal((fitted["status"], fitted["steps"]), ("finished", 32))
    check(fitted["metrics"]["test/accuracy"] > 0.9, fitted)
    with open(os.path.join(run, "config.toml"), encoding="utf-8") as f:
        saved = f.read()
    check_in('[model]\nname = "classifier"\nhidden = 16\n', saved)
    check_in('[data]\nname = "blobs"\nsamples = 256\nspread = 1.0\n', saved)
    check("[optimizer]" not in saved, saved)
    kept = check_code(troupe("checkpoint", "inspect", run, "--json"), 0).json()["tensors"]
    check_equal({one["name"]: one["shape"] for one in kept}["net.1.weight"], [16, 784])
    tested = check_code(troupe("test", "--run-dir", run, "--json"), 0).json()
    check_equal(tested["metrics"]["test/accuracy"], fitted["metrics"]["test/accuracy"])
    lines = check_code(troupe("predict", "--run-dir", run, "--progress", "never"), 0).lines()
    check_equal([one["sample"] for one in lines], list(range(100)))
    check(all(len(one["value"]) == 10 for one in lines), lines[0])
    # The blobs lie far from one another: sample i is of class i mod 10.
    right = sum(max(range(10), key=one["value"].__getitem__) == i % 10 for i, one in enumerate(lines))
    check_equal(right / 100, fitted["metrics"]["test/accuracy"])


def story_own_settings_come_from_files_variables_and_assignments(folder):
    path = os.path.join(folder, "job.toml")
    with open(path, "w", encoding="utf-8") as f:
        f.write("[model]\nhidden = 8\n[data]\nsamples = 64\nspread = 2\n")
    def of(*arguments, **variables):
        return settings_of("--config", path, *arguments, **variables)["model.hidden"]
    check_equal(settings_of()["model.hidden"], {"value": 64, "from": "default"})
    check_equal(of(), {"value": 8, "from": f"file {path}:2"})
    check_equal(of(TROUPE_MODEL_HIDDEN="9"), {"value": 9, "from": "variable TROUPE_MODEL_HIDDEN"})
    check_equal(of("--set", "model.hidden=10", TROUPE_MODEL_HIDDEN="9"), {"value": 10, "from": "--set"})
    check_equal(settings_of("--model", "mlp", "--set", "model.hidden=[4]")["model.hidden"]["value"], [4])
    check_code(troupe("config", "validate", path), 0)
    fitted = check_code(troupe("fit", "--config", path, "--run-dir", os.path.join(folder, "run"), "--batch-size", 8,
                               "--max-epochs", 1, "--json"), 0).json()
    check_equal((fitted["steps"], fitted["samples"]), (4, 64))


def story_a_killed_rank_is_replaced(folder):
    whole, killed = (os.path.join(folder, name) for name in ("whole", "killed"))
    check_code(fit(whole, "--max-epochs", 1), 0)
    check_code(fit(killed, "--max-epochs", 1, "--placement", "processes", "--max-restarts", 3,
                   "--fault", "kill@rank=1,hook=training_step,step=5"), 0)
    result = result_of(killed)
    check_equal(result["restarts"], 1)
    check_equal(result["weights_digest"], result_of(whole)["weights_digest"])


def story_a_run_is_resumed_with_its_own_settings(folder):
    whole, parts = (os.path.join(folder, name) for name in ("whole", "parts"))
    check_code(fit(whole, "--max-epochs", 2), 0)
    check_code(fit(parts, "--max-epochs", 1), 0)
    check_code(troupe("fit", "--run-dir", parts, "--resume", "latest", "--max-epochs", 2, "--progress", "never"), 0)
    check_equal(result_of(parts)["weights_digest"], result_of(whole)["weights_digest"])
    step = int(checkpoints_of(parts)[-1].removeprefix("step-"))
    check_equal(step, 32)


def story_built_in_models_take_own_data(folder):
    names = [one["name"] for one in check_code(troupe("models", "--json"), 0).lines()]
    check_equal(names, ["classifier", "mlp", "cnn", "gpt"])
    own, mlp = (one["parameters"] for one in check_code(troupe("models", "--json"), 0).lines()[:2])
    check_equal(own, 784 * 64 + 64 + 64 * 10 + 10)
    check(mlp > own, mlp)
    run = os.path.join(folder, "mlp")
    fitted = check_code(troupe("fit", "--model", "mlp", "--set", "model.hidden=[16]", "--learning-rate", 0.1,
                               "--set", "data.samples=256", "--max-epochs", 1, "--run-dir", run, "--json"), 0).json()
    check_in("test/accuracy", fitted["metrics"])
    # The run's file, not the default, chooses the model that has this setting.
    resumed = ["--resume", "latest", "--max-epochs", 2, "--set", "model.dropout=0.1"]
    check_code(troupe("fit", "--run-dir", run, *resumed), 0)
    check_code(troupe("fit", "--data", "synthetic", "--set", "data.samples=64", "--fast-dev-run", "--run-dir",
                      os.path.join(folder, "dev")), 0)


def story_mistakes_are_named_with_what_there_is(folder):
    run = os.path.join(folder, "run")
    for arguments, code, part in (
            (["--model", "clasifier"], 3, 'did you mean "classifier"? (one of classifier, mlp, cnn, gpt)'),
            (["--data", "blob"], 3, 'did you mean "blobs"?'),
            (["--set", "model.hiden=3"], 3, 'did you mean "model.hidden"?'),
            (["--set", "model.dropout=0.5"], 3,
             "model.dropout (--set): the model classifier has no such setting; it has model.hidden"),
            (["--learning-rate", "0.1"], 3, "optimizer.learning_rate (flag --learning-rate): the model classifier has"),
            (["--data-dir", folder], 3, "the data set blobs has no such setting; it has data.samples, data.spread"),
            (["--model", "mlp", "--set", "model.hidden=3"], 3, "a list of integers"),
            (["--set", "model.hidden=wide"], 3, "an integer is needed"),
            (["--set", "data.spread=nan"], 3, "must be finite"),
            (["--max-epoch", "3"], 2, "`example_command_line fit --help`")):
        ended = check_code(troupe("fit", "--run-dir", run, *arguments), code)
        check_in(part, ended.err, ended)
    check(not os.path.exists(run), "a refused fit leaves a folder")
    bad = os.path.join(folder, "bad.toml")
    with open(bad, "w", encoding="utf-8") as f:
        f.write("[data]\nsample = 3\n")
    check_in('did you mean "data.samples"?', check_code(troupe("config", "validate", bad), 3).err)
    # What a rank throws, as in `troupe`.
    failed = fit(run, "--fault", "throw@rank=1,hook=backward,step=3,what=on purpose")
    check_in("on purpose", check_code(failed, 1).err)


def story_help_schema_and_completion_have_its_name_and_settings(_):
    check_in("  example_command_line fit --model cnn", check_code(troupe("--help"), 0).out)
    check(troupe("--version").out.startswith("example_command_line (troupe "), troupe("--version"))
    check_in("classifier|mlp|cnn|gpt", check_code(troupe("fit", "--help"), 0).out)
    table = check_code(troupe("config", "schema"), 0).json()["properties"]
    check_equal(table["model"]["properties"]["name"]["default"], "classifier")
    check_equal([one["type"] for one in table["model"]["properties"]["hidden"]["anyOf"]], ["array", "integer"])
    check_equal(table["data"]["properties"]["spread"]["default"], 1.0)
    check_in(".TH EXAMPLE_COMMAND_LINE 1", check_code(troupe("manual"), 0).out)
    for shell in ("zsh", "fish", "bash"):
        script = check_code(troupe("completion", shell), 0).out
        check_equal([line for line in script.splitlines() if "troupe" in line], [])
    if shutil.which("bash"):
        asked = "COMP_WORDS=(example_command_line fit --set model.h); COMP_CWORD=3; compopt() { :; }; "
        offered = "_example_command_line_complete; echo ${COMPREPLY[@]}"
        said = subprocess.run(["bash", "-c", f"{script}\n{asked} {offered}"], capture_output=True, text=True,
                              check=True)
        check_equal(said.stdout, "model.hidden=\n", said)


def story_processes_of_mpirun_are_its_ranks(folder):
    if not MPIRUN or "|mpi" not in check_code(troupe("fit", "--help"), 0).out:
        print("skipped: no MPI")
        return
    run = os.path.join(folder, "run")
    before = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    check_code(fit(run, "--max-epochs", 1, before=before), 0)
    result = result_of(run)
    check_equal((result["ranks"], result["steps"]), (2, 16))


if __name__ == "__main__":
    main(globals())
