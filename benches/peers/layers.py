"""Time of single layers of PyTorch, forward and backward, with the shapes of `benches/layers/shapes.rs`.

    python3 benches/peers/layers.py THREADS [SECONDS] [STARTS OF NAMES, separated by commas]

Prints the median in milliseconds; the time of the loss, a sum of the outputs with random factors, is subtracted.
"""

import statistics
import sys
import time

import torch
from torch import nn

torch.set_num_threads(int(sys.argv[1]))
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
ONLY = tuple(sys.argv[3].split(",")) if len(sys.argv) > 3 else ("",)


def measure(step):
    times, begin = [], time.perf_counter()
    while len(times) < 7 or time.perf_counter() - begin < SECONDS:
        if len(times) == 2:
            begin = time.perf_counter()
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])


def layer(name, shape, module, forward=None):
    """Measures `forward(x)`, which is `module(x)` by default."""
    if not name.startswith(ONLY):
        return
    forward = forward or module
    x = torch.randn(shape)
    y = torch.randn(forward(x).shape)
    factors = torch.randn(y.shape)

    def step(of, x):
        (of(x.detach().requires_grad_()) * factors).sum().backward()
        if module is not None:
            module.zero_grad(set_to_none=True)

    loss = measure(lambda: step(lambda y: y, y))
    print(f"{name}\t{measure(lambda: step(forward, x)) - loss:.3f}", flush=True)


def indices(shape, below):
    return (torch.arange(torch.Size(shape).numel()) * 7919 % below).reshape(shape)


class SwiGlu(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.inner = nn.Linear(inputs, outputs, bias=False)
        self.outer = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x):
        return nn.functional.silu(self.inner(x)) * self.outer(x)


for batch, inputs, outputs in [(16, 256, 256), (64, 512, 512), (256, 784, 128), (4096, 256, 1024), (2048, 256, 10000)]:
    layer(f"linear_{batch}_{inputs}_{outputs}", [batch, inputs], nn.Linear(inputs, outputs))
layer("swiglu_2048_256_512", [2048, 256], SwiGlu(256, 512))
for count, width in [(128, 64), (10000, 256)]:
    embedding, found = nn.Embedding(count, width), indices([64, 128], count)
    layer(f"embedding_{count}_{width}", [64, 128, width], embedding, lambda x: x + embedding(found))

for batch, inputs, outputs, side, kernel, stride, padding, groups in [
    (32, 3, 64, 32, 3, 1, 1, 1),
    (8, 3, 64, 224, 7, 2, 3, 1),
    (32, 64, 64, 16, 3, 1, 1, 1),
    (32, 64, 128, 16, 3, 2, 1, 1),
    (32, 256, 256, 4, 3, 1, 1, 1),
    (16, 512, 512, 7, 3, 1, 1, 1),
    (32, 64, 256, 14, 1, 1, 0, 1),
    (32, 64, 128, 16, 1, 2, 0, 1),
    (32, 16, 32, 28, 5, 1, 2, 1),
    (32, 64, 64, 16, 3, 1, 1, 4),
    (32, 64, 64, 16, 3, 1, 1, 64),
    (8, 3, 96, 64, 4, 4, 0, 1),
]:
    module = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups)
    name = f"conv2d_{batch}_{inputs}_{outputs}_{side}_k{kernel}_s{stride}_g{groups}"
    layer(name, [batch, inputs, side, side], module)
for inputs, outputs, length, kernel, stride, padding in [(64, 64, 256, 3, 1, 1), (1, 32, 4000, 7, 1, 3), (64, 128, 256, 5, 2, 2)]:
    module = nn.Conv1d(inputs, outputs, kernel, stride, padding)
    layer(f"conv1d_32_{inputs}_{outputs}_{length}_k{kernel}_s{stride}", [32, inputs, length], module)
for batch, inputs, outputs, side, kernel, stride, padding in [
    (32, 64, 32, 14, 2, 2, 0),
    (32, 64, 32, 7, 4, 2, 1),
    (64, 100, 256, 1, 4, 1, 0),
]:
    module = nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding)
    name = f"conv_transpose2d_{batch}_{inputs}_{outputs}_{side}_k{kernel}_s{stride}"
    layer(name, [batch, inputs, side, side], module)
layer("conv_transpose1d_32_64_32_128_k4_s2", [32, 64, 128], nn.ConvTranspose1d(64, 32, 4, 2, 1))

layer("max_pool_2", [32, 64, 32, 32], nn.MaxPool2d(2, 2))
layer("max_pool_3_s2", [8, 64, 112, 112], nn.MaxPool2d(3, 2, 1))
layer("avg_pool_2", [32, 64, 32, 32], nn.AvgPool2d(2, 2))
layer("adaptive_avg_pool_1", [32, 256, 7, 7], nn.AdaptiveAvgPool2d(1))

for side in [7, 32]:
    layer(f"batch_norm_32_64_{side}", [32, 64, side, side], nn.BatchNorm2d(64))
layer("batch_norm_128_512", [128, 512], nn.BatchNorm1d(512))
for width in [256, 768]:
    layer(f"layer_norm_2048_{width}", [2048, width], nn.LayerNorm(width))
    layer(f"rms_norm_2048_{width}", [2048, width], nn.RMSNorm(width))
layer("group_norm_8", [32, 64, 16, 16], nn.GroupNorm(8, 64))
layer("instance_norm", [32, 64, 16, 16], nn.InstanceNorm2d(64, affine=True))

activations = {
    "relu": nn.ReLU(),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "mish": nn.Mish(),
    "hard_swish": nn.Hardswish(),
    "elu": nn.ELU(),
    "softplus": nn.Softplus(),
    "prelu": nn.PReLU(),
}
for name, module in activations.items():
    layer(name, [1024, 1024], module)


def recurrent(name, module, shape):
    layer(name, shape, module, lambda x: module(x)[0])


for batch, steps, inputs, hidden in [(64, 50, 128, 128), (32, 20, 256, 512), (1, 100, 64, 64), (16, 200, 40, 256)]:
    for kind, of in [("lstm", nn.LSTM), ("gru", nn.GRU)]:
        module = of(inputs, hidden, batch_first=True)
        recurrent(f"{kind}_{batch}_{steps}_{inputs}_{hidden}", module, [batch, steps, inputs])
for kind, of in [("bilstm", nn.LSTM), ("bigru", nn.GRU)]:
    recurrent(f"{kind}_32_40_64_128", of(64, 128, batch_first=True, bidirectional=True), [32, 40, 64])

for batch, positions, width, heads in [(64, 16, 64, 2), (32, 64, 128, 4), (2, 1024, 256, 4)]:
    attention = nn.MultiheadAttention(width, heads, batch_first=True)
    masked = torch.triu(torch.ones(positions, positions, dtype=torch.bool), 1)
    for kind, mask in [("attention", None), ("masked_attention", masked)]:
        forward = lambda x: attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        layer(f"{kind}_{batch}_{positions}_{width}_{heads}", [batch, positions, width], attention, forward)
for batch, positions, width, heads in [(32, 64, 128, 4), (8, 128, 256, 8)]:
    block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    layer(f"encoder_{batch}_{positions}_{width}_{heads}", [batch, positions, width], encoder)

for batch, classes in [(64, 10), (4096, 1000), (1024, 20000)]:
    targets = indices([batch], classes)
    for kind, padding in [("cross_entropy", -100), ("padded_cross_entropy", 0)]:
        loss = nn.CrossEntropyLoss(ignore_index=padding)
        layer(f"{kind}_{batch}_{classes}", [batch, classes], None, lambda x: loss(x, targets))

y, labels = torch.randn(256, 1024), indices([256, 1024], 2).float()
losses = {
    "mse": nn.MSELoss(),
    "l1": nn.L1Loss(),
    "huber": nn.HuberLoss(),
}
for name, loss in losses.items():
    layer(name, [256, 1024], None, lambda x: loss(x, y))
binary = nn.BCEWithLogitsLoss()
layer("binary_cross_entropy", [256, 1024], None, lambda x: binary(x, labels))
