"""Images a second of pytorch/examples' MNIST network on one GPU, eager or compiled, with and without TF32.

One line of JSON a batch size and setting: the median of the last 30 of 60 steps.
Usage: torch_mnist.py [--kind eager|compile] [BATCH ...]
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def measure(kind, batch, tf32, steps=60):
    # Burn computes f32 matrix products in TF32 where the GPU has it; PyTorch's default is TF32 in convolutions alone.
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
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

    times = []
    for number in range(steps):
        began = time.perf_counter()
        # Our run reads the loss of every step, too.
        step(number).item()
        times.append(time.perf_counter() - began)
    rate = batch / statistics.median(times[-30:])
    print(json.dumps({"kind": f"PyTorch {kind}", "tf32": tf32, "batch": batch, "images_per_second": round(rate)}), flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=["eager", "compile"], action="append")
parser.add_argument("batches", type=int, nargs="*", metavar="BATCH")
args = parser.parse_args()
for kind in args.kind or ["eager", "compile"]:
    for size in args.batches or [64, 256, 1024, 4096]:
        for tf32 in [True, False]:
            try:
                measure(kind, size, tf32)
            except Exception as error:  # torch.compile needs a C compiler and Triton
                print(json.dumps({"kind": f"PyTorch {kind}", "batch": size, "error": str(error).splitlines()[0][:200]}))
