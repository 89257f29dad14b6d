"""The ring all-reduce over four ranks: what each rank holds after each step."""

from drawing import BLUE, GREY, ORANGE, PURPLE, Figure

RANKS = 4
BOX, GAP = 24, 2
STRIDE = RANKS * (BOX + GAP) + 14


def row(figure, y, label, held, received):
    """The parts of all ranks; a number is the count of ranks whose values a part contains."""
    figure.text(4, y - 7, label)
    for rank in range(RANKS):
        for part in range(RANKS):
            count = held[rank][part]
            colour = PURPLE if count == RANKS else ORANGE if (rank, part) in received else BLUE if count > 1 else GREY
            figure.box(4 + rank * STRIDE + part * (BOX + GAP), y, BOX, 26, colour, str(count), size=15)


def draw():
    figure = Figure(480, 496, "Ring all-reduce over four ranks: the parts of each rank after every step")
    for rank in range(RANKS):
        figure.text(4 + rank * STRIDE + 2 * (BOX + GAP) - 1, 18, f"rank {rank}", anchor="middle")
        for part, name in enumerate("abcd"):
            figure.text(4 + rank * STRIDE + part * (BOX + GAP) + BOX / 2, 36, name, anchor="middle")
    held = [[1] * RANKS for _ in range(RANKS)]
    row(figure, 66, "start", held, ())
    y = 66
    for phase, title in enumerate(["reduce-scatter", "all-gather"]):
        for step in range(RANKS - 1):
            before, received = [list(parts) for parts in held], set()
            for rank in range(RANKS):
                left, part = (rank - 1) % RANKS, (rank - 1 - step + phase) % RANKS
                held[rank][part] = before[left][part] + (1 - phase) * before[rank][part]
                received.add((rank, part))
            y += 54
            row(figure, y, f"{title}, after step {step + 1}", held, received)
    figure.text(4, y + 54, "The number of ranks whose values a part contains.")
    figure.text(4, y + 76, "orange: received and added in this step", ORANGE)
    figure.text(4, y + 98, "blue: older partial sum", BLUE)
    figure.text(238, y + 98, "purple: complete sum", PURPLE)
    figure.save("ring-all-reduce.svg")
