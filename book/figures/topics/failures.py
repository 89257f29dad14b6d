"""Failures of a job: how each is detected, after how long, and what follows."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure

CAUSES = [
    (("process exits", "or is killed"), ORANGE, ("closed connection: at once", "PeerLost names the rank")),
    (("process is stopped", "or hangs"), ORANGE, ("time limit of the call: 300 s", "Timeout names rank and call")),
    (("network", "is lost"), PURPLE, ("keep-alive probes: 5 to 7 s", "PeerLost names a rank beyond it")),
    (("ranks make", "different calls"), BLUE, ("comparison: at once, or in seconds", "Mismatch names both calls")),
    (("parameters", "differ"), BLUE, ("digests: after each epoch", "Diverged names the ranks")),
]


def draw():
    figure = Figure(480, 490, "Failure tree: cause, detection, error, restart")
    figure.text(14, 18, "cause")
    figure.text(214, 18, "detection, default, and error")
    for at, (cause, colour, found) in enumerate(CAUSES):
        y = 28 + at * 66
        figure.box(14, y, 162, 54, colour, *cause)
        figure.arrow(178, y + 27, 207, y + 27)
        for row, line in enumerate(found):
            figure.text(214, y + 22 + row * 20, line)
        figure.line([(456, y + 27), (468, y + 27)])
    figure.line([(468, 55), (468, 376), (240, 376)])
    figure.arrow(240, 376, 240, 389)
    figure.box(14, 392, 452, 34, GREY, "every rank ends with the first cause; the launcher names it")
    figure.arrow(127, 428, 127, 445)
    figure.arrow(353, 428, 353, 445)
    figure.box(14, 448, 220, 34, GREEN, "restart from a checkpoint")
    figure.box(246, 448, 220, 34, GREY, "exit with the rank’s code")
    figure.save("failure-tree.svg")
