"""Ranks and nodes, the data flow of an all-reduce, and a step of DDP."""

from drawing import COLOURS, GREY, PURPLE, Figure


def rank_grid():
    figure = Figure(480, 440, "Ranks of two nodes with four processes each")
    for node in range(2):
        top = 8 + node * 200
        figure.frame(8, top, 464, 186, f"node {node}")
        for local in range(4):
            x, y = 24 + (local % 2) * 222, top + 32 + (local // 2) * 76
            figure.box(
                x, y, 210, 64, COLOURS[local], f"rank {4 * node + local}", f"local rank {local}, cuda:{local}", size=15
            )
    figure.text(8, 430, "world size 8; rank = node rank × 4 + local rank")
    figure.save("rank-grid.svg")


def all_reduce():
    figure = Figure(480, 230, "The data flow of an all-reduce with the operation sum")
    numbers = [[1, 5], [2, 6], [3, 7]]
    for rank, pair in enumerate(numbers):
        y = 20 + rank * 62
        figure.text(4, y + 26, f"rank {rank}")
        for at, number in enumerate(pair):
            figure.box(58 + at * 40, y + 4, 36, 34, COLOURS[rank], str(number))
        figure.arrow(140, y + 21, 184, 103)
        figure.arrow(276, 103, 322, y + 21)
        for at, number in enumerate([6, 18]):
            figure.box(328 + at * 40, y + 4, 36, 34, PURPLE, str(number))
        figure.text(424, y + 26, f"rank {rank}")
    figure.box(188, 76, 86, 54, GREY, "sum per", "element")
    figure.text(58, 218, "before")
    figure.text(328, 218, "after")
    figure.save("all-reduce.svg")


def ddp_step():
    figure = Figure(480, 330, "One training step of DDP on two ranks")
    stages = [("batch",), ("forward",), ("backward",)]
    for rank in range(2):
        x = 8 + rank * 290
        figure.text(x, 18, f"rank {rank}")
        for at, stage in enumerate(stages):
            figure.box(x, 28 + at * 66, 174, 44, COLOURS[rank], *stage)
            if at:
                figure.arrow(x + 87, 28 + at * 66 - 20, x + 87, 28 + at * 66 - 3)
        figure.box(x, 250, 174, 44, COLOURS[rank], "optimizer step")
        figure.arrow(x + 87, 206, 212 + rank * 56, 222)
        figure.arrow(212 + rank * 56, 236, x + 87, 247)
    figure.box(178, 212, 124, 34, GREY, "all-reduce", size=14)
    figure.text(8, 320, "Different samples, summed gradients, equal optimizer steps.")
    figure.save("ddp-step.svg")


def draw():
    rank_grid()
    all_reduce()
    ddp_step()
