"""Goal: the loss scale of 16-mixed is that of torch.amp.GradScaler, truncated back-propagation through time trains as
Lightning 1.x does, manual optimization as PyTorch does (and Lightning, if this Python has it), and PowerSGD sums what
PyTorch's hook sums. Usage: numbers_oracle.py SAMPLE, where SAMPLE is the program oracle_sample. The seeds and cases are
those of training_sample.cpp."""
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

import safetensors_by_hand

SCALER_STEPS = 200
RECURRENT_STEPS = 40
MANUAL_STEPS = 60
PART = 4  # of 10 steps in time
SHAPES = [(32, 48), (16,), (8, 4, 3, 3), (1,), (40, 10), (), (32, 48), (3, 2)]
POWERSGD_STEPS = 7
CASES = {"rank1": {"start_powerSGD_iter": 2},
         "rank2": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, "min_compression_rate": 1.5,
                   "random_seed": 5},
         "rank4": {"matrix_approximation_rank": 4, "start_powerSGD_iter": 3, "min_compression_rate": 0.5},
         "cold": {"start_powerSGD_iter": 2, "warm_start": False},
         "no_feedback": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, "use_error_feedback": False},
         "epsilon": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, "orthogonalization_epsilon": 1.0}}


def drawn(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors(path):
    return {name: torch.from_numpy(x.copy()) for name, x in safetensors_by_hand.read(path).items()}


def spoiled_by(step, layer):
    if step % 23 == 11 and layer == 0:
        return math.inf
    if step % 31 == 30 and layer == 1:
        return math.nan
    return math.inf if 120 <= step < 126 else 1


def scaled_training():
    """The scale after each step, the weights, and how many steps of an optimizer were skipped."""
    layers = [torch.nn.Linear(12, 8), torch.nn.Linear(8, 4)]
    for seed, parameter in enumerate((p for layer in layers for p in layer.parameters()), start=1):
        parameter.data = drawn(seed, parameter.shape) * 0.2
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9) for layer in layers]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    scales = []
    for step in range(SCALER_STEPS):
        for which, (layer, optimizer) in enumerate(zip(layers, optimizers)):
            optimizer.zero_grad()
            for rank in range(2):
                seed = 2 * step + rank
                with torch.autocast("cpu", torch.float16):
                    y = layers[1](torch.relu(layers[0](drawn(1000 + seed, (8, 12)))))
                    loss = torch.nn.functional.mse_loss(y.float(), drawn(9000 + seed, (8, 4)))
                (scaler.scale(loss) * 0.5).backward(inputs=list(layer.parameters()))
            if spoiled_by(step, which) != 1:
                layer.bias.grad[0] *= spoiled_by(step, which)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    names = ("first", "second")
    return scales, {f"{name}.{key}": x for name, layer in zip(names, layers) for key, x in layer.state_dict().items()}


def check_scaler(folder):
    scales, weights = scaled_training()
    with open(f"{folder}/scaler.json", encoding="utf-8") as file:
        found = json.load(file)
    if found != scales:
        step = next((i for i, (a, b) in enumerate(zip(found, scales)) if a != b), min(len(found), len(scales)))
        sys.exit(f"the scale of step {step} is {found[step:step + 1]}, Python's {scales[step:step + 1]}")
    changes = [b / a for a, b in zip(scales, scales[1:]) if a != b]
    if changes.count(2.0) < 5 or changes.count(0.5) < 10:
        sys.exit(f"the scale hardly changed: {changes}")
    final = tensors(f"{folder}/scaler.safetensors")
    worst = max((final[name] - x).abs().max().item() for name, x in weights.items())
    print(f"16-mixed: {len(scales)} steps, scale grew {changes.count(2.0)} and shrank {changes.count(0.5)} times, "
          f"largest difference of a weight {worst:.1e}")
    if set(final) != set(weights) or not worst <= 1e-6:
        sys.exit("the weights differ")


def detached(state):
    return tuple(x.detach() for x in state) if isinstance(state, tuple) else state.detach()


def recurrent_training(kind, part, hands_on=True):
    """The weights after steps that split each batch in time, as Lightning's training loop (1.3 to 1.9) does."""
    cell, head = kind(3, 6, batch_first=True), torch.nn.Linear(6, 2)
    parameters = [*cell.parameters(), *head.parameters()]
    for seed, parameter in enumerate(parameters, start=1):
        parameter.data = drawn(seed, parameter.shape) * 0.2
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    for step in range(RECURRENT_STEPS):
        batches = [(drawn(3000 + 2 * step + rank, (4, 10, 3)), drawn(5000 + 2 * step + rank, (4, 10, 2)))
                   for rank in range(2)]
        hiddens = [None, None]
        for first in range(0, 10, part):
            optimizer.zero_grad()
            for rank, (x, y) in enumerate(batches):
                out, state = cell(x[:, first:first + part], hiddens[rank])
                loss = torch.nn.functional.mse_loss(head(out), y[:, first:first + part])
                (loss * 0.5).backward()
                hiddens[rank] = detached(state) if hands_on else None
            torch.nn.utils.clip_grad_norm_(parameters, 0.1)
            optimizer.step()
    return {f"{name}.{key}": x for name, layer in (("cell", cell), ("head", head))
            for key, x in layer.state_dict().items()}


def apart(weights, others):
    return max((weights[name] - x).abs().max().item() for name, x in others.items())


def check_recurrent(folder):
    for name, kind in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        found, expected = tensors(f"{folder}/recurrent.{name}.safetensors"), recurrent_training(kind, PART)
        if set(found) != set(expected):
            sys.exit(f"the keys differ: {sorted(set(found) ^ set(expected))}")
        difference = apart(found, expected)
        whole, forgetful = (apart(found, recurrent_training(kind, *how)) for how in ((10,), (PART, False)))
        print(f"{name} in parts of {PART} steps in time: {RECURRENT_STEPS} batches, largest difference of a weight "
              f"{difference:.1e}; without parts {whole:.1e}, without hiddens {forgetful:.1e}")
        if not difference <= 1e-5 or not min(whole, forgetful) > 1e-3:
            sys.exit(f"{name} differs, or nothing was compared")


def adversarial_layers():
    layers = {"generator": torch.nn.Linear(3, 2), "critic": torch.nn.Linear(2, 1)}
    for seed, parameter in enumerate((p for layer in layers.values() for p in layer.parameters()), start=1):
        parameter.data = drawn(seed, parameter.shape) * 0.2
    return layers


def adversarial_optimizers(layers):
    return (torch.optim.Adam(layers["generator"].parameters(), lr=0.01),
            torch.optim.SGD(layers["critic"].parameters(), lr=0.05, momentum=0.9))


def adversarial_batches():
    """What both ranks draw, joined: each mean is over 8 samples."""
    return [tuple(torch.cat([drawn(first + 2 * step + rank, (4, width)) for rank in range(2)])
                  for first, width in ((13000, 3), (15000, 2))) for step in range(MANUAL_STEPS)]


def adversarial_step(layers, optimizers, backward, x, y, added=True):
    made = layers["generator"](x)
    optimizers[0].zero_grad()
    backward(torch.nn.functional.mse_loss(made, y) - 0.1 * layers["critic"](made).mean())
    optimizers[0].step()
    optimizers[1].zero_grad()
    if added:
        backward(layers["critic"](made.detach()).pow(2).mean())
    backward((layers["critic"](y) - 1).pow(2).mean())
    optimizers[1].step()


def manual_training(added=True):
    layers = adversarial_layers()
    optimizers = adversarial_optimizers(layers)
    for x, y in adversarial_batches():
        adversarial_step(layers, optimizers, torch.Tensor.backward, x, y, added)
    return layers


def manual_training_of_lightning():
    try:
        from lightning.pytorch import LightningModule, Trainer
    except ImportError:
        return None

    class Adversarial(LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.layers = torch.nn.ModuleDict(adversarial_layers())

        def training_step(self, batch, _):
            adversarial_step(self.layers, self.optimizers(), self.manual_backward, *batch)

        def configure_optimizers(self):
            return adversarial_optimizers(self.layers)

    model = Adversarial()
    Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False).fit(
                model, torch.utils.data.DataLoader(adversarial_batches(), batch_size=None))
    return dict(model.layers.items())


def check_manual(folder):
    found = tensors(f"{folder}/manual.safetensors")
    for name, layers in (("PyTorch", manual_training()), ("Lightning", manual_training_of_lightning())):
        if layers is None:
            print("manual optimization: no Lightning here to compare with")
            continue
        expected = {f"{part}.{key}": x for part, layer in layers.items() for key, x in layer.state_dict().items()}
        worst = apart(found, expected)
        print(f"manual optimization: {MANUAL_STEPS} batches, largest difference of a weight to {name} {worst:.1e}")
        if set(found) != set(expected) or not worst <= 1e-5:
            sys.exit("the weights differ")
    other = {f"{part}.{key}": x for part, layer in manual_training(added=False).items()
             for key, x in layer.state_dict().items()}
    if not apart(found, other) > 1e-3:
        sys.exit("nothing was compared")


class Bucket:
    """One bucket as DDP gives it to a hook, as far as the hook looks at it."""

    def __init__(self, step, rank):
        pieces = [drawn(100 * step + 10 * rank + i, shape).flatten() for i, shape in enumerate(SHAPES)]
        self.row = torch.cat(pieces)

    def buffer(self):
        return self.row

    def gradients(self):
        pieces = self.row.split([math.prod(shape) for shape in SHAPES])
        # The hook cannot look at a parameter without dimensions.
        return [piece.view(shape or (1,)) for piece, shape in zip(pieces, SHAPES)]

    def index(self):
        return 0

    def is_last(self):
        return True


def reference_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {}
    for name, how in CASES.items():
        state = powersgd.PowerSGDState(None, **how)
        for step in range(POWERSGD_STEPS):
            bucket = Bucket(step, rank)
            bucket.row = powersgd.powerSGD_hook(state, bucket).wait()
            for i, (gradient, shape) in enumerate(zip(bucket.gradients(), SHAPES)):
                found[f"{name}.{step}.{i}"] = gradient.view(shape).clone()
    if rank == 0:
        torch.save(found, f"{folder}/reference.pt")
    # Gloo's destructors sometimes join their own thread ("Resource deadlock avoided"), so they do not run.
    os._exit(0)


def check_powersgd(folder):
    torch.multiprocessing.spawn(reference_rank, (folder,), nprocs=2)
    expected = torch.load(f"{folder}/reference.pt")
    found = tensors(f"{folder}/powersgd.safetensors")
    if set(expected) != set(found):
        sys.exit(f"the keys differ: {sorted(set(expected) ^ set(found))[:5]}")
    for name in CASES:
        keys = [key for key in expected if key.startswith(f"{name}.")]
        worst = max(((expected[key] - found[key]).abs().max() / expected[key].abs().max()).item() for key in keys)
        plain = [(drawn(100 * step, (32, 48)) + drawn(100 * step + 10, (32, 48))) / 2 for step in range(POWERSGD_STEPS)]
        changed = (plain[-1] - found[f"{name}.{POWERSGD_STEPS - 1}.0"]).abs().max().item()
        print(f"powersgd {name}: largest relative difference {worst:.1e}, compression changed up to {changed:.1e}")
        if not worst <= 2e-5 or not changed > 0.1:
            sys.exit(f"{name} differs")


def main(sample):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sample, "numbers", folder], check=True)
        check_scaler(folder)
        check_recurrent(folder)
        check_manual(folder)
        check_powersgd(folder)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main(sys.argv[1])
