"""What a user of the Trainer writes, and what the Trainer does."""

from drawing import BLUE, GREY, ORANGE, Figure


def draw():
    figure = Figure(480, 330, "What you write and what the Trainer does")
    figure.text(8, 20, "you write")
    for at, lines in enumerate([("Dataset:", "a sample"), ("Batcher:", "a batch"), ("model:", "mean loss"), ("output:", "totals")]):
        figure.box(8 + at * 118, 32, 110, 52, ORANGE, *lines)
        figure.arrow(63 + at * 118, 84, 63 + at * 118, 120)
    figure.frame(8, 124, 464, 196, "the Trainer, on every rank")
    rows = [
        ("shuffle, shard", "load batches on threads"),
        ("forward, backward", "reduce gradients"),
        ("clip, accumulate", "optimizer step, schedule"),
        ("evaluate, save, resume", "curves, TensorBoard, report"),
    ]
    for at, (left, right) in enumerate(rows):
        figure.box(24, 154 + at * 40, 176, 32, BLUE, left)
        figure.box(208, 154 + at * 40, 248, 32, BLUE if at < 3 else GREY, right)
    figure.save("your-model.svg")
