"""Goal: measures over ranks are what plain Python computes from all samples, and torchmetrics where it is there.
Usage: measures_oracle.py SAMPLE, where SAMPLE is the program oracle_sample. The cases are those of measures_sample.cpp.
Without torchmetrics (bash apps/setup.sh --tests installs it) the test is skipped."""
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings

import torch

import safetensors_by_hand


def divided(a, b):
    return a / b if b else 0.0


# --- plain Python ---------------------------------------------------------------------------------------------------

def counts_of(labels, targets, c):
    hit = sum(p == c and t == c for p, t in zip(labels, targets))
    return hit, sum(p == c for p in labels) - hit, sum(t == c for t in targets) - hit


QUOTIENTS = {"accuracy": lambda hit, wrong, missed: (hit, hit + missed),
             "recall": lambda hit, wrong, missed: (hit, hit + missed),
             "precision": lambda hit, wrong, missed: (hit, hit + wrong),
             "f1": lambda hit, wrong, missed: (2 * hit, 2 * hit + wrong + missed)}


def label_score(what, average, labels, targets, classes):
    counts = [counts_of(labels, targets, c) for c in range(classes)]
    parts = [QUOTIENTS[what](*one) for one in counts]
    if average == "micro":
        return divided(*(sum(column) for column in zip(*parts)))
    each = [divided(*one) for one in parts]
    if average == "none":
        return each
    weights = [hit + missed if average == "weighted" else float(hit + wrong + missed > 0)
               for hit, wrong, missed in counts]
    return divided(sum(w * x for w, x in zip(weights, each)), sum(weights))


def area_of(scores, positive):
    """The share of pairs in the right order; equal scores count half."""
    ups = [s for s, yes in zip(scores, positive) if yes]
    downs = [s for s, yes in zip(scores, positive) if not yes]
    return divided(sum((u > d) + 0.5 * (u == d) for u in ups for d in downs), len(ups) * len(downs))


def binned_area_of(scores, positive, thresholds=20):
    points = []
    for threshold in reversed(torch.linspace(0, 1, thresholds).tolist()):
        reached = [s >= threshold for s in scores]
        points.append((divided(sum(r and not y for r, y in zip(reached, positive)), positive.count(False)),
                       divided(sum(r and y for r, y in zip(reached, positive)), positive.count(True))))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(points, points[1:]))


def averaged_area(one, average, rows, targets, classes):
    each = [one([row[c] for row in rows], [t == c for t in targets]) for c in range(classes)]
    if average == "none":
        return each
    weights = [targets.count(c) if average == "weighted" else 1 for c in range(classes)]
    return divided(sum(w * x for w, x in zip(weights, each)), sum(weights))


def matrix_of(labels, targets, classes, by):
    cells = [[sum(p == j and t == i for p, t in zip(labels, targets)) for j in range(classes)] for i in range(classes)]
    total = sum(map(sum, cells))
    rows, columns = [sum(row) for row in cells], [sum(column) for column in zip(*cells)]
    below = {"": lambda i, j: 1, "targets": lambda i, j: rows[i], "predictions": lambda i, j: columns[j],
             "all": lambda i, j: total}[by]
    return [divided(cells[i][j], below(i, j)) for i in range(classes) for j in range(classes)]


def top_k(k, average, rows, targets, classes):
    right = [t in sorted(range(classes), key=lambda c: -row[c])[:k] for row, t in zip(rows, targets)]
    if average == "micro":
        return sum(right) / len(right)
    each = [[r for r, t in zip(right, targets) if t == c] for c in range(classes)]
    return sum(sum(one) / len(one) for one in each if one) / sum(1 for one in each if one)


def binary(name, prediction, target):
    if prediction.min() < 0 or prediction.max() > 1:
        prediction = prediction.sigmoid()
    scores, targets = prediction.tolist(), target.tolist()
    labels = [int(s > 0.5) for s in scores]
    if name.startswith("matrix"):
        return matrix_of(labels, targets, 2, name[7:])
    if name.endswith("auroc"):
        return (area_of if name == "auroc" else binned_area_of)(scores, [t == 1 for t in targets])
    if name == "accuracy":
        return sum(p == t for p, t in zip(labels, targets)) / len(targets)
    return divided(*QUOTIENTS[name](*counts_of(labels, targets, 1)))


def multiclass(name, prediction, target, classes, ignored=None):
    if prediction.dim() > target.dim():
        prediction = prediction.movedim(1, -1).reshape(-1, classes)
        if prediction.min() < 0 or prediction.max() > 1:
            prediction = prediction.softmax(1)
    kept = target.flatten() != ignored if ignored is not None else torch.ones(target.numel(), dtype=torch.bool)
    rows, targets = prediction[kept].tolist(), target.flatten()[kept].tolist()
    labels = [max(range(classes), key=row.__getitem__) if isinstance(row, list) else row for row in rows]
    what, _, average = name.partition(".")
    if what == "matrix":
        return matrix_of(labels, targets, classes, average)
    if what.startswith("top"):
        return top_k(int(what[4:]), average, rows, targets, classes)
    if what.endswith("auroc"):
        return averaged_area(area_of if what == "auroc" else binned_area_of, average, rows, targets, classes)
    return label_score(what, average, labels, targets, classes)


def regression(name, prediction, target):
    differences = [a - b for a, b in zip(prediction.double().flatten().tolist(), target.double().flatten().tolist())]
    if name == "mae":
        return sum(map(abs, differences)) / len(differences)
    mean = sum(d * d for d in differences) / len(differences)
    return mean if name == "mse" else math.sqrt(mean)


def language(name, prediction, target):
    total = count = 0
    for row, word in zip(prediction.double().flatten(0, 1).tolist(), target.flatten().tolist()):
        if name.endswith("ignore") and word == 3:
            continue
        most = max(row)
        total += most + math.log(sum(math.exp(x - most) for x in row)) - row[word]
        count += 1
    return math.exp(total / count)


PLAIN = {"binary": binary, "binary_logits": binary, "regression": regression, "language": language,
         "multiclass": lambda *a: multiclass(*a, 7), "multiclass_logits": lambda *a: multiclass(*a, 7),
         "labels": lambda *a: multiclass(*a, 4),
         "sequence": lambda *a: multiclass(*a, 4, -1)}


# --- torchmetrics ---------------------------------------------------------------------------------------------------

def of_torchmetrics(case, name, prediction, target):
    import torchmetrics.classification as c
    import torchmetrics.regression as r
    from torchmetrics.text import Perplexity
    case = case.removesuffix("_logits")
    what, _, how = name.partition(".")
    names = {"accuracy": "Accuracy", "precision": "Precision", "recall": "Recall", "f1": "F1Score", "auroc": "AUROC",
             "binned_auroc": "AUROC", "matrix": "ConfusionMatrix"}
    normalize = {"": None, "targets": "true", "predictions": "pred", "all": "all"}
    if case == "regression":
        made = r.MeanAbsoluteError() if what == "mae" else r.MeanSquaredError(squared=what == "mse")
    elif case == "language":
        made = Perplexity(ignore_index=3 if how else None)
    else:
        named = {"thresholds": 20} if what == "binned_auroc" else {}
        if what == "matrix":
            named["normalize"] = normalize[how]
        elif case != "binary":
            named["average"] = how
        if case != "binary":
            named["num_classes"] = 7 if case == "multiclass" else 4
        if what.startswith("top"):
            what, named["top_k"] = "accuracy", int(what[4:])
        if case == "sequence":
            named["ignore_index"] = -1
        made = getattr(c, ("Binary" if case == "binary" else "Multiclass") + names[what])(**named)
    made.update(prediction, target)
    return made.compute().flatten().double().tolist()


# --- comparing ------------------------------------------------------------------------------------------------------

def distance(mine, theirs):
    mine, theirs = (x if isinstance(x, list) else [x] for x in (mine, theirs))
    if len(mine) != len(theirs):
        return math.inf
    return max(abs(a - b) / max(1.0, abs(b)) if a == a else math.inf for a, b in zip(mine, theirs))


def compare(found, samples, whose, compute, bound):
    worst = 0.0
    for case, measures in found.items():
        for name, mine in measures.items():
            theirs = compute(case, name, samples[f"{case}.prediction"], samples[f"{case}.target"])
            error = distance(mine, theirs)
            worst = max(worst, error)
            if not error <= bound:
                sys.exit(f"{case} {name}: {mine}, {whose} {theirs}")
    print(f"{sum(map(len, found.values()))} measures, largest difference from {whose} {worst:.1e}")


def main(sample):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sample, "measures", folder], check=True)
        samples = {name: torch.from_numpy(x.copy())
                   for name, x in safetensors_by_hand.read(f"{folder}/measures.safetensors").items()}
        with open(f"{folder}/measures.json", encoding="utf-8") as file:
            found = json.load(file)
    if set(found) != set(PLAIN):
        sys.exit(f"the cases differ: {sorted(set(found) ^ set(PLAIN))}")
    compare(found, samples, "plain Python", lambda case, *a: PLAIN[case](*a), 1e-12)
    try:
        import torchmetrics
    except ImportError:
        print("SKIPPED: torchmetrics is not installed, so only plain Python was compared; bash apps/setup.sh --tests")
        sys.exit(77)
    warnings.simplefilter("ignore")  # classes without samples
    compare(found, samples, f"torchmetrics {torchmetrics.__version__}", of_torchmetrics, 1e-5)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main(sys.argv[1])
