"""Test accuracy over the batch per rank, with BatchNorm and SyncBatchNorm."""

from statistics import mean

from drawing import BLUE, GREEN, ORANGE, PURPLE, Plot, table

BATCHES = [2, 4, 8, 16, 32]


def draw():
    plot = Plot(
        "Test accuracy over the batch per rank on two ranks",
        [(batch, str(batch)) for batch in BATCHES],
        [65, 70, 75, 80, 85, 90, 95],
        "samples per rank and step",
        "test accuracy in %, mean of three seeds",
        log_x=True,
        height=360,
        legend_rows=2,
    )
    curves = [
        ("linear", "sync", GREEN, "linear, SyncBatchNorm"),
        ("linear", "plain", ORANGE, "linear, BatchNorm"),
        ("convolutions", "sync", PURPLE, "conv., SyncBatchNorm"),
        ("convolutions", "plain", BLUE, "conv., BatchNorm"),
    ]
    rows = [row for row in table("batch_norm") if row["ranks"] == "2"]
    for network, norm, colour, label in curves:
        points = []
        for batch in BATCHES:
            accuracies = [
                float(row["test_accuracy"])
                for row in rows
                if (row["network"], row["norm"], row["batch"]) == (network, norm, str(batch))
            ]
            if accuracies:
                points.append((batch, mean(accuracies)))
        plot.curve(points, colour, label, dash="6 4" if norm == "plain" else "", dots=True)
    plot.save("batch-norm-accuracy.svg")
