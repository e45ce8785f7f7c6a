"""Goal: the model gpt computes what PyTorch's own layers compute. Usage: text_oracle.py PROGRAM.

The program trains a little. PyTorch loads the exported weights, writes on from a prompt, always the likeliest
character, and must get the text that `troupe write` writes.
"""
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, BLOCKS, CONTEXT, CHARACTERS = 96, 4, 3, 64, 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.look, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.look(self.norm_1(x)).chunk(3, 2)]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm_2(x))))


class Place(nn.Module):
    def __init__(self):
        super().__init__()
        self.what, self.where = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, x):
        return self.what(x) + self.where.weight[:x.size(1)]


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)

    def forward(self, x):
        return self.out(self.norm(x))


def text_by_torch(path, prompt, count):
    """The text, and how sure the least certain choice was: the distance between its two best scores."""
    state = torch.load(path, weights_only=True)["state_dict"]
    module = nn.Module()
    module.net = nn.Sequential(Place(), *(Block() for _ in range(BLOCKS)), Guess())
    module.load_state_dict(state)
    module.eval()
    numbers, least = [ord(c) - 31 if c != "\n" else 0 for c in prompt], float("inf")
    with torch.no_grad():
        for _ in range(count):
            best = module.net(torch.tensor([numbers[-CONTEXT:]]))[0, -1].topk(2)
            numbers.append(best.indices[0].item())
            least = min(least, (best.values[0] - best.values[1]).item())
    return "".join(chr(n + 31) if n else "\n" for n in numbers), least


def main(program):
    def troupe(*words):
        return subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        run, exported, text = (os.path.join(folder, name) for name in ("run", "weights.pt", "text"))
        with open(text, "w", encoding="utf-8") as f:
            f.write("".join(f"{n} times {n} is {n * n}.\n" for n in range(600)))
        troupe("fit", "--model", "gpt", "--data", "text", "--data-dir", text, "--run-dir", run, "--optimizer", "adamw",
               "--learning-rate", 0.003, "--batch-size", 8, "--max-steps", 80, "--max-epochs", -1, "--set",
               "model.dropout=0.1", "--progress", "never")
        troupe("checkpoint", "export", run, "--format", "torch", "--output", exported)
        long = "is 4 times 9 and 5 is 26 times 3. more than a window: 4 times 4 is 16."
        for prompt in ("7", "12 times 1", "\n", long):
            expected, least = text_by_torch(exported, prompt, 100)
            written = troupe("write", run, "--prompt", prompt, "--characters", 100, "--temperature", 0)
            if written != expected + "\n" and least > 1e-4:
                sys.exit(f"troupe wrote {written!r}, PyTorch {expected!r}")
            print(f"{prompt!r}: {len(expected)} equal characters, {len(set(expected))} different ones")


if __name__ == "__main__":
    main(sys.argv[1])
