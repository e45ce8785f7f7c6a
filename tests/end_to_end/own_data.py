"""Goal: `--data csv` and `--data tensors` train on a user's files, and the learning rate falls as asked."""

import json
import os
import random
import struct
import tempfile

from troupe_program import check, check_code, check_in, checkpoints_of, main, metrics_of, troupe

# The third feature does not matter.
CENTRES = [(0.0, 0.0), (3.0, 0.0), (0.0, 3.0)]


def rows(seed, count):
    draws = random.Random(seed)
    return [([x + draws.gauss(0, 0.5), y + draws.gauss(0, 0.5), draws.random()], label)
            for label, (x, y) in (draws.choice(list(enumerate(CENTRES))) for _ in range(count))]


def write_csv(path, samples, order=(0, 1, 2, 3)):
    columns = [i for i in order if i <= len(samples[0][0])]
    with open(path, "w", encoding="utf-8") as f:
        f.write(",".join(["species", "length", "width", "noise"][i] for i in columns) + "\n")
        for features, label in samples:
            cells = [f"{label}", *(f"{x:.6f}" for x in features)]
            f.write(",".join(cells[i] for i in columns) + "\n")


def write_tensors(path, samples, kind=("F32", "f")):
    inputs = b"".join(struct.pack("<3" + kind[1], *features) for features, _ in samples)
    targets = b"".join(struct.pack("<q", label) for _, label in samples)
    header = json.dumps({
        "targets": {"dtype": "I64", "shape": [len(samples)], "data_offsets": [0, len(targets)]},
        "inputs": {"dtype": kind[0], "shape": [len(samples), 3],
                   "data_offsets": [len(targets), len(targets) + len(inputs)]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + targets + inputs)


def fit_on(kind, data, run, *more):
    return troupe("fit", "--run-dir", run, "--data", kind, "--data-dir", data, "--set", "model.hidden=[16]",
                  "--batch-size", 16, "--max-epochs", 4, "--progress", "never", "--json", *more)


def story_a_folder_of_csv_files_is_trained_and_tested(folder):
    data, run = os.path.join(folder, "data"), os.path.join(folder, "run")
    os.mkdir(data)
    write_csv(os.path.join(data, "train.csv"), rows(1, 300))
    write_csv(os.path.join(data, "test.csv"), rows(2, 90))
    target = ["--set", "data.target=species"]
    fitted = check_code(fit_on("csv", data, run, *target), 0).json()
    check(fitted["metrics"]["val/accuracy"] > 0.9, fitted)
    check("test/accuracy" not in fitted["metrics"], fitted)
    tested = check_code(troupe("test", "--resume", os.path.join(run, "checkpoints", checkpoints_of(run)[-1]), "--data",
                               "csv", "--data-dir", data, "--set", "model.hidden=[16]", *target, "--json"), 0)
    check(tested.json()["metrics"]["test/accuracy"] == fitted["metrics"]["val/accuracy"], tested)
    write_csv(os.path.join(data, "test.csv"), [([0.0, 3.0, 0.5], -1)])
    said = check_code(troupe("predict", "--run-dir", run), 0)
    check(json.loads(said.out)["class"] == 2, said)
    check_in("give the labels, or use predict", check_code(troupe("test", "--run-dir", run), 3).err)


def story_an_evaluation_without_data_names_the_files_that_are_missing(folder):
    data, run = os.path.join(folder, "data"), os.path.join(folder, "run")
    os.mkdir(data)
    write_csv(os.path.join(data, "train.csv"), rows(1, 60))
    check_code(fit_on("csv", data, run, "--set", "data.target=species"), 0)
    for command, files in (("test", "no test.csv and no validation.csv"), ("predict", "no test.csv and no validation"),
                           ("validate", "no validation.csv and no test.csv")):
        ended = check_code(troupe(command, "--run-dir", run), 3)
        for part in (f"{data}: it has {files}", f"`{command}` needs one", "--data-dir"):
            check_in(part, ended.err, ended)
    check_code(troupe("test", "--run-dir", run, "--data-dir", os.path.join(data, "train.csv")), 0)


def story_a_file_that_lacks_classes_is_predicted_and_tested(folder):
    data, one, run = (os.path.join(folder, name) for name in ("all.csv", "one.csv", "run"))
    write_csv(data, rows(5, 300))
    target = ["--set", "data.target=species"]
    check_code(fit_on("csv", data, run, *target), 0)
    write_csv(one, [([0.0, 3.0, 0.5], 0)])
    for more in ([], ["--placement", "processes", "--ranks", 1]):
        said = check_code(troupe("predict", "--run-dir", run, "--data-dir", one, *more), 0)
        check(json.loads(said.out)["class"] == 2, said)
    whole = check_code(troupe("test", "--run-dir", run, "--data-dir", one, "--json"), 0).json()
    check(whole["metrics"]["test/accuracy"] == 0, whole)  # it is of class 2
    write_csv(one, [([0.0, 3.0], 0)])
    wrong = check_code(troupe("test", "--run-dir", run, "--data-dir", one), 3)
    check_in("a sample has 2 features, and the model was trained with 3", wrong.err)


def story_an_evaluated_file_has_its_columns_in_another_order(folder):
    data, other, run = (os.path.join(folder, name) for name in ("all.csv", "other.csv", "run"))
    write_csv(data, rows(7, 300))
    target = ["--set", "data.target=species"]
    check_code(fit_on("csv", data, run, *target), 0)
    said = []
    for order in ((0, 1, 2, 3), (3, 2, 0, 1)):
        write_csv(other, rows(8, 90), order)
        said.append(check_code(troupe("test", "--run-dir", run, "--data-dir", other, "--json"), 0).json()["metrics"])
        said.append(check_code(troupe("test", "--run-dir", run, "--data-dir", other, "--json", "--placement",
                                      "processes", "--ranks", 2), 0).json()["metrics"])
    check(said[0]["test/accuracy"] > 0.9, said)
    check(said[2] == said[0] and said[3] == said[1], said)
    write_csv(other, rows(7, 300), (3, 2, 0, 1))
    again = check_code(fit_on("csv", other, run, *target, "--resume", "latest", "--max-epochs", 9), 3)
    check_in("not in the checkpoint's order", again.err, again)


def story_ranks_as_processes_read_safetensors(folder):
    data = os.path.join(folder, "all.safetensors")
    write_tensors(data, rows(3, 300))
    threads = check_code(fit_on("tensors", data, os.path.join(folder, "threads")), 0).json()
    processes = check_code(fit_on("tensors", data, os.path.join(folder, "processes"), "--placement", "processes"),
                           0).json()
    check(threads["weights_digest"] == processes["weights_digest"], (threads, processes))
    check(threads["metrics"]["train/loss"] < 0.5, threads)


def story_inputs_of_float64_are_trained_as_those_of_float32(folder):
    digests = set()
    for kind in (("F32", "f"), ("F64", "d")):
        data = os.path.join(folder, kind[0] + ".safetensors")
        write_tensors(data, [([float(round(x)) for x in features], label) for features, label in rows(6, 200)], kind)
        digests.add(check_code(fit_on("tensors", data, os.path.join(folder, kind[0])), 0).json()["weights_digest"])
    check(len(digests) == 1, digests)


def story_each_schedule_by_name_trains_otherwise(folder):
    data = os.path.join(folder, "all.csv")
    write_csv(data, rows(4, 200))
    digests = set()
    for name, more in {"none": [], "cosine": ["--set", "optimizer.scheduler=cosine"],
                       "warm": ["--set", "optimizer.scheduler=cosine", "--set", "optimizer.warmup_epochs=1"],
                       "polynomial": ["--set", "optimizer.scheduler=polynomial"]}.items():
        run = os.path.join(folder, name)
        ended = check_code(fit_on("csv", data, run, "--set", "data.target=species", *more), 0)
        digests.add(ended.json()["weights_digest"])
        check(metrics_of(run)[-1]["train/loss"] < 1, name)
    check(len(digests) == 4, digests)


def story_files_that_do_not_fit_are_refused(folder):
    path = os.path.join(folder, "bad.csv")
    for text, part in (("a,b\n1,2\n3,x\n", 'line 3, column "b"'), ("a,b\n1,0.5\n", "no labels")):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        ended = fit_on("csv", path, tempfile.mkdtemp(dir=folder))
        check(ended.code != 0, ended)
        check_in(part, ended.out + ended.err, ended)
    ended = check_code(fit_on("csv", os.path.join(folder, "absent"), os.path.join(folder, "run")), 3)
    check_in("absent: there is no such file or folder", ended.err, ended)


def write_text(path, text):
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(text)


def story_numbers_that_are_no_classes_make_no_model(folder):
    data, run = os.path.join(folder, "prices.csv"), os.path.join(folder, "run")
    of_data = ["fit", "--data", "csv", "--data-dir", data, "--run-dir", run, "--max-steps", 1, "--set",
               "model.hidden=[1]", "--progress", "never"]
    write_text(data, f"a,price\n1,2\n2,{2**20}\n")
    ended = check_code(troupe(*of_data), 3)
    for part in ("data csv", str(2**20), "classes", "data.target"):
        check_in(part, ended.err, ended)
    write_text(data, f"a,price\n1,2\n2,{2**16}\n")
    check_code(troupe(*of_data, "--run-dir", run + "2"), 0)
    ended = check_code(troupe(*of_data, "--run-dir", run + "3", "--set", "model.hidden=[1048576, 1048576]"), 3)
    check_in("model.hidden", ended.err, ended)


def story_a_csv_file_without_a_header_is_refused(folder):
    data = os.path.join(folder, "data.csv")
    call = ["fit", "--data", "csv", "--data-dir", data, "--max-steps", 1, "--progress", "never"]
    for text in ("0.5,1\n1,0\n", "\n2024,2025\n1,0\n", "1,1,0\n1,1,1\n"):
        write_text(data, text)
        ended = check_code(troupe(*call, "--run-dir", tempfile.mkdtemp(dir=folder)), 3)
        for part in (f"line {2 if text[0] == chr(10) else 1} has numbers only", "data.target"):
            check_in(part, ended.err, ended)
    for i, (text, more) in enumerate((("0,1\n2,0\n", []), ("1,2\n2,0\n", []), ("a,2\n2,0\n", []),
                                      ("2024,2025\n1,0\n", ["--set", "data.target=2025"]))):
        write_text(data, text)
        check_code(troupe(*call, "--run-dir", os.path.join(folder, str(i)), *more), 0)


def story_a_model_of_images_refuses_rows(folder):
    data, run = os.path.join(folder, "rows.csv"), os.path.join(folder, "run")
    write_text(data, "a,b\n1,0\n2,1\n")
    ended = check_code(troupe("fit", "--model", "cnn", "--data", "csv", "--data-dir", data, "--run-dir", run), 3)
    check_in("the model cnn reads images", ended.err, ended)
    check_in("use --model mlp", ended.err, ended)
    check(not os.path.exists(run), "a refused call leaves no folder")
    tensors = os.path.join(folder, "rows.safetensors")
    write_tensors(tensors, [([0.0, 1.0, 2.0], 0), ([3.0, 4.0, 5.0], 1)])
    ended = check_code(troupe("fit", "--model", "cnn", "--data", "tensors", "--data-dir", tensors, "--run-dir", run), 3)
    check_in("a sample has the shape (3)", ended.err, ended)
    check_in("use --model mlp", ended.err, ended)


def story_a_csv_file_is_read_as_other_programs_write_it(folder):
    data = os.path.join(folder, "data.csv")
    call = ["fit", "--data", "csv", "--data-dir", data, "--max-steps", 1, "--progress", "never"]
    write_text(data, '"a, b",c\r\n"1",0\r\n2,1\r\n')
    check_code(troupe(*call, "--run-dir", os.path.join(folder, "quoted")), 0)
    for text, part in (("a,a\n1,0\n", 'several columns are called "a"'), ("a,b\r1,0\r", "line ends")):
        write_text(data, text)
        ended = troupe(*call, "--run-dir", os.path.join(folder, part[:4]))
        check_code(ended, 3)
        check_in(part, ended.err, ended)


if __name__ == "__main__":
    main(globals())
