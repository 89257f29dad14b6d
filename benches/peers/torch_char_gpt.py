"""The network of examples/char_gpt in PyTorch, from the same initial weights and with the same recipe.

Initial weights are those of a run with `--lr 0 --max-steps 1`, exported with `char_gpt export RUN gpt.safetensors`.
With --in-order, windows are those of `char_gpt --no-shuffle`, and losses can be compared step by step.
Under `torchrun --nproc-per-node N`, ranks share a batch and use DistributedDataParallel with Gloo.
Prints one line of JSON: losses of the first steps, final validation and test losses, and seconds of training.
"""
import argparse
import contextlib
import json
import math
import os
import time

import torch
from torch import distributed, nn
from torch.nn import functional as F

from networks import Gpt, safetensors
from tf32 import Tf32

parser = argparse.ArgumentParser()
parser.add_argument("--text", required=True)
parser.add_argument("--weights", help="initial weights; random ones by default")
parser.add_argument("--in-order", action="store_true")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--max-steps", type=int)
parser.add_argument("--epochs", type=float, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="over all ranks")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--schedule", choices=["constant", "cosine"], default="cosine")
parser.add_argument("--warmup-epochs", type=float, default=0.2)
parser.add_argument("--warmup-start-factor", type=float, default=0.01)
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--tie-weights", action="store_true")
parser.add_argument("--attention", choices=["fused", "manual"], default="fused")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--tf32", choices=["nearest", "truncate"], help="rounding of the products' inputs; with --attention manual")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(1)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    distributed.init_process_group("gloo")


def half_away(x):
    return math.floor(x + 0.5)


with open(args.text, encoding="utf-8", newline="") as file:
    text = file.read()
numbers = {character: number for number, character in enumerate(sorted(set(text)))}
tokens = torch.tensor([numbers[character] for character in text])
rest = len(tokens) - half_away(len(tokens) * 0.1)
cut = rest - half_away(rest * 0.1)
parts = {"train": tokens[:cut], "valid": tokens[cut:rest], "test": tokens[rest:]}
block = args.block_size


def windows(part, starts):
    at = torch.as_tensor(starts)[:, None] + torch.arange(block)
    return part[at], part[at + 1]


net = Gpt(len(numbers), args)
if args.weights:
    net.load_state_dict(dict(safetensors(args.weights)))
model = torch.compile(net) if args.compile else net
if world > 1:
    model = nn.parallel.DistributedDataParallel(model)
matrices = [parameter for parameter in net.parameters() if parameter.dim() >= 2]
vectors = [parameter for parameter in net.parameters() if parameter.dim() < 2]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.99), eps=1e-8)

count = (len(parts["train"]) - block) // block
epoch_steps = -(-count // args.batch_size)
total = max(half_away(args.epochs * epoch_steps), 1)
if args.max_steps and args.max_steps < total:
    total = args.max_steps
warmup = half_away(args.warmup_epochs * epoch_steps)


def rate(step):
    if step <= warmup:
        start = args.warmup_start_factor
        return args.lr * (start + (1 - start) * (step - 1) / warmup)
    if args.schedule == "constant":
        return args.lr
    return args.lr / 2 * (1 + math.cos(math.pi * (step - 1 - warmup) / (total - warmup)))


def loss_of(characters, targets, network=model):
    return F.cross_entropy(network(characters).flatten(0, 1), targets.flatten())


def evaluate(part):
    net.eval()
    starts, total = range(0, (len(part) - 1) // block * block, block), 0.0
    with torch.no_grad():
        for first in range(0, len(starts), args.batch_size):
            batch = starts[first : first + args.batch_size]
            total += loss_of(*windows(part, list(batch)), net).item() * len(batch)
    net.train()
    return total / len(starts)


losses, step, seconds, curve, times = [], 0, 0.0, [], []
while step < total:
    began = time.perf_counter()
    shift = 0 if args.in_order else torch.randint(block, ()).item()
    order = torch.arange(count) if args.in_order else torch.randperm(count)
    for starts in (order * block + shift).split(args.batch_size):
        if step == total:
            break
        step += 1
        step_began = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad(set_to_none=True)
        with Tf32(args.tf32) if args.tf32 else contextlib.nullcontext():
            loss = loss_of(*windows(parts["train"], starts[rank::world]))
            loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - step_began)
    seconds += time.perf_counter() - began
    curve.append([round(seconds, 2), round(evaluate(parts["valid"]), 4)])
if rank == 0:
    result = {"losses": losses[:20], "valid": evaluate(parts["valid"]), "test": evaluate(parts["test"]), "steps": step}
    speed = {"seconds": round(seconds, 2), "characters_per_second": round(step * args.batch_size * block / seconds)}
    speed["median_step_ms"] = round(1000 * sorted(times)[len(times) // 2], 3)
    print(json.dumps({**result, **speed, "curve": curve}))
if world > 1:
    distributed.destroy_process_group()
