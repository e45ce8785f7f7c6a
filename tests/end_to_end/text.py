"""Goal: the model gpt learns a text, writes as it does, and refuses what is no text."""

import os

from troupe_program import check, check_code, check_equal, check_in, checkpoints_of, main, metrics_of, result_of, troupe

PATTERN = "the cat sat. "


def text_in(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return path


def fit_on(text, run, *more):
    return troupe("fit", "--run-dir", run, "--model", "gpt", "--data", "text", "--data-dir", text, "--optimizer",
                  "adamw", "--learning-rate", "0.002", "--batch-size", 8, "--max-steps", 120, "--max-epochs", -1,
                  "--set", "model.dropout=0.05", "--progress", "never", "--json", *more)


def story_a_pattern_is_learned_and_written(folder):
    run = os.path.join(folder, "run")
    fitted = check_code(fit_on(text_in(folder, "pattern", PATTERN * 600), run), 0).json()
    check(fitted["metrics"]["val/accuracy"] > 0.9, fitted)
    losses = [row["train/loss"] for row in metrics_of(run) if "train/loss" in row]
    check(losses[0] > 4 * losses[-1], losses)
    likeliest = ["--prompt", "the cat", "--characters", 39, "--temperature", 0]
    written = check_code(troupe("write", run, *likeliest), 0).out
    check_equal(written, "the cat" + (" sat. the cat" * 3) + "\n")
    newest = os.path.join(run, "checkpoints", checkpoints_of(run)[-1])
    check_equal(check_code(troupe("write", newest, *likeliest), 0).out, written)
    hot = ["--characters", 200, "--temperature", 5]
    texts = [check_code(troupe("write", run, *hot, "--seed", seed), 0).out for seed in (1, 1, 2)]
    check(texts[0] == texts[1] and texts[0] != texts[2], texts)
    check(len(texts[0]) == 202, len(texts[0]))  # an empty prompt is one newline
    predicted = check_code(troupe("predict", "--resume", newest, "--model", "gpt", "--data", "text", "--data-dir",
                                  os.path.join(folder, "pattern")), 0).out.splitlines()
    check_in('"text":"', predicted[0])
    check(sum("cat sat. the cat sat." in line for line in predicted) == len(predicted), predicted)


def story_a_killed_rank_changes_no_byte(folder):
    text = text_in(folder, "pattern", PATTERN * 600)
    calm = check_code(fit_on(text, os.path.join(folder, "calm"), "--placement", "processes"), 0).json()
    shot = check_code(fit_on(text, os.path.join(folder, "shot"), "--placement", "processes", "--max-restarts", 3,
                             "--fault", "kill@rank=1,hook=training_step,step=20"), 0).json()
    check(len(result_of(os.path.join(folder, "shot"))["generations"]) == 2, shot)
    check_equal(shot["weights_digest"], calm["weights_digest"])


def story_what_is_no_text_is_refused(folder):
    text = text_in(folder, "pattern", PATTERN * 40)
    run = os.path.join(folder, "run")
    ended = check_code(troupe("fit", "--run-dir", run, "--model", "gpt", "--data", "synthetic"), 3)
    check_in("use --data text", ended.err, ended)
    ended = check_code(troupe("fit", "--run-dir", run, "--model", "mlp", "--data", "text", "--data-dir", text), 3)
    check_in("use --model gpt", ended.err, ended)
    short = text_in(folder, "short", "x" * 128)
    for path, part in ((os.path.join(folder, "absent"), "absent"), (short, "at least 129"), (os.devnull, "--data-dir")):
        ended = fit_on(path, os.path.join(folder, "run of " + part))
        check(ended.code != 0, ended)
        check_in(part, ended.err, ended)


def story_write_refuses_what_it_cannot_use(folder):
    run = os.path.join(folder, "run")
    check_code(troupe("fit", "--run-dir", run, "--data", "synthetic", "--max-steps", 2, "--progress", "never"), 0)
    ended = check_code(troupe("write", run), 5)
    check_in("net.0.what.weight", ended.err, ended)
    check_code(troupe("write", os.path.join(folder, "absent")), 5)
    ended = check_code(troupe("write", folder), 5)
    check_in("name the folder of a run, or of one of its checkpoints", ended.err, ended)
    for wrong in (["--characters", 100001], ["--temperature", -1], ["--temperature", "nan"], ["--seed", "x"]):
        check_code(troupe("write", run, *wrong), 2)


def story_a_note_names_the_damaged_checkpoint_that_write_passed_over(folder):
    run, text = os.path.join(folder, "run"), text_in(folder, "pattern", PATTERN * 40)
    check_code(fit_on(text, run, "--max-steps", 4, "--checkpoint-every-n-steps", 2, "--keep-last", 9), 0)
    older, newest = (os.path.join(run, "checkpoints", name) for name in checkpoints_of(run)[-2:])
    writes = ["--characters", 9, "--temperature", 0]
    check_equal(check_code(troupe("write", run, *writes), 0).err, "")
    with open(os.path.join(newest, "model.safetensors"), "r+b") as f:
        f.truncate(1000)
    ended = check_code(troupe("write", run, *writes), 0)
    check_in(f"passed over a damaged checkpoint: {newest}", ended.err, ended)
    check_in(f"took {older}", ended.err, ended)
    check_equal(ended.out, check_code(troupe("write", older, *writes), 0).out)


def story_a_model_that_diverged_is_named(folder):
    run, text = os.path.join(folder, "run"), text_in(folder, "pattern", PATTERN * 40)
    check_code(fit_on(text, run, "--max-steps", 3, "--learning-rate", "1e30"), 0)
    ended = check_code(troupe("write", run, "--characters", 3), 1)
    check_in("give no finite scores: the training diverged", ended.err, ended)
    check_code(fit_on(text, run + "2", "--max-steps", 3), 0)
    for cold in ("1e-300", "5e-324"):
        likeliest = check_code(troupe("write", run + "2", "--characters", 9, "--temperature", 0), 0).out
        check_equal(check_code(troupe("write", run + "2", "--characters", 9, "--temperature", cold), 0).out, likeliest)


if __name__ == "__main__":
    main(globals())
