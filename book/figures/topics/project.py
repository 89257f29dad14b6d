"""The crates of a project, and the network of the course."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure


def crates():
    figure = Figure(480, 394, "A crate, its dependencies, and the libraries that are opened at run time")
    figure.box(150, 8, 180, 40, ORANGE, "your crate: course")
    figure.box(8, 96, 220, 48, BLUE, "burn-ddp", "Trainer, launch, checkpoints")
    figure.box(252, 96, 220, 48, GREEN, "mnist-ddp", "images")
    figure.box(8, 192, 220, 48, BLUE, "burn-ddp-collective", "DDP, loaders, metrics")
    figure.box(8, 264, 220, 48, BLUE, "burn-ddp-comm", "process groups, transports")
    figure.box(252, 192, 106, 48, BLUE, "burn-ddp-", "kernels")
    figure.box(366, 192, 106, 48, PURPLE, "burn")
    figure.arrow(210, 48, 130, 92)
    figure.arrow(270, 48, 350, 92)
    figure.arrow(330, 36, 440, 188)
    figure.arrow(118, 144, 118, 188)
    figure.arrow(118, 240, 118, 260)
    figure.arrow(200, 144, 290, 188)
    figure.arrow(330, 144, 390, 188)
    figure.line([(8, 326), (472, 326)], dash="6 4")
    figure.text(8, 348, "opened at run time, if present:")
    for at, name in enumerate(["GPU driver", "CUDA toolkit", "NCCL"]):
        figure.box(8 + at * 158, 358, 148, 30, GREY, name)
    figure.save("crates.svg")


def network():
    figure = Figure(480, 400, "The network of the course with the shapes between its layers")
    layers = [
        ("convolution 5 × 5, 1 → 8, ReLU", BLUE, "208 parameters"),
        ("max-pooling 2 × 2", GREY, ""),
        ("convolution 5 × 5, 8 → 16, ReLU", BLUE, "3,216 parameters"),
        ("max-pooling 2 × 2", GREY, ""),
        ("linear 256 → 10", ORANGE, "2,570 parameters"),
    ]
    shapes = ["images [64, 1, 28, 28]", "[64, 8, 24, 24]", "[64, 8, 12, 12]", "[64, 16, 8, 8]", "[64, 16, 4, 4]", "logits [64, 10]"]
    for at, (name, colour, parameters) in enumerate(layers):
        y = 32 + at * 68
        figure.text(8, y - 10, shapes[at])
        figure.box(8, y, 270, 34, colour, name)
        figure.arrow(143, y + 34, 143, y + 64)
        figure.text(294, y + 22, parameters)
    figure.text(8, 32 + 5 * 68 - 2 + 14, shapes[5])
    figure.save("network.svg")


def draw():
    crates()
    network()
