"""Goal: the reference executor computes what PyTorch computes. Usage: torch_oracle.py SAMPLE, where SAMPLE is the
program oracle_sample."""
import subprocess
import sys
import tempfile

import same_logits
import same_steps

OPTIMIZERS = {"sgd": ["--learning-rate", "0.05", "--momentum", "0.9"],
              "adam": ["--learning-rate", "0.001"],
              "adamw": ["--learning-rate", "0.001", "--weight-decay", "0.01"]}
# Adam divides a gradient by its own size. If the input of a ReLU is zero except for rounding, one program may treat the
# unit as active and the other not. A weight whose input is rarely active then moves by a whole learning rate in one of
# them only. PyTorch's own implementations of Adam differ from each other in this way: by 5e-3 in 100 steps of the cnn.
# With few units or few steps this is rare. SGD is not affected.
# model, optimizer, seed, shards, batch size, accumulated batches, steps
CASES = [("mlp", "sgd", 7, 2, 64, 1, 40),
         ("mlp:32", "adam", 7, 2, 32, 1, 40),
         ("mlp:32", "adamw", 7, 3, 16, 2, 40),
         ("cnn", "sgd", 7, 2, 32, 1, 20),
         ("cnn", "adam", 7, 2, 16, 1, 10),
         ("cnn", "adamw", 7, 2, 16, 1, 10),
         ("mlp", "sgd", 1, 2, 1024, 4, 17)]  # includes the short last window of an epoch


def main(sample):
    for model, optimizer, seed, shards, batch_size, accumulate, steps in CASES:
        with tempfile.TemporaryDirectory() as folder:
            numbers = map(str, (seed, shards, batch_size, accumulate, steps))
            subprocess.run([sample, "reference", folder, model, optimizer, *numbers], check=True)
            name, _, width = model.partition(":")
            about = ["--model", name, "--optimizer", optimizer, *(["--hidden", f"[{width}]"] if width else [])]
            end = f"{folder}/final.safetensors"
            same_steps.compare(["--initial", f"{folder}/initial.safetensors", "--final", end, "--seed", str(seed),
                                "--order", f"{folder}/order.jsonl", *about, *OPTIMIZERS[optimizer]])
            same_logits.compare(["--export", f"{folder}/export.pt", "--weights", end, "--steps", str(steps),
                                 "--logits", f"{folder}/logits.safetensors", *about])


if __name__ == "__main__":
    main(sys.argv[1])
