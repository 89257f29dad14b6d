"""Bytes per batch and images per second of gradient synchronisation on a slow link."""

from drawing import BLUE, GREY, ORANGE, Figure, table


def bars(figure, y, title, rows, colour, largest):
    """Horizontal bars with a label on the left and a value on the right; rows are (label, value, text)."""
    figure.text(8, y + 16, title)
    for at, (label, value, text) in enumerate(rows):
        top = y + 28 + at * 26
        width = max(260 * value / largest, 1.5)
        figure.text(138, top + 15, label, GREY, "end")
        figure.box(146, top, width, 20, colour)
        figure.text(146 + width + 8, top + 15, text, GREY)
    return y + 28 + len(rows) * 26 + 16


def draw():
    rows = table("traffic")
    figure = Figure(480, 412, "Bytes per batch, and images per second at 100 Mbit/s")
    sent = [row for row in rows if row["bytes_per_batch"]]
    megabytes = [(row["label"], float(row["bytes_per_batch"]) / 1e6) for row in sent]
    bytes_rows = [(label, value, f"{value:.2f} MB") for label, value in megabytes]
    y = bars(figure, 0, "sent by a rank per batch of 64 images", bytes_rows, BLUE, max(v for _, v in megabytes))
    speeds = [(row["label"], sorted(float(row[f"round_{n}"]) for n in (1, 2, 3))[1]) for row in rows]
    speed_rows = [(label, value, f"{value:.0f}") for label, value in speeds]
    bars(figure, y, "images/s at 100 Mbit/s, median of three rounds", speed_rows, ORANGE, max(v for _, v in speeds))
    figure.save("traffic.svg")
