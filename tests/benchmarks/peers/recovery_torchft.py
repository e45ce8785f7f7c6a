"""Trains one replica over Gloo for ever with torchft. Arguments: the replica's number, the lighthouse's address, the
seconds between heartbeats. Prints one JSON object per committed step."""
import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

replica, lighthouse, heartbeat = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
logging.disable(logging.CRITICAL)
torch.set_num_threads(1)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
inner = torch.optim.SGD(net.parameters(), lr=1 / 16)


def load(state):
    net.load_state_dict(state["net"])
    inner.load_state_dict(state["optimizer"])


store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
limit = timedelta(seconds=5)  # torchft's own is 60 s, for which a replica may wait for one that is gone
manager = Manager(pg=ProcessGroupGloo(timeout=limit), load_state_dict=load,
                  state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
                  min_replica_size=2, timeout=limit, rank=0, world_size=1, store_addr="localhost",
                  store_port=store.port, lighthouse_addr=lighthouse, replica_id=f"replica{replica}_",
                  hostname="localhost", heartbeat_interval=timedelta(seconds=heartbeat))
model = DistributedDataParallel(manager, net)
optimizer = Optimizer(manager, inner)
loss_of = nn.CrossEntropyLoss()
images, labels = torch.randn(16, 784), torch.arange(16) % 10
while True:
    before = manager.current_step()
    optimizer.zero_grad()
    loss_of(model(images), labels).backward()
    optimizer.step()
    if manager.current_step() > before:
        print(json.dumps({"rank": replica, "pid": os.getpid(), "step": manager.current_step(),
                          "at": time.monotonic(), "members": manager.num_participants()}), flush=True)
