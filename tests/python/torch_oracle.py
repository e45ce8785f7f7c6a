"""The reference executor against PyTorch: torch_oracle.py SAMPLE, where SAMPLE is torch_sample."""
import subprocess
import sys
import tempfile

import same_logits
import same_steps

OPTIMIZERS = {"sgd": ["--learning-rate", "0.05", "--momentum", "0.9"],
              "adam": ["--learning-rate", "0.001"],
              "adamw": ["--learning-rate", "0.001", "--weight-decay", "0.01"]}
# Adam divides a gradient by its own size. Where a ReLU's input is zero but for rounding, one program takes it for
# active and the other does not, and a weight whose input is rarely there then moves by a whole learning rate in one of
# them. PyTorch's own implementations of Adam part from each other like that: by 5e-3 in 100 steps of the cnn. Few units
# or few steps make it rare; SGD does not care.
# model, optimizer, seed, shards, batch size, accumulated batches, steps
CASES = [("mlp", "sgd", 7, 2, 64, 1, 100),
         ("mlp:32", "adam", 7, 2, 32, 1, 100),
         ("mlp:32", "adamw", 7, 3, 16, 2, 100),
         ("cnn", "sgd", 7, 2, 32, 1, 100),
         ("cnn", "adam", 7, 2, 16, 1, 10),
         ("cnn", "adamw", 7, 2, 16, 1, 10),
         ("mlp", "sgd", 1, 2, 1024, 4, 17)]  # over an epoch's short last window


def main(sample):
    for model, optimizer, seed, shards, batch_size, accumulate, steps in CASES:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sample, folder, model, optimizer, *map(str, (seed, shards, batch_size, accumulate, steps))],
                           check=True)
            name, _, width = model.partition(":")
            about = ["--model", name, "--optimizer", optimizer, *(["--hidden", f"[{width}]"] if width else [])]
            end = f"{folder}/final.safetensors"
            same_steps.compare(["--initial", f"{folder}/initial.safetensors", "--final", end, "--seed", str(seed),
                                "--order", f"{folder}/order.jsonl", *about, *OPTIMIZERS[optimizer]])
            same_logits.compare(["--export", f"{folder}/export.pt", "--weights", end, "--steps", str(steps),
                                 "--logits", f"{folder}/logits.safetensors", *about])


if __name__ == "__main__":
    main(sys.argv[1])
