"""Measured times of an all-reduce by size, with the fit of α + βN."""

from drawing import BLUE, GREEN, ORANGE, PURPLE, Plot, table

SERIES = [("shm", 2, BLUE), ("tcp", 2, ORANGE), ("shm", 4, GREEN), ("tcp", 4, PURPLE)]
X = [(4, "4 B"), (64, ""), (1024, "1 KiB"), (16384, ""), (1 << 18, "256 KiB"), (1 << 22, "4 MiB"), (1 << 26, "")]
Y = [(1, "1 µs"), (10, "10 µs"), (100, "100 µs"), (1000, "1 ms"), (10000, "10 ms"), (100000, "0.1 s")]


def measured(transport, ranks):
    """Pairs of bytes and µs: the smallest of the rounds' medians, because other programs slowed some rounds down."""
    times = {}
    for row in table("all_reduce_time"):
        if (row["transport"], int(row["ranks"])) == (transport, ranks):
            times.setdefault(int(row["bytes"]), []).append(float(row["median_us"]))
    return [(size, min(rounds)) for size, rounds in sorted(times.items())]


def fit(points):
    """α in µs and β in µs per byte that minimise the squares of the relative errors (α + βN − t) / t."""
    rows = [(1 / time, size / time) for size, time in points]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in [(0, 0), (0, 1), (1, 1)])
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant


def draw():
    title = "Time of an all-reduce by size"
    plot = Plot(title, X, Y, "buffer size N", "time", log_x=True, log_y=True, height=380, legend_rows=2)
    for transport, ranks, colour in SERIES:
        points = measured(transport, ranks)
        alpha, beta = fit(points)
        errors = [(alpha + beta * size) / time - 1 for size, time in points]
        print(
            f"{transport}, {ranks} ranks: α = {alpha:.1f} µs, β = {1e3 * beta:.3f} ns per byte,"
            f" error {100 * min(errors):+.0f} % to {100 * max(errors):+.0f} %"
        )
        plot.dots(points, colour, f"{transport}, {ranks} ranks")
        sizes = [4 * 2 ** (at / 4) for at in range(97)]
        plot.line([plot.at(size, alpha + beta * size) for size in sizes], colour, 1.5)
    plot.save("all-reduce-time.svg")
