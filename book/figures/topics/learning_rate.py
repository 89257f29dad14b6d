"""Training loss with a larger batch: without scaling, with linear scaling, and with linear scaling and warm-up."""

from drawing import BLUE, GREEN, ORANGE, PURPLE, Plot, table

RUNS = [
    ("one", "1 rank", BLUE, ""),
    ("none", "4 ranks, no scaling", GREEN, "7 4"),
    ("linear", "4 ranks, linear", ORANGE, ""),
    ("warm", "4 ranks, linear, warm-up", PURPLE, "2 3"),
]


def losses(name, lr, low, high):
    ticks = [(value, label) for value, label in high if value >= low]
    title = f"Training loss with a learning rate of {lr} for one rank"
    plot = Plot(title, [0, 1, 2, 3], ticks, "epochs", "training loss", log_y=True, height=370, legend_rows=2)
    rows = [row for row in table("learning_rate") if row["lr"] == lr]
    for run, label, colour, dash in RUNS:
        points = [(float(row["epoch"]), float(row["loss"])) for row in rows if row["run"] == run]
        plot.curve(points, colour, label, dash)
    plot.save(name)


def draw():
    small = [(value, f"{value:g}") for value in [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]]
    losses("learning-rate.svg", "0.025", 0.02, small)
    large = [(0.01, "0.01"), (1, "1"), (100, "100"), (1e4, "10⁴"), (1e6, "10⁶")]
    losses("learning-rate-high.svg", "0.1", 0.01, large)
