"""Timeline of a step on two ranks, with gradients reduced after and during the backward pass."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure

LEFT, SCALE = 70, 1.13
FORWARD = [58, 66]
BACKWARD = [[26, 58, 58], [30, 64, 64]]
NETWORK = [18, 40, 40]
STEP = 34
BUCKETS = [BLUE, GREEN, ORANGE]


def bar(figure, y, begin, length, colour, label):
    figure.box(LEFT + begin * SCALE, y, length * SCALE - 1.5, 30, colour, label)


def timeline(figure, top, title, overlap):
    """Draws one variant and returns when its step ends."""
    figure.text(4, top, title)
    rows = [top + 12, top + 88]
    ready = [[], []]
    for rank, y in enumerate(rows):
        figure.text(4, y + 20, f"rank {rank}")
        bar(figure, y, 0, FORWARD[rank], GREY, "forward")
        at = FORWARD[rank]
        for bucket, length in enumerate(BACKWARD[rank]):
            bar(figure, y, at, length, BUCKETS[bucket], str(bucket))
            at += length
            ready[rank].append(at)
    figure.text(4, top + 70, "network")
    end = 0 if overlap else max(ready[0][-1], ready[1][-1])
    for bucket, length in enumerate(NETWORK):
        begin = max(end, ready[0][bucket], ready[1][bucket]) if overlap else end
        bar(figure, top + 50, begin, length, BUCKETS[bucket], str(bucket))
        end = begin + length
    for y in rows:
        bar(figure, y, end, STEP, PURPLE, "step")
    return end + STEP


def draw():
    figure = Figure(480, 356, "A training step on two ranks, with and without overlap")
    marks = len(figure.parts)
    ends = [
        timeline(figure, 18, "reduced after the backward pass", False),
        timeline(figure, 186, "reduced during the backward pass", True),
    ]
    boxes, figure.parts = figure.parts[marks:], figure.parts[:marks]
    for end in ends:
        x = LEFT + end * SCALE
        figure.line([(x, 26), (x, 310)], GREY, 1, dash="4 4")
    figure.parts += boxes
    figure.text(4, 332, "0, 1, 2: the backward pass of a bucket's layers, and the")
    figure.text(4, 350, "all-reduce of the bucket. Purple: the optimizer's step.")
    figure.save("buckets-overlap.svg")
