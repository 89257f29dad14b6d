"""Step time of the networks of benches/own_modules in PyTorch (CPU, eager or with torch.compile).

python3 own_modules.py mlp|cnn|lstm|gru|encoder|autoencoder|mobile THREADS STEPS [compile]
"""

import sys
import time

import torch
from torch import nn

BATCH = 64
WARM_UP = 5


class Last(nn.Module):
    """The last state of a recurrent network."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent
        self.output = nn.Linear(128, 10)

    def forward(self, x):
        return self.output(self.recurrent(x)[0][:, -1])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(128, 10)

    def forward(self, x):
        return self.output(self.encoder(x).mean(1))


def mlp():
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers), [784]


def cnn():
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    head = [nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*convolutions, *head), [1, 28, 28]


def autoencoder():
    down = [nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 3, 2, 1, 1)]
    return nn.Sequential(*down, *up), [1, 28, 28]


def mobile():
    def block(channels, filters, kernel, stride, groups):
        convolution = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [convolution, nn.BatchNorm2d(filters), nn.ReLU()]

    layers = block(3, 32, 3, 2, 1)
    for channels, filters, stride in [(32, 64, 1), (64, 128, 2), (128, 128, 1)]:
        layers += block(channels, channels, 3, stride, channels) + block(channels, filters, 1, 1, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), [3, 64, 64]


NETWORKS = {
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lambda: (Last(nn.LSTM(28, 128, batch_first=True)), [28, 28]),
    "gru": lambda: (Last(nn.GRU(28, 128, batch_first=True)), [28, 28]),
    "encoder": lambda: (Encoder(), [64, 128]),
    "autoencoder": autoencoder,
    "mobile": mobile,
}


def main():
    name, threads, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    net, shape = NETWORKS[name]()
    model = torch.compile(net) if sys.argv[4:] == ["compile"] else net
    x, y = torch.randn(BATCH, *shape), torch.arange(BATCH) % 10
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.CrossEntropyLoss()
    times = []
    for step in range(steps + WARM_UP):
        start = time.perf_counter()
        optimizer.zero_grad()
        output = model(x)
        loss = (output - x).square().mean() if name == "autoencoder" else criterion(output, y)
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    print(f"{name} torch {times[len(times) // 2]:.3f} ms/step loss {value:.5f}")


main()
