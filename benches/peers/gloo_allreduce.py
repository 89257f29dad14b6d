"""Gloo's all_reduce of f32 sums against its size, to be compared with `burn-ddp bench all-reduce`:
a barrier, then one timed call. Rank 0 prints: bytes, median and best microseconds.

    torchrun --nproc_per_node N gloo_allreduce.py
"""

import statistics
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
for size, rounds in [(4096, 300), (4799528, 40), (16 << 20, 15), (64 << 20, 6)]:
    x = torch.ones(size // 4)
    times = []
    for turn in range(rounds + 3):
        x.fill_(1.0)
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(x)
        if turn >= 3:
            times.append((time.perf_counter() - begun) * 1e6)
    if dist.get_rank() == 0:
        print(size, f"{statistics.median(times):.1f}", f"{min(times):.1f}", flush=True)
dist.destroy_process_group()
