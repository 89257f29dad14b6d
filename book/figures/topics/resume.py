"""A run that is killed and resumed, beside an uninterrupted one."""

from drawing import BLUE, GREEN, GREY, ORANGE, Figure

# Measured: 100 steps, a checkpoint after every 15 steps and after each epoch of 40, killed after step 52.
LAST, KILLED, RESUMED = 100, 52, 45
CHECKPOINTS = [15, 30, 40, 45]


def draw():
    figure = Figure(480, 344, "A run that is killed after step 52 and resumed from the checkpoint of step 45")
    at = lambda step: 16 + 448 * step / LAST

    def steps(y, first, last, colour, label):
        """A bar from the end of step `first` to the end of step `last`."""
        figure.box(at(first), y, at(last) - at(first), 30, colour, label)

    figure.text(16, 18, "uninterrupted")
    steps(26, 0, LAST, BLUE, "steps 1 to 100")

    figure.text(16, 84, "killed")
    steps(92, 0, RESUMED, BLUE, "steps 1 to 45")
    steps(92, RESUMED, KILLED, GREY, "lost")
    for step in CHECKPOINTS:
        figure.line([(at(step), 122), (at(step), 132)], GREEN, 3)
        if step != 40:
            figure.text(at(step), 148, str(step), GREEN, "middle")
    figure.text(at(KILLED) + 8, 148, "checkpoints", GREEN)
    x = at(KILLED) + 14
    figure.line([(x - 7, 100), (x + 7, 114)], ORANGE, 3)
    figure.line([(x - 7, 114), (x + 7, 100)], ORANGE, 3)
    figure.text(x + 14, 112, "kill -9 after step 52", ORANGE)

    figure.text(16, 182, "resumed")
    figure.line([(at(RESUMED), 154), (at(RESUMED), 188)], GREEN, 1.5, "4 3")
    steps(190, RESUMED, LAST, BLUE, "steps 46 to 100")
    figure.line([(at(RESUMED), 227), (at(KILLED), 227)], ORANGE, 3)
    figure.text(at(KILLED) + 8, 232, "computed twice", ORANGE)

    figure.text(16, 266, "steps.csv: each step once")
    steps(274, 0, RESUMED, BLUE, "1 to 45")
    steps(274, RESUMED, LAST, BLUE, "46 to 100")
    figure.line([(at(RESUMED), 304), (at(RESUMED), 314)], GREEN, 3)
    figure.text(16, 336, "Both runs end with the same parameters, bit for bit.")
    figure.save("resume.svg")
