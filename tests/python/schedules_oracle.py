"""Goal: each schedule of <troupe/optimizers.hpp> has the rates and momentums of PyTorch's class, step by step.
Usage: schedules_oracle.py SAMPLE, where SAMPLE is the program oracle_sample. The cases are those of
measures_sample.cpp."""
import json
import subprocess
import sys
import tempfile

import torch
from torch.optim import lr_scheduler as s

STEPS = 300


def decay(n):
    return 1.0 / (1.0 + 0.1 * n)


def grow(n):
    return 1.02 if n % 2 == 0 else 0.97


def of(name, *arguments, **named):
    return lambda optimizer: [getattr(s, name)(optimizer, *arguments, **named)]


def sequence(parts, milestones):
    return lambda optimizer: [s.SequentialLR(optimizer, several(*parts)(optimizer), milestones)]


def chained(*parts):
    return lambda optimizer: [s.ChainedScheduler(several(*parts)(optimizer))]


def several(*parts):
    return lambda optimizer: [made for part in parts for made in part(optimizer)]


ONE_CYCLE = of("OneCycleLR", 0.5, total_steps=STEPS)
CASES = {
    "lambda": of("LambdaLR", decay),
    "lambdas": of("LambdaLR", [decay, lambda n: 1.0, grow]),
    "multiplicative": of("MultiplicativeLR", grow),
    "constant": of("ConstantLR"),
    "constant_long": of("ConstantLR", 0.25, 70),
    "linear": of("LinearLR"),
    "linear_down": of("LinearLR", 0.9, 0.1, 120),
    "exponential": of("ExponentialLR", 0.98),
    "multi_step": of("MultiStepLR", [30, 80, 80, 200], 0.5),
    "polynomial": of("PolynomialLR", 200, 2.0),
    "polynomial_short": of("PolynomialLR"),
    "cosine": of("CosineAnnealingLR", 100),
    "cosine_least": of("CosineAnnealingLR", 37, 0.002),
    "restarts": of("CosineAnnealingWarmRestarts", 40),
    "restarts_longer": of("CosineAnnealingWarmRestarts", 10, 2, 0.001),
    "one_cycle": ONE_CYCLE,
    "one_cycle_adam": ONE_CYCLE,
    "one_cycle_phases": of("OneCycleLR", [0.5, 0.1, 2.0], total_steps=STEPS, pct_start=0.2, anneal_strategy="linear",
                           base_momentum=0.7, max_momentum=[0.99, 0.9, 0.8], div_factor=10, final_div_factor=100,
                           three_phase=True),
    "one_cycle_plain": of("OneCycleLR", 0.5, total_steps=STEPS, cycle_momentum=False),
    "warm_up": sequence([of("LinearLR", 0.01, 1.0, 20), of("CosineAnnealingLR", 250, 0.001)], [20]),
    "sequence": sequence([of("ConstantLR", 0.5, 10), of("ExponentialLR", 0.95), of("PolynomialLR", 60, 1.5),
                          of("CosineAnnealingWarmRestarts", 25), of("MultiStepLR", [10, 20])], [15, 70, 140, 220]),
    "sequence_of_rest": sequence([of("CosineAnnealingWarmRestarts", 15, 2), of("LambdaLR", decay),
                                  of("ConstantLR", 0.5, 20), of("LinearLR", 0.2, 1.0, 30)], [50, 100, 150]),
    "chained": chained(of("ConstantLR", 0.1, 20), of("ExponentialLR", 0.99)),
    "chained_sequence": chained(sequence([of("LinearLR", 0.1, 1.0, 30), of("ExponentialLR", 0.99)], [30]),
                                of("MultiStepLR", [100, 200])),
    "several": several(of("LinearLR", 0.1, 1.0, 25), of("CosineAnnealingLR", 300), of("ExponentialLR", 0.995)),
}


def course_of(name):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in (0.1, 0.03, 1.0)]
    adam = name.endswith("adam")
    optimizer = torch.optim.Adam(groups, lr=0.1) if adam else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    schedulers = CASES[name](optimizer)
    course = []
    for step in range(STEPS + 1):
        course.append([g["lr"] for g in optimizer.param_groups]
                      + [g["betas"][0] if adam else g["momentum"] for g in optimizer.param_groups])
        if step == STEPS:
            break
        optimizer.step()
        for one in schedulers:
            one.step()
    return course


def main(sample):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sample, "schedules", folder], check=True)
        with open(f"{folder}/schedules.json", encoding="utf-8") as file:
            found = json.load(file)
    if set(found) != set(CASES):
        sys.exit(f"the cases differ: {sorted(set(found) ^ set(CASES))}")
    worst = 0.0
    for name in CASES:
        expected = course_of(name)
        if len({tuple(row) for row in expected}) < 2 or len(found[name]) != len(expected):
            sys.exit(f"{name}: {len(found[name])} rows, and Python's hardly change")
        for step, (mine, theirs) in enumerate(zip(found[name], expected)):
            error = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(mine, theirs, strict=True))
            worst = max(worst, error)
            if not error <= 1e-12:
                sys.exit(f"{name}, step {step}: {mine}, Python's {theirs}")
    print(f"{len(CASES)} schedules of 3 groups in {STEPS} steps, largest relative difference {worst:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])
