"""Goal: PyTorch opens the file of `troupe checkpoint export --format torch` and computes the same logits.

    same_logits.py --export E.pt --weights MODEL.safetensors --model mlp [--logits L.safetensors]
                   [--optimizer sgd --optimizer-tensors OPTIMIZER.safetensors]

The export must open with weights_only=True and hold exactly the weights of the safetensors file. Its logits must equal
those in L (a tensor `logits`, of the first test images), or else those of a module with the safetensors weights. An
optimizer of the named kind must accept its `optimizer_states`.
"""
import argparse
import json
import sys

import torch

import safetensors_by_hand
import torch_models


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--export", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--hidden", type=json.loads, default=[256, 128])
    parser.add_argument("--logits")
    parser.add_argument("--optimizer")
    parser.add_argument("--optimizer-tensors")
    parser.add_argument("--steps", type=int, help="the required value of global_step")
    parser.add_argument("--data-dir", default=torch_models.FOLDER)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    return parser.parse_args(words)


def require(condition, text):
    if not condition:
        sys.exit(text)


def check_weights(state, weights):
    require(list(state) == list(weights), f"the keys differ: {list(state)} instead of {list(weights)}")
    for name, x in weights.items():
        require(state[name].numpy().tobytes() == x.tobytes(), f"the bytes of {name} differ")
        require(tuple(state[name].shape) == x.shape, f"the shape of {name} differs")


def check_logits(wish, state):
    module = torch_models.make(wish.model, wish.hidden)
    module.load_state_dict(state)
    module.eval()
    torch.set_num_threads(1)
    if wish.logits:
        expected = torch.from_numpy(safetensors_by_hand.read(wish.logits)["logits"].copy())
    with torch.no_grad():
        images, _ = torch_models.fashion_mnist("t10k", wish.data_dir)
        logits = module.net(images[:len(expected) if wish.logits else 64])
        if not wish.logits:
            other = torch_models.make(wish.model, wish.hidden)
            weights = safetensors_by_hand.read(wish.weights)
            other.load_state_dict({name: torch.from_numpy(x.copy()) for name, x in weights.items()})
            expected = other.net(images[:64])
    difference = (logits - expected).abs().max().item()
    require(difference <= wish.tolerance, f"the logits differ by {difference:.1e}")
    return difference


def check_optimizer(wish, saved, module):
    optimizer = torch_models.optimizer(wish.optimizer, module.parameters(), 1.0, momentum=0.5)
    optimizer.load_state_dict(saved)
    require(optimizer.param_groups[0]["lr"] != 1.0, "the learning rate was not restored")
    names = [name for name, _ in module.named_parameters()]
    if wish.optimizer_tensors:
        for key, x in safetensors_by_hand.read(wish.optimizer_tensors).items():
            name, slot = key.split(".", 1)[1].rsplit(".", 1)
            taken = saved["state"][names.index(name)][slot]
            require((taken.numpy() == x).all(), f"the numbers of {key} differ")
    module.net(torch.zeros(2, 1, 28, 28)).sum().backward()
    optimizer.step()


def compare(words):
    wish = arguments(words)
    checkpoint = torch.load(wish.export, weights_only=True)
    require({"state_dict", "epoch", "global_step"} <= set(checkpoint), f"keys are {sorted(checkpoint)}")
    require(wish.steps is None or checkpoint["global_step"] == wish.steps, "global_step is wrong")
    check_weights(checkpoint["state_dict"], safetensors_by_hand.read(wish.weights))
    difference = check_logits(wish, checkpoint["state_dict"])
    if wish.optimizer:
        module = torch_models.make(wish.model, wish.hidden)
        module.load_state_dict(checkpoint["state_dict"])
        check_optimizer(wish, checkpoint["optimizer_states"][0], module)
    print(f"{wish.model}: opened with weights_only=True, same bytes, logits differ by {difference:.1e}")
    return difference


if __name__ == "__main__":
    compare(sys.argv[1:])
