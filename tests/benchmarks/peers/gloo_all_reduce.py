"""Measures torch.distributed's all_reduce(sum, float32) over Gloo. Runs under torch.distributed.run. Arguments: sizes
in bytes. Prints one JSON object per size: the seconds per call of the slowest rank."""
import json
import sys
import time

import torch
import torch.distributed as dist


def slowest(seconds):
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def batch(data, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    return slowest((time.perf_counter() - begin) / calls)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
for size in map(int, sys.argv[1:]):
    data = torch.full((size // 4,), float(rank + 1))
    dist.all_reduce(data)
    assert torch.all(data == ranks * (ranks + 1) / 2)
    data.zero_()
    calls = min(max(int(0.05 / batch(data, 3)), 3), 2000)
    seconds = batch(data, calls)
    if rank == 0:
        print(json.dumps({"bytes": size, "seconds": seconds}), flush=True)
dist.destroy_process_group()
