"""Goal: PyTorch, trained from the same weights on the same order of samples, reaches the weights of Troupe.

    same_steps.py --initial A.safetensors --final B.safetensors --order ORDER.jsonl [--order NEXT_EPOCH.jsonl ...]
                  --model mlp --optimizer sgd --learning-rate 0.05 --momentum 0.9

ORDER holds the output of `troupe data order`, one file per epoch. With --seed the initial weights must be exactly those
that torch.manual_seed(SEED) gives. Exits with 0 if no weight differs by more than --tolerance.
"""
import argparse
import itertools
import json
import sys

import torch
from torch.nn.functional import cross_entropy

import safetensors_by_hand
import torch_models


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--initial", required=True)
    parser.add_argument("--final", required=True)
    parser.add_argument("--order", required=True, action="append")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--hidden", type=json.loads, default=[256, 128])
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--steps", type=int, help="only the first N of the order")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--data-dir", default=torch_models.FOLDER)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    return parser.parse_args(words)


def tensors(path):
    return {name: torch.from_numpy(x.copy()) for name, x in safetensors_by_hand.read(path).items()}


def steps_of(paths):
    """For each step and rank: the samples of its micro-batches, without empty ones."""
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        for _, step in itertools.groupby(lines, key=lambda line: line["step"]):
            ranks = {}
            for line in step:
                ranks.setdefault(line["rank"], []).append(line["samples"])
            yield [[samples for samples in ranks[rank] if samples] for rank in sorted(ranks)]


def tree_sum(leaves):
    """Adds in the order that the contract prescribes for sums over ranks. The order matters because Adam divides a
    gradient by its own size: where a gradient is only a rounding error, another order of summation moves a weight by a
    whole learning rate, in PyTorch too."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << ((len(leaves) - 1).bit_length() - 1)
    return tree_sum(leaves[:left]) + tree_sum(leaves[left:])


def train(module, optimizer, steps, images, labels):
    parameters = list(module.parameters())
    for ranks in steps:
        total = sum(len(piece) for pieces in ranks for piece in pieces)
        gradients = []
        for pieces in ranks:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for piece in pieces:
                loss = cross_entropy(module.net(images[piece]), labels[piece])
                (loss * (len(piece) / total)).backward()
            gradients.append([parameter.grad for parameter in parameters])
        for i, parameter in enumerate(parameters):
            parameter.grad = tree_sum([of_rank[i] for of_rank in gradients])
        optimizer.step()


def compare(words):
    """Returns the largest difference of any weight."""
    wish = arguments(words)
    torch.set_num_threads(1)
    initial, final = tensors(wish.initial), tensors(wish.final)
    if wish.seed is not None:
        torch.manual_seed(wish.seed)
        for name, born in torch_models.make(wish.model, wish.hidden).state_dict().items():
            if not torch.equal(born, initial[name]):
                sys.exit(f"{name} does not start as torch.manual_seed({wish.seed}) starts it")
    module = torch_models.make(wish.model, wish.hidden)
    module.load_state_dict(initial)
    optimizer = torch_models.optimizer(wish.optimizer, module.parameters(), wish.learning_rate, wish.momentum,
                                       wish.weight_decay)
    images, labels = torch_models.fashion_mnist("train", wish.data_dir)
    steps = list(itertools.islice(steps_of(wish.order), wish.steps))
    train(module, optimizer, steps, images, labels)
    state = module.state_dict()
    if set(state) != set(final):
        sys.exit(f"the keys differ: {sorted(set(state) ^ set(final))}")
    moved = max((final[name] - initial[name]).abs().max().item() for name in final)
    if steps and not moved > 100 * wish.tolerance:
        sys.exit(f"the weights moved by {moved:.1e} at most: nothing was compared")
    worst = max(state, key=lambda name: (state[name] - final[name]).abs().max())
    difference = (state[worst] - final[worst]).abs().max().item()
    print(f"{wish.model} {wish.optimizer}: {len(steps)} steps, largest difference {difference:.1e} ({worst}), "
          f"weights moved by up to {moved:.1e}")
    if not difference <= wish.tolerance:
        sys.exit(f"{worst} differs by {difference:.1e}, more than {wish.tolerance:.0e}")
    return difference


if __name__ == "__main__":
    compare(sys.argv[1:])
