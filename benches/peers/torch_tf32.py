"""Loss differences that TF32 causes in the trajectories of `scripts/gpu-check correctness`, and those of mistakes.

Trains the network of examples/mnist_ddp without dropout in f32, in TF32 (inputs of all products rounded to nearest
even, or truncated), and with one mistake each, from the same weights and on the same images. Prints the largest
difference from the f32 losses for each, over several seeds. A tolerance must lie between TF32 and the mistakes. Seeds
draw the weights; with --weights, they draw the order of the samples in a batch, and so the order of sums.
"""
import argparse
import contextlib
import gzip
import os

import torch
from torch.nn import functional as F

from networks import mnist, safetensors
from tf32 import Tf32

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", default=os.path.join(ROOT, "examples/mnist_ddp/subset"))
parser.add_argument("--batch-norm", action="store_true")
parser.add_argument("--batch", type=int, default=48)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--seeds", type=int, default=10)
parser.add_argument("--weights", help="initial weights, as `mnist_ddp --lr 0 --max-steps 1 --export FILE` writes them")
args = parser.parse_args()
torch.set_num_threads(1)
LAYERS = ("conv1", "bn1", "conv2", "bn2", "fc1", "fc2")


def read(name, skip):
    with gzip.open(os.path.join(args.data, name)) as file:
        return torch.frombuffer(bytearray(file.read()[skip:]), dtype=torch.uint8)


images = (read("train-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)[: args.batch * args.steps] / 255 - 0.1307) / 0.3081
labels = read("train-labels-idx1-ubyte.gz", 8)[: args.batch * args.steps].long()


def batches(seed):
    if not args.weights or seed is None:
        return zip(images.split(args.batch), labels.split(args.batch))
    torch.manual_seed(seed)
    order = torch.cat([torch.randperm(args.batch) + first for first in range(0, len(labels), args.batch)])
    return zip(images[order].split(args.batch), labels[order].split(args.batch))


def losses(seed, tf32=None, rate=1.0, scale=1.0, momentum=0.9, shards=1, lost=0):
    """`rate` multiplies the learning rate, `scale` the gradients. Each of `shards` parts of a batch has its own
    BatchNorm statistics. With `lost`, the gradients of the last shard are left out."""
    torch.manual_seed(seed or 0)
    net, result = mnist(args.batch_norm, (0, 0)), []
    if args.weights:
        tensors = dict(safetensors(args.weights))
        names = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias") if f"{layer}.{part}" in tensors]
        with torch.no_grad():
            for name, parameter in zip(names, net.parameters(), strict=True):
                parameter.copy_(tensors[name])
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr * rate, momentum=momentum)
    with Tf32(tf32) if tf32 else contextlib.nullcontext():
        for x, y in batches(seed):
            optimizer.zero_grad()
            parts = [F.cross_entropy(net(a), b) for a, b in zip(x.chunk(shards), y.chunk(shards))]
            (sum(parts[: shards - lost]) * scale / (shards - lost)).backward()
            optimizer.step()
            result.append(sum(part.item() for part in parts) / shards)
    return result


CASES = {
    "TF32, to nearest": {"tf32": "nearest"},
    "TF32, truncated": {"tf32": "truncate"},
    "learning rate + 1 %": {"rate": 1.01},
    "the same in TF32": {"rate": 1.01, "tf32": "nearest"},
    "momentum 0.89": {"momentum": 0.89},
    "gradients summed": {"scale": 2.0},
    "one rank's gradients": {"shards": 2, "lost": 1},
}
if args.batch_norm:
    CASES["statistics per rank"] = {"shards": 2}

worst = {case: [] for case in CASES}
drift = []
for seed in range(args.seeds):
    reference = losses(None if args.weights else seed)
    drift.append(reference[0] - reference[-1])
    for case, what in CASES.items():
        worst[case].append([abs(a - b) for a, b in zip(losses(seed, **what), reference)])
print(f"{'BatchNorm, ' if args.batch_norm else ''}batch {args.batch}, {args.steps} steps, learning rate {args.lr}, "
      f"{args.seeds} seeds; the loss falls by {min(drift):.2f} to {max(drift):.2f}")
print(f"{'':<22}  largest difference        mean over steps\n{'':<22}  min      median   max      min      median   max")
for case, seeds in worst.items():
    columns = []
    for of in (max, lambda steps: sum(steps) / len(steps)):
        values = sorted(of(steps) for steps in seeds)
        columns += [values[0], values[len(values) // 2], values[-1]]
    print(f"{case:<22}  " + "  ".join(f"{value:.1e}" for value in columns), flush=True)
