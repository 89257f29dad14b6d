"""Data flow of SyncBatchNorm's statistics, forwards and backwards."""

from drawing import BLUE, GREY, ORANGE, PURPLE, Figure

WIDTH, GAP = 108, 10
COLOURS = [BLUE, ORANGE]


def one_pass(figure, left, title, rows, joined_at):
    """Two columns of boxes, one per rank, with a sum over ranks before row `joined_at`."""
    figure.text(left, 18, title)
    whole = 2 * WIDTH + GAP
    y = 30
    for at, lines in enumerate(rows):
        if at == joined_at:
            figure.box(left, y, whole, 34, GREY, "sum over ranks")
            for rank in range(2):
                middle = left + rank * (WIDTH + GAP) + WIDTH / 2
                figure.arrow(middle, y - 22, middle, y - 3)
                figure.arrow(middle, y + 36, middle, y + 55)
            y += 58
        for rank, colour in enumerate(COLOURS):
            x = left + rank * (WIDTH + GAP)
            equal = at == joined_at
            figure.box(x, y, WIDTH, 48, PURPLE if equal else colour, *lines(rank))
            if at not in (0, joined_at):
                figure.arrow(x + WIDTH / 2, y - 22, x + WIDTH / 2, y - 3)
        y += 72


def draw():
    figure = Figure(480, 424, "Statistics of SyncBatchNorm on two ranks, forwards and backwards")
    forward = [
        lambda rank: (f"x of rank {rank}",),
        lambda rank: ("n, Σx, Σx²", "own samples"),
        lambda rank: ("m and v", "all samples"),
        lambda rank: ("x̂ and y", "own samples"),
    ]
    backward = [
        lambda rank: (f"dy of rank {rank}",),
        lambda rank: ("Σdy, Σdy·x̂", "own samples"),
        lambda rank: ("S₁ and S₂", "all samples"),
        lambda rank: ("dx", "own samples"),
    ]
    one_pass(figure, 4, "forward", forward, 2)
    one_pass(figure, 250, "backward", backward, 2)
    figure.text(4, 388, "Blue and orange differ between ranks, purple is equal on all.")
    figure.text(4, 412, "m: mean, v: variance, S₁ and S₂: sums of the gradient.")
    figure.save("sync-batch-norm.svg")
