import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from shared import Net, digits


def train(local_rank, args):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    rank, world_size = args.node * args.processes + local_rank, args.nodes * args.processes
    dist.init_process_group("nccl" if cuda else "gloo", args.init_method, rank=rank, world_size=world_size)
    data = digits(0, 1003)
    sampler = DistributedSampler(data, shuffle=True, seed=7)
    loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)
    torch.manual_seed(7)
    model = DistributedDataParallel(Net().to(device), device_ids=[local_rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, 6):
        sampler.set_epoch(epoch)
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
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="per node")
    parser.add_argument("--node", type=int, default=0, help="rank of this node")
    parser.add_argument("--init-method", default="tcp://127.0.0.1:29500")
    args = parser.parse_args()
    mp.spawn(train, args=(args,), nprocs=args.processes)
