"""Processes, ports and connections of a job on two machines."""

from drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, Figure

COLUMNS = [20, 172, 324]


def draw():
    figure = Figure(480, 446, "Ports and connections of two machines with two ranks each")
    processes = [
        [("launcher", "listens: 29500"), ("rank 0", "listens: p, a"), ("rank 1", "listens: b")],
        [("launcher", ""), ("rank 2", "listens: c"), ("rank 3", "listens: d")],
    ]
    for node, names in enumerate(processes):
        top, box, label = [(8, 42, 28), (228, 240, 314)][node]
        figure.frame(8, top, 464, 96)
        figure.text(18, label, f"node {node}, 192.168.7.{node + 1}")
        for x, lines, colour in zip(COLUMNS, names, [GREY, BLUE, BLUE]):
            figure.box(x, box, 136, 50, colour, *filter(None, lines))
    connections = [
        (88, 88, GREY),
        (206, 206, GREEN),
        (344, 226, GREEN),
        (248, 248, ORANGE),
        (290, 356, ORANGE),
        (366, 290, ORANGE),
        (412, 412, ORANGE),
    ]
    for start, end, colour in connections:
        figure.line([(start, 238), (end, 100)], colour, 2)
        # Heads of the colour of their line.
        across, up = end - start, -138
        length = (across**2 + up**2) ** 0.5
        across, up = across / length, up / length
        base = (end - 9 * across, 100 - 9 * up)
        points = [(base[0] - 4 * up, base[1] + 4 * across), (end, 93), (base[0] + 4 * up, base[1] - 4 * across)]
        figure.parts.append(
            f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}z" fill="{colour}"/>'
        )
    for x, colour, number in [(96, GREY, "1"), (190, GREEN, "2"), (420, ORANGE, "3")]:
        figure.text(x, 208, number, colour, size=15)
    figure.line([(8, 166), (472, 166)], PURPLE, 2, "6 5")
    figure.text(100, 158, "firewall", PURPLE)
    notes = [
        (GREY, "1: rounds of the launchers, port 29500"),
        (GREEN, "2: rendezvous and errors, a free port p of node 0"),
        (ORANGE, "3: tensors, free ports a to d, one per rank"),
        (GREY, "The higher rank connects to the lower one."),
    ]
    for row, (colour, note) in enumerate(notes):
        figure.text(12, 352 + row * 26, note, colour, size=15)
    figure.save("two-machines.svg")
