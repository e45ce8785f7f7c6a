"""Goal: a fit on data that need `setup` ends with their test, and has its result also where that test fails.

TROUPE_PROGRAM is late_data.cpp.
"""

import os

from troupe_program import check, check_code, check_equal, check_in, checkpoints_of, main, result_of, troupe


def fit_of(run, *arguments):
    return troupe("fit", "--run-dir", run, "--batch-size", 8, "--max-epochs", 1, "--progress", "never", *arguments)


def fit(run, *arguments):
    return fit_of(run, "--set", "model.hidden=4", *arguments)


PLACEMENTS = ("threads", "processes")


def story_a_fit_ends_with_the_test_of_data_that_need_setup(folder):
    figures = set()
    for placement in PLACEMENTS:
        run = os.path.join(folder, placement)
        check_code(fit(run, "--placement", placement), 0)
        result = result_of(run)
        check_equal((result["status"], result["steps"]), ("finished", 4))
        check_in("test/accuracy", result["metrics"])
        tested = check_code(troupe("test", "--run-dir", run, "--json"), 0).json()
        check_equal(tested["metrics"]["test/accuracy"], result["metrics"]["test/accuracy"])
        figures.add(result["metrics"]["test/accuracy"])
    check_equal(len(figures), 1, figures)


def story_a_test_that_cannot_be_set_up_fails_the_fit_with_its_result(folder):
    for placement in PLACEMENTS:
        run = os.path.join(folder, placement)
        ended = check_code(fit(run, "--placement", placement, "--set", "data.fails=true"), 1)
        check_in("the test lies elsewhere", ended.err)
        result = result_of(run)
        check_equal((result["status"], result["steps"]), ("failed", 4))
        check_in("the test lies elsewhere", result["failure"]["what"])
        check_equal(result["failure"]["hook"], "setup")
        check(result["weights_digest"], result)
        # Without the test the same fit is finished.
        check_code(fit(run + "-untested", "--set", "data.fails=true", "--limit-test-batches", 0), 0)


def story_data_without_a_test_have_none(folder):
    run = os.path.join(folder, "run")
    check_code(fit(run, "--set", "data.has_test=false"), 0)
    check("test/accuracy" not in result_of(run)["metrics"], result_of(run))


def story_a_callback_of_the_program_keeps_checkpoints_and_is_in_no_search(folder):
    for placement in PLACEMENTS:
        run = os.path.join(folder, placement)
        check_code(fit(run, "--placement", placement, "--max-epochs", 2), 0)
        check_equal(checkpoints_of(run), ["step-00000004", "step-00000008"])
        found = check_code(troupe("tune", "batch-size", "--set", "model.hidden=4", "--max-size", 4, "--placement",
                                  placement, "--json"), 0)
        check_equal(found.json()["batch_size"], 4)


def story_built_in_models_read_data_after_their_setup(folder):
    digests = set()
    for model, placement in (("mlp", "threads"), ("mlp", "processes"), ("cnn", "threads")):
        run = os.path.join(folder, model + placement)
        layers = ["--model", model, *(["--set", "model.hidden=[4]"] if model == "mlp" else [])]
        check_code(fit_of(run, *layers, "--placement", placement), 0)
        result = result_of(run)
        check_equal((result["status"], result["steps"]), ("finished", 4))
        check_in("test/accuracy", result["metrics"])
        digests.add(result["weights_digest"])
        for purpose in ("validate", "test", "predict"):
            check_code(troupe(purpose, "--run-dir", run, "--placement", placement), 0)
        check_code(troupe("fit", "--run-dir", run, "--resume", "latest", "--max-epochs", 2), 0)
        check_equal(result_of(run)["steps"], 8)
    check_equal(len(digests), 2, digests)
    for what in (["learning-rate", "--steps", 20], ["batch-size", "--max-size", 8]):
        check_code(troupe("tune", *what, "--model", "mlp", "--set", "model.hidden=[4]"), 0)


def story_a_test_after_a_fit_may_lack_classes(folder):
    for placement in PLACEMENTS:
        run = os.path.join(folder, placement)
        check_code(fit_of(run, "--model", "mlp", "--set", "model.hidden=[4]", "--set", "data.evaluation=3",
                          "--placement", placement), 0)
        check_in("test/accuracy", result_of(run)["metrics"])


def search(*arguments):
    return troupe("tune", "batch-size", "--model", "mlp", "--set", "model.hidden=[4]", *arguments)


def story_a_search_ends_where_drop_last_leaves_no_batch(folder):
    # 64 samples: 2 x 32 are the last full batch.
    ended = check_code(search("--set", "data.drop_last=true"), 0)
    check_in("batch size 32: fits\nbatch size 64: refused", ended.err, ended)
    check_in("drop_last leaves no batch", ended.err, ended)
    check_in("batch size 32; use it with --batch-size 32", ended.out, ended)
    first = check_code(search("--set", "data.drop_last=true", "--first-size", 64), 3)
    check_in("drop_last leaves no batch", first.err, first)


def story_data_with_a_batch_size_of_their_own_are_refused_by_a_search(folder):
    for own, more in ((8, []), (2, []), (8, ["--first-size", 16]), (4, ["--accumulate-grad-batches", 2]),
                      (8, ["--steps", 1]), (64, []), (1, ["--steps", 100])):
        ended = check_code(search("--set", f"data.batch_size={own}", "--max-size", 64, *more), 3)
        check_in("a batch size of their own", ended.err, ended)
        check_in("data_loading::batch_size", ended.err, ended)
        check_equal(ended.out, "")
    # Steps of several batches, and epochs that end within a search, are no such size.
    for more in ([], ["--accumulate-grad-batches", 3], ["--steps", 100], ["--steps", 1], ["--ranks", 3],
                 ["--limit-train-batches", 2], ["--accumulate-schedule", "1:2"]):
        ended = check_code(search("--max-size", 8, *more), 0)
        check_in("use it with --batch-size 8", ended.out, ended)


def story_a_lost_rank_of_a_built_in_model_is_replaced(folder):
    mlp = ["--model", "mlp", "--set", "model.hidden=[4]"]
    whole, killed = (os.path.join(folder, name) for name in ("whole", "killed"))
    check_code(fit_of(whole, *mlp), 0)
    check_code(fit_of(killed, *mlp, "--placement", "processes", "--max-restarts", 2, "--spares", 1,
                      "--fault", "kill@rank=1,hook=training_step,step=2"), 0)
    result = result_of(killed)
    check_equal(result["restarts"], 1)
    check_equal(result["weights_digest"], result_of(whole)["weights_digest"])


def story_a_built_in_model_says_which_data_are_missing(folder):
    ended = check_code(fit_of(os.path.join(folder, "run"), "--model", "mlp", "--set", "data.has_train=false"), 3)
    check_in("there are no samples", ended.err)


if __name__ == "__main__":
    main(globals())
