"""SVG schematics and plots for the book.

The colours have enough contrast on white and on dark backgrounds; the backgrounds are transparent. Figures are at most
480 units wide with text of 14 units, so that they stay readable on a phone.
"""

import csv
import math
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
IMAGES = FOLDER.parent / "src" / "images"
GREY, BLUE, ORANGE, GREEN, PURPLE = "#808690", "#2f7ebc", "#c9652b", "#3c8d5a", "#8a63b8"
COLOURS = [BLUE, ORANGE, GREEN, PURPLE]


def table(name):
    """Rows of `data/NAME.csv` as dictionaries; lines that begin with # are comments."""
    with open(FOLDER / "data" / f"{name}.csv") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Figure:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
            f' height="{height}" role="img" font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{title}</title>",
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path d="M0 0 8 4 0 8z" fill="{GREY}"/></marker></defs>',
        ]

    def box(self, x, y, width, height, colour, *lines, size=14):
        """A filled box with centred white lines of text."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{colour}"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * (size + 3) / 2 + size * 0.36
        for at, line in enumerate(lines):
            self.text(x + width / 2, top + at * (size + 3), line, "#fff", "middle", size)

    def frame(self, x, y, width, height, label=""):
        """An outline with a label in its upper left corner."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="none" stroke="{GREY}"/>'
        )
        if label:
            self.text(x + 10, y + 20, label)

    def text(self, x, y, text, colour=GREY, anchor="start", size=14):
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>'
        )

    def line(self, points, colour=GREY, width=1.5, dash="", opacity=1):
        """A line through points, which are pairs."""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        faint = f' stroke-opacity="{opacity}"' if opacity < 1 else ""
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
            f"{dashed}{faint}/>"
        )

    def dot(self, x, y, colour, radius=3.5):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{GREY}" stroke-width="1.5" fill="none"'
            ' marker-end="url(#a)"/>'
        )

    def save(self, name):
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_text("\n".join(self.parts) + "\n</svg>\n")


class Plot(Figure):
    """A plot with axes. Scales are linear, or logarithmic with `log_x` and `log_y`."""

    def __init__(self, title, x, y, x_label, y_label, log_x=False, log_y=False, height=320, legend_rows=1):
        """`x` and `y` are lists of tick values, or of pairs (value, label); the first and last bound the axis."""
        super().__init__(480, height, title)
        pairs = lambda ticks: [tick if isinstance(tick, tuple) else (tick, f"{tick:g}") for tick in ticks]
        self.x_ticks, self.y_ticks = pairs(x), pairs(y)
        self.logs = (log_x, log_y)
        self.left, self.right, self.top, self.bottom = 56, 468, 34, height - 48 - 22 * legend_rows
        self.legends, self.height = 0, height
        self.text(4, 18, y_label)
        for value, label in self.y_ticks:
            (_, at) = self.at(self.x_ticks[0][0], value)
            self.line([(self.left, at), (self.right, at)], width=1, opacity=0.25)
            self.text(self.left - 8, at + 5, label, anchor="end")
        for value, label in self.x_ticks:
            (at, _) = self.at(value, self.y_ticks[0][0])
            self.line([(at, self.bottom), (at, self.bottom + 4)], width=1)
            self.text(min(at, 462), self.bottom + 20, label, anchor="middle")
        self.text((self.left + self.right) / 2, self.bottom + 40, x_label, anchor="middle")

    def at(self, x, y):
        """The place of a value."""

        def part(value, ticks, is_log):
            low, high = ticks[0][0], ticks[-1][0]
            value = min(max(value, low), high)
            if is_log:
                low, high, value = math.log(low), math.log(high), math.log(value)
            return (value - low) / (high - low)

        across, up = part(x, self.x_ticks, self.logs[0]), part(y, self.y_ticks, self.logs[1])
        return self.left + (self.right - self.left) * across, self.bottom - (self.bottom - self.top) * up

    def curve(self, points, colour, label="", dash="", dots=False):
        """A curve with an entry in the legend, two entries per row."""
        places = [self.at(x, y) for x, y in points]
        self.line(places, colour, 2, dash)
        for place in places if dots else []:
            self.dot(*place, colour)
        self.legend(colour, label, dash)

    def dots(self, points, colour, label=""):
        for point in points:
            self.dot(*self.at(*point), colour)
        self.legend(colour, label)

    def legend(self, colour, label, dash=""):
        if label:
            x, y = 12 + (self.legends % 2) * 238, self.bottom + 62 + (self.legends // 2) * 22
            self.line([(x, y - 5), (x + 20, y - 5)], colour, 3, dash)
            self.text(x + 28, y, label)
            self.legends += 1
