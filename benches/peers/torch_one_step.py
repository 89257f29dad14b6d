"""One training step of the MNIST network under torchrun, for scripts/start-up.

    torchrun --nproc-per-node 2 benches/peers/torch_one_step.py

Rank 0 prints "step" when the step is done everywhere; each rank prints its peak memory in KiB."""

import os
import resource

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """pytorch/examples' network, as burn-ddp trains it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), 1)


def say(line):
    """In one piece, because the ranks share a pipe."""
    os.write(1, f"{line}\n".encode())


def main():
    torch.manual_seed(42)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    F.nll_loss(model(images), labels).backward()
    optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        say("step")
    say(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}")
    dist.destroy_process_group()


main()
