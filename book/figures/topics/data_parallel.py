"""The seven steps of DataParallel beside those of DDP: which device does what."""

from drawing import BLUE, GREY, ORANGE, Figure

# Title; tasks of DataParallel's devices 0 and 1; direction of the transfer between them; tasks of DDP's ranks.
STEPS = [
    ("1  batch", "split batch", "half batch", ">", "own batch", "own batch"),
    ("2  model", "copy model", "replica", ">", None, None),
    ("3  forward", "forward", "forward", "", "forward", "forward"),
    ("4  outputs and loss", "gather, loss", "send, wait", "<", "loss", "loss"),
    ("5  backward", "backward", "backward", ">", "backward", "backward"),
    ("6  gradients", "sum", "send", "<", "all-reduce", None),
    ("7  parameters", "update", None, "", "update", "update"),
]
BOX, HIGH = 98, 32
PLACES = [4, 128, 260, 376]


def task(figure, x, y, colour, text):
    """A box, or an outline if the device has nothing to do."""
    if text:
        figure.box(x, y, BOX, HIGH, colour, text)
    else:
        figure.parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="4" fill="none" stroke="{GREY}"'
            ' stroke-dasharray="4 3"/>'
        )
        figure.text(x + BOX / 2, y + 21, "–", anchor="middle")


def draw():
    figure = Figure(480, 494, "The steps of DataParallel with two devices, and those of DDP with two ranks")
    figure.text(4, 18, "DataParallel, one process")
    figure.text(260, 18, "DDP, two processes")
    for x, name in zip(PLACES, ["device 0", "device 1", "rank 0", "rank 1"]):
        figure.text(x + BOX / 2, 40, name, anchor="middle")
    figure.line([(243, 8), (243, 462)], GREY, 1, "4 4")
    for at, (title, main, other, transfer, left, right) in enumerate(STEPS):
        y = 70 + at * 58
        figure.text(4, y - 6, title)
        task(figure, PLACES[0], y, BLUE, main)
        task(figure, PLACES[1], y, ORANGE, other)
        begin, end = PLACES[0] + BOX + 2, PLACES[1] - 2
        if transfer == ">":
            figure.arrow(begin, y + 16, end, y + 16)
        elif transfer == "<":
            figure.arrow(end, y + 16, begin, y + 16)
        if left == "all-reduce":
            figure.box(PLACES[2], y, PLACES[3] + BOX - PLACES[2], HIGH, GREY, "all-reduce, during step 5")
        else:
            task(figure, PLACES[2], y, BLUE, left)
            task(figure, PLACES[3], y, ORANGE, right)
    figure.text(4, 484, "Arrow: transfer. Dashed: nothing to do.")
    figure.save("data-parallel.svg")
