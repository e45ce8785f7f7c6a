"""Trains the built-in models on Fashion-MNIST as PyTorch users do. Runs under torch.distributed.run.

    train.py ddp|lightning mlp|cnn BATCH STEPS

Batches are rows of a tensor in memory, selected by a random permutation, which is the cheapest input in Python. Prints
the samples per second of all ranks, after a warm-up of ten steps."""
import json
import os
import sys
import time
import warnings

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
import torch_models  # noqa: E402

kind, model_name, batch, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WARM_UP = 10
to_first_step = None
torch.set_num_threads(1)
torch.manual_seed(0)


def batches():
    images, labels = torch_models.fashion_mnist("train")
    generator = torch.Generator().manual_seed(0)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for first in range(0, len(order) - ranks * batch + 1, ranks * batch):
            rows = order[first + rank * batch:first + (rank + 1) * batch]
            yield images[rows], labels[rows]


def model():
    return torch_models.make(model_name, hidden=(1024, 1024))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def end_first_step():
    """Called after every step. Records when the first step ended."""
    global to_first_step
    if to_first_step is None:
        to_first_step = time.time() - float(os.environ["TROUPE_BENCH_BEGAN"])


def report(seconds):
    if rank == 0:
        print(json.dumps({"samples_per_second": ranks * batch * steps / seconds, "to_first_step": to_first_step}),
              flush=True)


def train_ddp():
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    module = DistributedDataParallel(model().net, gradient_as_bucket_view=True)
    optimizer, loss_of = sgd(module.parameters()), nn.CrossEntropyLoss()
    source = batches()
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            dist.barrier()
            begin = time.perf_counter()
        images, labels = next(source)
        optimizer.zero_grad()
        loss_of(module(images), labels).backward()
        optimizer.step()
        end_first_step()
    dist.barrier()
    report(time.perf_counter() - begin)
    dist.destroy_process_group()


def train_lightning():
    import logging

    import lightning
    from lightning.pytorch.strategies import DDPStrategy
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")

    class source(torch.utils.data.IterableDataset):
        def __iter__(self):
            return batches()

    class clock(lightning.Callback):
        def on_train_batch_start(self, trainer, module, data, index):
            if index == WARM_UP:
                self.begin = time.perf_counter()

        def on_train_batch_end(self, trainer, module, outputs, data, index):
            end_first_step()
            if index + 1 == WARM_UP + steps:
                report(time.perf_counter() - self.begin)

    class classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss = model().net, nn.CrossEntropyLoss()

        def training_step(self, data, index):
            return self.loss(self.net(data[0]), data[1])

        def configure_optimizers(self):
            return sgd(self.parameters())

    lightning.Trainer(
        accelerator="cpu", devices=ranks, max_steps=WARM_UP + steps, logger=False,
        strategy=DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True),
        callbacks=[clock()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(classifier(), torch.utils.data.DataLoader(source(), batch_size=None))


{"ddp": train_ddp, "lightning": train_lightning}[kind]()
