"""Pieces of a buffer on a chain of four ranks: partial sums to the right, results to the left."""

from drawing import BLUE, ORANGE, PURPLE, Figure

RANKS, PIECES = 4, 3
STRIDE, HEIGHT = 108, 26


def draw():
    steps = 2 * (RANKS - 1) + PIECES
    figure = Figure(480, 40 + steps * (HEIGHT + 10) + 74, "Three pieces on a chain of four ranks")
    for rank in range(RANKS):
        figure.text(70 + rank * STRIDE + 40, 18, f"rank {rank}", anchor="middle")
    for step in range(steps):
        y = 30 + step * (HEIGHT + 10)
        figure.text(4, y + 18, f"step {step}")
        for piece, name in enumerate("abc"):
            hop = step - piece
            if not 0 <= hop <= 2 * (RANKS - 1):
                continue
            rank = min(hop, 2 * (RANKS - 1) - hop)
            colour = BLUE if hop < RANKS - 1 else PURPLE if hop == RANKS - 1 else ORANGE
            # Two pieces meet at a rank, one in each direction.
            x = 70 + rank * STRIDE + (0 if hop < RANKS - 1 else 42)
            ranks = "0" if hop == 0 else f"0–{min(hop, RANKS - 1)}"
            figure.box(x, y, 40, HEIGHT, colour, f"{name} {ranks}" if hop < RANKS else name, size=12)
    y = 30 + steps * (HEIGHT + 10) + 14
    figure.text(4, y, "blue: partial sum of the named ranks, sent to the right", BLUE)
    figure.text(4, y + 22, "purple: complete sum", PURPLE)
    figure.text(4, y + 44, "orange: result, sent to the left", ORANGE)
    figure.save("chain.svg")
