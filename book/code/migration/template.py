import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torch.utils.tensorboard import SummaryWriter

from shared import Net, digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--folder", required=True)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()

cuda, local_rank = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
rank, world_size = dist.get_rank(), dist.get_world_size()
train, test = digits(0, 1003), digits(2000, 2203)
sampler = DistributedSampler(train, seed=7)
train_loader = DataLoader(train, 32, sampler=sampler)  # 32 samples per rank
test_loader = DataLoader(Subset(test, range(rank, len(test), world_size)), 32)  # without padding
torch.manual_seed(7)
model = Net(norm=True).to(device)
if cuda:  # SyncBatchNorm does not work on CPUs
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
lr = 0.02 * world_size
optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
steps = args.epochs * len(train_loader)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
first, path = 1, os.path.join(args.folder, "checkpoint.pt")
if args.resume and os.path.exists(path):
    checkpoint = torch.load(path, map_location=device)  # otherwise every rank loads onto rank 0's GPU
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    first = checkpoint["epoch"] + 1
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
writer = SummaryWriter(args.folder) if rank == 0 else None


def run_epoch(loader, training):
    """Trains or evaluates; returns the mean loss and the accuracy over the samples of all ranks."""
    model.train(training)
    sums = torch.zeros(3, device=device)
    for images, classes in loader:
        images, classes = images.to(device), classes.to(device)
        output = model(images) if training else model.module(images)
        loss = cross_entropy(output, classes)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        correct = (output.argmax(1) == classes).sum()
        sums += torch.stack([loss.detach() * len(classes), correct, torch.tensor(len(classes), device=device)])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


for epoch in range(first, args.epochs + 1):
    sampler.set_epoch(epoch)
    loss, _ = run_epoch(train_loader, True)
    with torch.no_grad():
        _, accuracy = run_epoch(test_loader, False)
    if rank == 0:
        print(f"epoch {epoch}  train loss {loss:.6f}  test accuracy {accuracy:.4f}")
        for tag, value in [("loss", loss), ("accuracy", accuracy), ("lr", scheduler.get_last_lr()[0])]:
            writer.add_scalar(tag, value, epoch)
        state = {"epoch": epoch, "model": model.module.state_dict()}
        state |= {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save(state, path)
dist.destroy_process_group()
