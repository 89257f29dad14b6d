"""The networks of examples/mnist_ddp and examples/char_gpt in PyTorch, and their weights."""
import json
import math
import struct

import torch
from torch import nn
from torch.nn import functional as F


def mnist(batch_norm=False, dropout=(0.25, 0.5)):
    norm = (lambda channels: [nn.BatchNorm2d(channels)]) if batch_norm else lambda _: []
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), *norm(32), nn.ReLU(), nn.Conv2d(32, 64, 3), *norm(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(dropout[0]), nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(dropout[1]),
        nn.Linear(128, 10))


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.c_attn = nn.Linear(args.width, 3 * args.width)
        self.c_proj = nn.Linear(args.width, args.width)

    def forward(self, x):
        args, (batch, length, width) = self.args, x.shape
        q, k, v = (part.view(batch, length, args.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        dropout = args.dropout if self.training else 0.0
        if args.attention == "fused":
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) / math.sqrt(q.size(3))
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = F.dropout(scores.masked_fill(later, -math.inf).softmax(3), dropout) @ v
        return F.dropout(self.c_proj(y.transpose(1, 2).reshape(x.shape)), dropout)


class Mlp(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.dropout = args.dropout
        self.c_fc = nn.Linear(args.width, 4 * args.width)
        self.c_proj = nn.Linear(4 * args.width, args.width)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(args.width), Attention(args)
        self.ln_2, self.mlp = nn.LayerNorm(args.width), Mlp(args)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, characters, args):
        super().__init__()
        self.args = args
        self.wte, self.wpe = nn.Embedding(characters, args.width), nn.Embedding(args.block_size, args.width)
        self.h = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        if not args.tie_weights:
            self.lm_head = nn.Linear(args.width, characters, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                residual = math.sqrt(2 * args.layers) if name.endswith("c_proj.weight") else 1
                nn.init.normal_(parameter, std=0.02 / residual)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, characters):
        x = self.wte(characters) + self.wpe.weight[: characters.size(1)]
        x = F.dropout(x, self.args.dropout, self.training)
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight if self.args.tie_weights else self.lm_head.weight)


def safetensors(path):
    """Names and tensors of a file."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = (8 + length + at for at in entry["data_offsets"])
            values = torch.frombuffer(bytearray(data[start:end]), dtype=torch.float32)
            yield name, values.reshape(entry["shape"])
