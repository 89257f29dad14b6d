"""Measured speed-up over the number of ranks on two cores."""

from statistics import median

from drawing import BLUE, GREEN, GREY, ORANGE, Plot, table

RANKS = {"single1": 1, "ddp2": 2, "ddp4": 4}


def draw():
    rounds = {}
    for row in table("speedup"):
        rounds.setdefault(row["case"], []).append(float(row["samples_per_second"]))
    base = median(rounds["single1"])
    plot = Plot(
        "Speed-up over the number of ranks on two cores",
        [(0.7, ""), (1, "1"), (2, "2"), (3, "3"), (4, "4"), (4.3, "")],
        [0, 0.5, 1, 1.5, 2, 2.5],
        "ranks with one thread each, 128 images per step",
        "speed-up over one rank with one thread",
        legend_rows=2,
    )
    plot.curve([(1, 1), (2, 2), (4, 2)], GREY, "number of cores in use", "6 4")
    plot.curve([(RANKS[case], median(rounds[case]) / base) for case in RANKS], BLUE, "median of the rounds", dots=True)
    plot.dots([(RANKS[case], value / base) for case in RANKS for value in rounds[case]], GREEN, "single rounds")
    plot.dots([(1, value / base) for value in rounds["single2"]], ORANGE, "one rank, two threads")
    plot.save("speedup.svg")
