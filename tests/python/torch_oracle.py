"""The reference executor against PyTorch: torch_oracle.py SAMPLE, where SAMPLE is torch_sample."""
import subprocess
import sys
import tempfile

import same_logits
import same_steps

OPTIMIZERS = {"sgd": ["--learning-rate", "0.05", "--momentum", "0.9"],
              "adam": ["--learning-rate", "0.001"],
              "adamw": ["--learning-rate", "0.001", "--weight-decay", "0.01"]}
# model, optimizer, seed, shards, batch size, accumulated batches, steps
CASES = [("mlp", "sgd", 7, 2, 64, 1, 100),
         ("mlp", "adam", 7, 2, 64, 1, 100),
         ("mlp", "adamw", 7, 3, 32, 2, 100),
         ("cnn", "sgd", 7, 2, 32, 1, 100),
         ("cnn", "adam", 7, 2, 32, 1, 100),
         ("cnn", "adamw", 7, 2, 16, 2, 100),
         ("mlp", "sgd", 1, 2, 1024, 4, 17)]  # over an epoch's short last window


def main(sample):
    for model, optimizer, seed, shards, batch_size, accumulate, steps in CASES:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sample, folder, model, optimizer, *map(str, (seed, shards, batch_size, accumulate, steps))],
                           check=True)
            same_steps.compare(["--initial", f"{folder}/initial.safetensors", "--final", f"{folder}/final.safetensors",
                                "--order", f"{folder}/order.jsonl", "--model", model, "--optimizer", optimizer,
                                "--seed", str(seed), *OPTIMIZERS[optimizer]])
            same_logits.compare(["--export", f"{folder}/export.pt", "--weights", f"{folder}/final.safetensors",
                                 "--logits", f"{folder}/logits.safetensors", "--model", model,
                                 "--optimizer", optimizer, "--steps", str(steps)])


if __name__ == "__main__":
    main(sys.argv[1])
