"""A training step of pytorch/examples' MNIST network on the CPU: one line of JSON from rank 0.

    torch_step.py --threads 2 [--bn]                        one process
    torchrun --nproc_per_node 2 torch_step.py --ddp [--bn]  with Gloo; --apart instead: no gradients exchanged
"""
import argparse
import json
import statistics
import time

import torch
from torch import distributed, nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--bn", action="store_true")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--apart", action="store_true")
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(1)
together = args.ddp or args.apart
if together:
    distributed.init_process_group("gloo")
rank, world = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm2d if args.bn else lambda _: nn.Identity()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3), norm(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3), norm(64)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


net = Net()
if args.ddp:
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
random = torch.Generator().manual_seed(7 + rank)
images = torch.randint(0, 256, (60000, 1, 28, 28), dtype=torch.uint8, generator=random)
labels = torch.randint(0, 10, (60000,), generator=random)


def step():
    chosen = torch.randint(0, 60000, (args.batch,), generator=random)
    x = images[chosen].float().div_(255).sub_(0.1307).div_(0.3081)
    optimizer.zero_grad()
    loss = F.nll_loss(net(x), labels[chosen])
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(10):
    step()
if together:
    distributed.barrier()
times, processor = [], []
for _ in range(args.steps):
    begun, busy = time.perf_counter(), time.process_time()
    step()
    times.append(time.perf_counter() - begun)
    processor.append(time.process_time() - busy)
if together:
    distributed.barrier()
if rank == 0:
    print(json.dumps({
        "torch": torch.__version__,
        "images_per_second": args.batch * world / statistics.median(times),
        "images_per_cpu_second": args.batch / statistics.median(processor),
    }))
if together:
    distributed.destroy_process_group()
