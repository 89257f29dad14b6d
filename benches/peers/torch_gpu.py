"""Samples a second of a network in PyTorch, eager or compiled: one line of JSON per batch size.

    torch_gpu.py --network mnist|char_gpt [--kind eager|compile|reduce-overhead] [--precision f32|bf16] BATCH...

Inputs come from the host, one batch after the other, as in burn-ddp; a sample of char_gpt is a window of 64 characters.
The rate is that of the fastest of three parts of the steps, without reading any loss. f32 products are computed in
TF32, as Burn does on GPUs that have it.
"""
import argparse
import json
import time
from types import SimpleNamespace

import torch
from torch.nn import functional as F

import networks

parser = argparse.ArgumentParser()
parser.add_argument("--network", choices=["mnist", "char_gpt"], required=True)
parser.add_argument("--kind", choices=["eager", "compile", "reduce-overhead"], default="eager")
parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
parser.add_argument("--device", default="cuda")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("batches", type=int, nargs="+", metavar="BATCH")
args = parser.parse_args()
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
GPT = SimpleNamespace(layers=4, heads=4, width=128, block_size=64, dropout=0.0, tie_weights=False, attention="fused")
COMPILE = {"compile": {}, "reduce-overhead": {"mode": "reduce-overhead"}}


def setup(batch):
    """Network, optimizer, and 16 batches in pinned memory."""
    if args.network == "mnist":
        net = networks.mnist()
        data = torch.randn(16, batch, 1, 28, 28), torch.randint(0, 10, (16, batch))
    else:
        net = networks.Gpt(65, GPT)
        data = torch.randint(0, 65, (16, batch, 64)), torch.randint(0, 65, (16, batch, 64))
    net = net.to(args.device)
    if args.network == "mnist":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    return net, optimizer, [part.pin_memory() if args.device == "cuda" else part for part in data]


def measure(batch):
    torch.manual_seed(1)
    net, optimizer, (inputs, targets) = setup(batch)
    model = torch.compile(net, dynamic=False, **COMPILE[args.kind]) if args.kind in COMPILE else net
    half = torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16")

    def step(number):
        x, y = (part[number % 16].to(args.device, non_blocking=True) for part in (inputs, targets))
        optimizer.zero_grad(set_to_none=True)
        with half:
            logits = model(x)
        loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
        loss.backward()
        if args.network == "char_gpt":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    def wait():
        if args.device == "cuda":
            torch.cuda.synchronize()

    times, part = [], max(args.steps // 4, 1)
    for number in range(4):
        wait()
        began = time.perf_counter()
        for count in range(part):
            step(number * part + count)
        wait()
        times.append(time.perf_counter() - began)
    # The first part warms up.
    return batch * part / min(times[1:])


for batch in args.batches:
    torch.compiler.reset()
    print(json.dumps({"batch": batch, "samples_per_second": round(measure(batch))}), flush=True)
