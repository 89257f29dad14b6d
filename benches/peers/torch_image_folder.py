"""The network and recipe of examples/image_folder in PyTorch.

Pictures are those of DIR/train and DIR/val, which are decoded once and kept in memory; burn-ddp decodes them in every
epoch. Under `torchrun --nproc-per-node N`, ranks share a batch and use DistributedDataParallel with Gloo.
Prints one line of JSON: accuracy after every epoch, seconds of training, and pictures per second.
"""
import argparse
import json
import os
import time
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--colours", choices=["grey", "rgb"], default="grey")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=64, help="samples per rank")
parser.add_argument("--blocks", type=int, default=1)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--weight-decay", type=float, default=0.0005)
parser.add_argument("--label-smoothing", type=float, default=0.0)
parser.add_argument("--crop", type=int, default=2)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--max-steps", type=int)
parser.add_argument("--channels-last", action="store_true")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(1)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    distributed.init_process_group("gloo")


def load(part):
    """Pixels [n, channels, height, width] in u8, and classes."""
    classes = sorted(path for path in Path(args.data, part).iterdir() if path.is_dir())
    mode = "L" if args.colours == "grey" else "RGB"
    pixels, labels = [], []
    for label, folder in enumerate(classes):
        for path in sorted(folder.iterdir()):
            picture = numpy.asarray(Image.open(path).convert(mode))
            pixels.append(picture[None] if mode == "L" else picture.transpose(2, 0, 1))
            labels.append(label)
    return torch.from_numpy(numpy.stack(pixels)), torch.tensor(labels)


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        projects = stride != 1 or before != after
        conv = nn.Conv2d(before, after, 1, stride, bias=False)
        self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after)) if projects else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        width = args.width
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for stage in (1, 2, 3):
            after = width * 2 ** (stage - 1)
            blocks = [Block(before, after, 1 if stage == 1 else 2)]
            blocks += [Block(after, after, 1) for _ in range(1, args.blocks)]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            before = after
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


train, labels = load("train")
test, test_labels = load("val")
scaled = train.double() / 255
mean = scaled.mean((0, 2, 3), keepdim=True).float()
std = scaled.std((0, 2, 3), correction=0, keepdim=True).float()
del scaled
net = ResNet(train.shape[1], int(labels.max()) + 1)
if args.channels_last:
    net = net.to(memory_format=torch.channels_last)
model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=args.weight_decay)
batch = args.batch_size * world
steps = -(-len(train) // batch)
total = min(args.max_steps or args.epochs * steps, args.epochs * steps)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=total, cycle_momentum=False)


def normalised(pixels):
    return (pixels.float() / 255 - mean) / std


def augmented(pixels):
    """A random crop after padding with black, and a reflection, for each picture."""
    crop, (count, _, height, width) = args.crop, pixels.shape
    padded = F.pad(pixels, (crop, crop, crop, crop))
    offsets = torch.randint(2 * crop + 1, (count, 2))
    rows = offsets[:, :1] + torch.arange(height)
    columns = offsets[:, 1:] + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    index = torch.arange(count)[:, None, None]
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def accuracy():
    net.eval()
    with torch.no_grad():
        parts = zip(test.split(256), test_labels.split(256))
        correct = sum((net(normalised(x)).argmax(1) == y).sum().item() for x, y in parts)
    net.train()
    return correct / len(test)


curve, times, step, seconds = [], [], 0, 0.0
for epoch in range(args.epochs):
    began = time.perf_counter()
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))
    for first in range(0, len(train), batch):
        if step == total:
            break
        step, step_began = step + 1, time.perf_counter()
        indices = order[first + rank : first + batch : world]
        optimizer.zero_grad(set_to_none=True)
        logits = model(normalised(augmented(train[indices])))
        F.cross_entropy(logits, labels[indices], label_smoothing=args.label_smoothing).backward()
        optimizer.step()
        schedule.step() if step < total else None
        times.append(time.perf_counter() - step_began)
    seconds += time.perf_counter() - began
    if rank == 0:
        curve.append(round(accuracy(), 4))
    if step == total:
        break
if rank == 0:
    speed = {"seconds": round(seconds, 2), "pictures_per_second": round(step * batch / seconds)}
    print(json.dumps({"accuracy": curve, **speed, "median_step_ms": round(1000 * sorted(times)[len(times) // 2], 2)}))
if world > 1:
    distributed.destroy_process_group()
