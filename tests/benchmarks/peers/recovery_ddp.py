"""Trains with DDP over Gloo for ever, and resumes from the newest checkpoint. Runs under torch.distributed.run.

Argument: the file of the checkpoint, which rank 0 writes after every step. Prints one JSON object per rank and step."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

path = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=1 / 16)
step = 0
if os.path.exists(path):
    step, weights, state = torch.load(path)
    net.load_state_dict(weights)
    optimizer.load_state_dict(state)
model = DistributedDataParallel(net)
loss_of = nn.CrossEntropyLoss()
images, labels = torch.randn(16, 784), torch.arange(16) % 10
while True:
    optimizer.zero_grad()
    loss_of(model(images), labels).backward()
    optimizer.step()
    step += 1
    if rank == 0:
        torch.save((step, net.state_dict(), optimizer.state_dict()), path + ".new")
        os.rename(path + ".new", path)
    said = json.dumps({"rank": rank, "pid": os.getpid(), "step": step, "at": time.monotonic()})
    os.write(1, f"{said}\n".encode())  # at once, because all ranks share the pipe
