"""Time of a training step over a slow link by bucket size, measured and according to the formula."""

from drawing import BLUE, GREY, ORANGE, Plot, table

# The emulated link: ms of latency, ms per byte, and the bytes of 96 layers of 256 × 256 weights and 256 biases.
ALPHA, BETA, BYTES = 1.0, 8e-6 / 2, 96 * 4 * (256 * 256 + 256)


def best(values):
    """The smallest of the rounds' medians, because other programs slowed some rounds down."""
    return min(values)


def draw():
    rows = table("overlap")
    forward, backward = (best([float(row[name]) for row in rows]) for name in ("forward_ms", "backward_ms"))
    compute = forward + backward
    sizes = sorted({float(row["bucket_mib"]) for row in rows})
    counts = {float(row["bucket_mib"]): int(row["buckets"]) for row in rows}

    def measured(name):
        return [(size, best([float(row[name]) for row in rows if float(row["bucket_mib"]) == size])) for size in sizes]

    def overlapped(count):
        last = backward + ALPHA + BETA * BYTES / count
        first = backward / count + count * ALPHA + BETA * BYTES
        return forward + max(last, first)

    after_formula = [(size, compute + counts[size] * ALPHA + BETA * BYTES) for size in sizes]
    overlapped_formula = [(size, overlapped(counts[size])) for size in sizes]
    after, hidden = measured("after_ms"), measured("overlapped_ms")
    print(f"forward {forward:.1f} ms, backward {backward:.1f} ms")
    for at, size in enumerate(sizes):
        print(
            f"{size} MiB, {counts[size]} buckets: after {after[at][1]:.1f} (formula {after_formula[at][1]:.1f}),"
            f" overlapped {hidden[at][1]:.1f} (formula {overlapped_formula[at][1]:.1f})"
        )
    top = 100 * (int(max(time for _, time in after) / 100) + 1)
    ticks = [(0.25, "0.25"), (0.5, "0.5"), (1, "1"), (2.5, "2.5"), (5, "5"), (12.5, "12.5"), (25, "25")]
    plot = Plot(
        "Time of a step by bucket size", ticks, list(range(0, top + 1, 100)), "bucket size, MiB", "ms per step",
        log_x=True, height=370, legend_rows=2,
    )
    plot.dots(after, ORANGE, "after the backward pass")
    plot.dots(hidden, BLUE, "during the backward pass")
    plot.curve(after_formula, ORANGE, "formula", dash="5 4")
    plot.curve(overlapped_formula, BLUE, "formula", dash="5 4")
    plot.line([plot.at(0.25, compute), plot.at(25, compute)], GREY, 1.5, dash="2 3")
    x, y = plot.at(0.25, compute)
    plot.text(x + 8, y + 18, "without synchronisation")
    plot.save("overlap.svg")
