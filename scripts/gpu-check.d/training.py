"""gpu-check: training runs, their losses, and ranks that share a GPU."""
import csv
import math
import os
import random

from machine import KERNELS, free_port
from report import Failed, Skipped


def world(command, size):
    """The command for each of `size` ranks, with its variables.

    NCCL before 2.30 rejects ranks that share a GPU unless they appear to be on different machines. They then
    communicate over sockets.
    """
    job = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
           "BURN_DDP_SECRET": f"gpu-check-{random.getrandbits(64)}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1,
           "NCCL_MULTI_RANK_GPU_ENABLE": 1}
    shared = ["--allow-shared-gpu"] if size > 1 else []
    return [([*command, *shared], {**job, "RANK": rank, "LOCAL_RANK": rank, "NCCL_HOSTID": f"gpu-check-{rank}"})
            for rank in range(size)]


def column(folder, name, table="steps.csv"):
    """A column of a run's table as numbers."""
    with open(os.path.join(folder, table), newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def difference(folder, reference):
    """Largest difference between the losses of two runs."""
    ours, theirs = column(folder, "loss"), column(reference, "loss")
    if len(ours) != len(theirs) or not ours:
        raise Failed(f"{len(ours)} steps, and {len(theirs)} of the reference")
    differences = [abs(one - other) for one, other in zip(ours, theirs)]
    # The maximum of a list with NaN depends on its order.
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def compare(folder, reference, tolerance):
    worst = difference(folder, reference)
    if not worst <= tolerance:
        raise Failed(f"losses differ by {worst:.2e}, at most {tolerance:.1e} is allowed")
    return {"difference": float(f"{worst:.3g}"), "tolerance": tolerance}


def kernels(run, machine, action, file, cache=KERNELS, tuning=False):
    """Exports or imports compiled kernels, and with `tuning` imports tuning results, too."""
    if not machine.has_kernels:
        raise Skipped("this burn-ddp has no command kernels")
    flags = ["--no-tuning"] if action == "import" and not tuning else []
    run([machine.burn_ddp, "kernels", action, file, *flags], BURN_DDP_KERNEL_CACHE=cache)
