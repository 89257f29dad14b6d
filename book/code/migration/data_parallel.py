import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from shared import Net, digits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    args = parser.parse_args()
    # The model and the outputs are on the first device, which needs the most memory.
    devices = list(range(torch.cuda.device_count()))
    main_device = torch.device(f"cuda:{devices[0]}" if devices else "cpu")
    torch.manual_seed(7)
    train = digits(0, 1003)
    loader = DataLoader(train, batch_size=64, shuffle=True)  # 64 samples of all devices together
    model = Net()
    if args.weights:  # before wrapping, because the wrapper's keys begin with "module."
        model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    model = nn.DataParallel(model.to(main_device), devices, output_device=devices[0] if devices else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, 6):
        total = 0.0
        for images, classes in loader:
            images, classes = images.to(main_device), classes.to(main_device)
            loss = cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(classes)
        print(f"epoch {epoch}  train loss {total / len(train):.6f}")
    torch.save(model.module.state_dict(), "data_parallel.pt")


if __name__ == "__main__":
    main()
