"""The mean of the ranks' accuracies against the accuracy over all samples."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure

LEFT, WIDTH = 8, 464


def bar(figure, y, parts):
    """A row of boxes (share of the width, colour, lines)."""
    x = LEFT
    for share, colour, *lines in parts:
        figure.box(x, y, WIDTH * share - 2, 52, colour, *lines)
        x += WIDTH * share


def draw():
    figure = Figure(480, 322, "Accuracy of two ranks with 70 and 30 samples")
    figure.text(LEFT, 20, "The mean of means gives each rank the same weight:")
    bar(figure, 32, [(0.5, BLUE, "rank 0", "55 of 70 = 78.6 %"), (0.5, ORANGE, "rank 1", "18 of 30 = 60.0 %")])
    figure.text(LEFT, 108, "(78.6 % + 60.0 %) / 2 = 69.3 %", PURPLE)
    figure.text(LEFT, 160, "The mean gives each sample the same weight:")
    bar(figure, 172, [(0.7, BLUE, "rank 0", "55 of 70"), (0.3, ORANGE, "rank 1", "18 of 30")])
    figure.text(LEFT, 248, "(55 + 18) / (70 + 30) = 73.0 %", GREEN)
    figure.line([(LEFT, 132), (LEFT + WIDTH, 132)], GREY, 1, opacity=0.4)
    figure.text(LEFT, 290, "The width of a box is the weight of the rank's samples")
    figure.text(LEFT, 310, "in the result.")
    figure.save("metrics.svg")
