"""The choice of a transport."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure

QUESTIONS = [
    (("--transport mpi", "and an MPI build?"), ORANGE, ("MPI",)),
    (("an NVIDIA GPU per rank,", "NCCL on all machines?"), GREEN, ("NCCL",)),
    (("threads of one process", "(--mode dp)?"), PURPLE, ("memory of", "the process")),
    (("all ranks on", "one machine?"), BLUE, ("shared", "memory")),
    (("one rank", "per machine?"), BLUE, ("TCP",)),
]


def draw():
    figure = Figure(480, 480, "Which transport carries the tensors")
    for at, (question, colour, answer) in enumerate(QUESTIONS):
        y = 10 + at * 80
        figure.frame(10, y, 226, 54)
        for row, line in enumerate(question):
            figure.text(123, y + 23 + row * 18, line, anchor="middle")
        figure.arrow(238, y + 27, 318, y + 27)
        figure.text(278, y + 19, "yes", anchor="middle")
        figure.box(322, y + 2, 148, 50, colour, *answer, size=15)
        figure.arrow(123, y + 56, 123, y + 77)
        figure.text(133, y + 72, "no")
    figure.box(49, 412, 148, 54, BLUE, "shared memory", "and TCP", size=15)
    figure.save("transports.svg")
