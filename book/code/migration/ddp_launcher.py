import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from shared import Net, digits


def main():
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])  # set by torchrun
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train = digits(0, 1003)
    sampler = DistributedSampler(train, shuffle=True, seed=7)
    loader = DataLoader(train, batch_size=64 // world_size, sampler=sampler)  # samples of this rank
    torch.manual_seed(7)
    model = DistributedDataParallel(Net().to(device), device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, 6):
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first one
        sums = torch.zeros(2, device=device)
        for images, classes in loader:
            images, classes = images.to(device), classes.to(device)
            loss = cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.stack([loss.detach() * len(classes), torch.tensor(len(classes), device=device)])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch}  train loss {sums[0] / sums[1]:.6f}")
    if rank == 0:
        torch.save(model.module.state_dict(), "ddp.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
