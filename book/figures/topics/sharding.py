"""How the samples of an epoch are dealt to the ranks."""

from drawing import COLOURS, GREY, Figure


def draw():
    figure = Figure(480, 306, "A shuffled order of ten samples, dealt to two ranks")
    order = [7, 2, 9, 0, 4, 8, 1, 5, 3, 6]
    figure.text(8, 20, "samples, in the order of the data set")
    figure.text(8, 92, "the order of this epoch, and the rank of each position")
    for at in range(10):
        figure.box(8 + at * 47, 30, 40, 32, GREY, str(at))
        figure.box(8 + at * 47, 102, 40, 32, COLOURS[at % 2], str(order[at]))
        figure.arrow(28 + at * 47, 136, 28 + at * 47, 164)
    for at in range(10):
        figure.text(28 + at * 47, 182, str(at % 2), COLOURS[at % 2], "middle", 14)
    for rank in range(2):
        y = 200 + rank * 50
        figure.text(8, y + 22, f"rank {rank}:")
        for at, sample in enumerate(order[rank::2]):
            figure.box(70 + at * 47 + (at // 2) * 24, y, 40, 32, COLOURS[rank], str(sample))
    figure.text(70, 300, "batch 1")
    figure.text(188, 300, "batch 2")
    figure.text(306, 300, "batch 3")
    figure.save("sharding.svg")
