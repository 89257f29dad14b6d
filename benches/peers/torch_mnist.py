"""Images a second of pytorch/examples' MNIST network on one GPU: eager and torch.compile.

One line of JSON a batch size and kind. Usage: torch_mnist.py [BATCH ...]
"""
import json
import sys
import time

import torch
from torch import nn


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def measure(kind, batch, seconds=4.0):
    torch.manual_seed(1)
    net = network().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    model = torch.compile(net) if kind == "compile" else net
    # As ours: images come from the host, one batch after the other.
    images = torch.randn(16 * batch, 1, 28, 28).pin_memory()
    labels = torch.randint(0, 10, (16 * batch,)).pin_memory()

    def step(number):
        at = slice(number % 16 * batch, (number % 16 + 1) * batch)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images[at].cuda(non_blocking=True)), labels[at].cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        return loss

    for number in range(20):
        step(number).item()
    begun, steps = time.time(), 0
    while time.time() - begun < seconds:
        # Our run reads the loss of every step, too.
        step(steps).item()
        steps += 1
    rate = steps * batch / (time.time() - begun)
    print(json.dumps({"kind": kind, "batch": batch, "images_per_second": round(rate)}), flush=True)


# As our own f32, without TF32.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
for size in [int(size) for size in sys.argv[1:]] or [64, 256, 1024, 4096]:
    for name in ["eager", "compile"]:
        try:
            measure(name, size)
        except Exception as error:  # torch.compile needs a C compiler and Triton
            print(json.dumps({"kind": name, "batch": size, "error": str(error).splitlines()[0][:200]}))
