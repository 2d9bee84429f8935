"""Draw the pictures of the guide: `python docs/make_pictures.py` writes docs/guide/pictures/*.svg.

A picture is a function of this file; its name is that of the page that shows it. Figures come from
`benchmarks/results`, curves from the functions that they show.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import exp, hypot, log
from pathlib import Path

import vertexrt as vrt

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
INK, LINE, GREY, WHITE = "#1f2933", "#52606d", "#e4e7eb", "#ffffff"
BLUE, GREEN, YELLOW, RED, VIOLET = "#cfe5ff", "#c8efd4", "#ffe9b0", "#ffd2c7", "#e3d7ff"
LEVELS = (BLUE, GREEN, YELLOW, RED, VIOLET)
RADIUS = 17  # of a vertex
DRAWINGS: dict[str, Callable[[], Picture]] = {}  # by the name of the page


class Picture:
    """An SVG text that grows by what is drawn. Lengths are pixels; y goes down."""

    def __init__(self, width: int, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="sans-serif" font-size="13">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="10" '
            'markerHeight="10" markerUnits="userSpaceOnUse" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="{WHITE}"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        anchor: str = "middle",
        colour: str = INK,
        bold: bool = False,
    ) -> None:
        """Write lines of text whose middle, start or end is at a point."""
        lines = text.split("\n")
        for k, line in enumerate(lines):
            at = y + (k - (len(lines) - 1) / 2) * (size + 4) + size * 0.35
            weight = ' font-weight="bold"' if bold else ""
            self.parts.append(
                f'<text x="{x:g}" y="{at:.4g}" font-size="{size}" text-anchor="{anchor}" '
                f'fill="{colour}"{weight}>{escape(line, quote=False)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str = "",
        fill: str = WHITE,
        size: int = 13,
    ) -> None:
        """Draw a box whose top left corner is at a point, with text in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5" fill="{fill}" '
            f'stroke="{LINE}"/>'
        )
        if text:
            self.text(x + w / 2, y + h / 2, text, size=size)

    def vertex(self, x: float, y: float, text: str = "", fill: str = BLUE) -> None:
        """Draw a vertex around a point."""
        self.parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}" fill="{fill}" stroke="{LINE}"/>'
        )
        self.text(x, y, text, size=12)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        width: float = 1.4,
        colour: str = LINE,
        tip: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw a line through points, with a tip at its end if asked."""
        joined = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
        more = (' marker-end="url(#tip)"' if tip else "") + (
            ' stroke-dasharray="5 4"' if dashed else ""
        )
        self.parts.append(
            f'<polyline points="{joined}" fill="none" stroke="{colour}" '
            f'stroke-width="{width:g}"{more}/>'
        )

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], width: float = 1.4
    ) -> None:
        """Draw an arrow between points, without a gap."""
        self.line([start, end], tip=True, width=width)

    def edge(
        self, start: tuple[float, float], end: tuple[float, float], *, width: float = 1.4
    ) -> None:
        """Draw an arrow between two vertices."""
        (x, y), (u, v) = start, end
        length = hypot(u - x, v - y)
        near, far = RADIUS / length, (RADIUS + 2) / length
        self.arrow(
            (x + (u - x) * near, y + (v - y) * near),
            (u - (u - x) * far, v - (v - y) * far),
            width,
        )

    def graph(
        self,
        places: Mapping[str, tuple[float, float]],
        edges: Sequence[tuple[str, str]],
        fills: dict[str, str] | str = BLUE,
    ) -> None:
        """Draw vertices by name, and edges from child to parent."""
        for child, parent in edges:
            self.edge(places[child], places[parent])
        for name, (x, y) in places.items():
            fill = fills if isinstance(fills, str) else fills[name]
            self.vertex(x, y, name, fill)

    def row(
        self, x: float, y: float, w: float, h: float, gap: float, texts: Mapping[str, str]
    ) -> None:
        """Draw boxes side by side, from the left, with an arrow from each to the next.

        Args:
            x, y, w, h: of the first box; gap: between two; texts: with their colours.
        """
        for k, (text, fill) in enumerate(texts.items()):
            at, middle = x + (w + gap) * k, y + h / 2
            self.box(at, y, w, h, text, fill)
            if k:
                self.arrow((at - gap, middle), (at - 2, middle))

    def bars(
        self, rows: Sequence[tuple[str, float, str]], x: float, y: float, scale: float
    ) -> None:
        """Draw a bar for each row: its name, its length in units of `scale` pixels, its value."""
        for k, (name, length, value) in enumerate(rows):
            top = y + 44 * k
            self.text(x - 10, top + 14, name, anchor="end")
            self.box(x, top, max(length * scale, 2), 28, fill=LEVELS[k % 5])
            self.text(x + length * scale + 8, top + 14, value, anchor="start", bold=True)

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])


def drawing(draw: Callable[[], Picture]) -> Callable[[], Picture]:
    """Enter a picture under the name of its page."""
    DRAWINGS[draw.__name__[1:].replace("_", "-")] = draw
    return draw


def numbers_in(file: str, pattern: str) -> list[float]:
    """Return the number after each place of a result file that fits a pattern."""
    text = (RESULTS / file).read_text(encoding="utf-8")
    found = [float(number) for number in re.findall(pattern, text)]
    assert found, f"{file} has no line {pattern!r}"
    return found


@drawing
def _guide() -> Picture:
    p = Picture(720, 150)
    steps = {
        "files, networkx,\nPyG, nltk": GREY,
        "graphs": BLUE,
        "batch": GREEN,
        "network": YELLOW,
        "step: loss,\nnew parameters": RED,
    }
    p.row(15, 25, 118, 46, 24, steps)
    p.box(441 + 142, 95, 118, 40, "results for\neach vertex", VIOLET)
    p.arrow((500, 71), (581, 112))
    p.box(299, 95, 118, 40, "a vertex function,\nwritten by you", GREY, 12)
    p.arrow((417, 108), (470, 73))
    p.text(145, 115, "one example = one graph", colour=LINE)
    return p


@drawing
def _first_network() -> Picture:
    p = Picture(720, 250)
    at = {"0": (300, 200), "1": (180, 200), "2": (240, 130), "3": (120, 130), "4": (180, 55)}
    fills = dict(zip("01234", (BLUE, BLUE, GREEN, BLUE, YELLOW), strict=True))
    p.graph(at, [("0", "2"), ("1", "2"), ("2", "4"), ("3", "4")], fills)
    p.text(300, 232, "good: yes")
    p.text(180, 232, "very")
    p.text(80, 130, "not", anchor="end")
    p.text(270, 130, "very good: yes", anchor="start")
    p.text(212, 50, "not (very good): no", anchor="start")
    for y, text, fill in (
        (200, "first: all words", BLUE),
        (130, "then: very good", GREEN),
        (55, "last: the whole phrase", YELLOW),
    ):
        p.box(470, y - 18, 220, 36, text, fill)
    p.text(580, 20, "order of evaluation: children first", colour=LINE)
    p.text(210, 20, "numbers: vertices;  word: label", colour=LINE)
    return p


@drawing
def _data() -> Picture:
    p = Picture(720, 210)
    lines = (
        '{"children": [[], [], [0, 1]],\n "pulls": {"word": ["good", "film", null]}}',
        '{"chain": 2,\n "pulls": {"word": ["new", "film"]}}',
    )
    for k, text in enumerate(lines):
        p.box(12, 40 + 85 * k, 275, 50, text, GREY, 11)
    p.text(150, 18, "lines of a file", bold=True)
    p.text(400, 18, "graphs", bold=True)
    p.text(600, 18, "one batch", bold=True)
    for x, offset in ((400, 0), (600, 3)):
        p.graph({"0": (x - 45, 95), "1": (x + 45, 95), "2": (x, 50)}, [("0", "2"), ("1", "2")])
        first, second = str(offset), str(offset + 1)
        p.graph({first: (x - 45, 150), second: (x + 45, 150)}, [(first, second)], GREEN)
    p.arrow((290, 66), (330, 66))
    p.arrow((290, 150), (330, 150))
    p.arrow((475, 110), (525, 110))
    p.text(590, 190, "word: 2, 1, none, unknown, 1", size=12)
    p.text(390, 190, "numbered from 0 in each", size=12)
    return p


@drawing
def _training() -> Picture:
    p = Picture(720, 225)
    parts = {
        "net.record(batch)\nevaluate": BLUE,
        "run.backward()\ngradients": GREEN,
        "optimizer.step(net)\nnew parameters": YELLOW,
        "net.zero_grad()\nforget gradients": RED,
    }
    p.box(10, 20, 700, 78, "", "#f5f7fa")
    p.text(360, 110, "net.step(batch, optimizer)", bold=True)
    p.row(25, 35, 150, 48, 22, parts)
    rate = vrt.schedules.join(
        vrt.schedules.linear(0.001, 0.01, steps=5), vrt.schedules.cosine(0.01, steps=20), at=[5]
    )
    p.line([(60, 130), (60, 205), (420, 205)])
    p.line([(60 + 14 * k, 205 - 7000 * rate(k)) for k in range(26)], width=2.5, colour="#2b6cb0")
    p.text(425, 205, "steps", anchor="start")
    p.text(440, 150, "a learning rate that changes:\nwarm-up, then a cosine", anchor="start")
    p.text(52, 137, "0.01", anchor="end", size=11)
    p.text(52, 203, "0", anchor="end", size=11)
    return p


@drawing
def _losses_and_metrics() -> Picture:
    p = Picture(720, 260)
    curves: tuple[tuple[str, str, Callable[[float], float]], ...] = (
        ("squared_error(x, 1)", "#2b6cb0", lambda x: (x - 1) ** 2),
        ("binary_cross_entropy_with_logits(x, 1)", "#2f855a", lambda x: log(1 + exp(-x))),
        ("hinge_loss(x, 1)", "#c05621", lambda x: max(0.0, 1 - x)),
    )
    left, bottom, across, up = 60, 225, 90, 45
    p.line([(left, 20), (left, bottom), (left + 6 * across - 110, bottom)])
    for x in range(-2, 4):
        p.text(left + (x + 2) * across * 0.8, bottom + 14, str(x), size=11)
    for y in range(5):
        p.text(left - 10, bottom - y * up, str(y), size=11)
    for k, (name, colour, curve) in enumerate(curves):
        points = [(-2 + 0.05 * step, curve(-2 + 0.05 * step)) for step in range(101)]
        shown = [(left + (x + 2) * across * 0.8, bottom - y * up) for x, y in points if y <= 4.4]
        p.line(shown, width=2.5, colour=colour)
        p.line([(430, 40 + 24 * k), (455, 40 + 24 * k)], width=2.5, colour=colour)
        p.text(462, 40 + 24 * k, name, anchor="start", size=12)
    p.text(462, 120, "the loss of a score x whose target is 1", anchor="start", colour=LINE)
    p.text(left + 400, bottom + 14, "score x", anchor="start")
    return p


@drawing
def _command_line() -> Picture:
    p = Picture(720, 190)
    p.box(10, 25, 120, 40, "train.jsonl, dev.jsonl", GREY, 11)
    p.box(10, 90, 120, 40, "my_model.py", GREY)
    p.box(180, 50, 110, 55, "vertexrt\ntrain", BLUE)
    p.arrow((130, 45), (178, 66))
    p.arrow((130, 110), (178, 90))
    files = "best.safetensors\nlast.safetensors\nconfig.json\nmetrics.jsonl\ncurve.png"
    p.box(340, 20, 140, 115, files, YELLOW, 12)
    p.text(410, 150, "a run folder", bold=True)
    p.arrow((290, 77), (338, 77))
    for k, (command, result) in enumerate(
        (("eval", "measures"), ("predict", "predictions"), ("export", "for the Hub"))
    ):
        y = 15 + 48 * k
        p.box(520, y, 70, 34, command, BLUE)
        p.arrow((480, 77), (518, y + 17))
        p.text(598, y + 17, result, anchor="start", size=12)
    p.arrow((400, 165), (235, 165))
    p.line([(235, 165), (235, 107)], tip=True)
    p.text(320, 178, "train --resume", size=12)
    return p


@drawing
def _attention_and_dags() -> Picture:
    p = Picture(720, 215)
    at = {"0": (80, 60), "1": (80, 155), "2": (230, 155), "3": (380, 60), "4": (530, 110)}
    fills = {"0": BLUE, "1": BLUE, "2": GREEN, "3": YELLOW, "4": RED}
    for child, parent, weight in (
        ("0", "2", 0.3),
        ("1", "2", 0.7),
        ("0", "3", 0.8),
        ("2", "3", 0.2),
        ("2", "4", 0.4),
        ("3", "4", 0.6),
    ):
        p.edge(at[child], at[parent], width=1 + 5 * weight)
        (x, y), (u, v) = at[child], at[parent]
        p.text((x + u) / 2, (y + v) / 2 - 13, f"{weight:g}", size=11)
    p.graph(at, [], fills)
    p.text(20, 25, "0 is a child of 2 and of 3", anchor="start")
    p.text(530, 150, "4 reads 0.4 of 2 and 0.6 of 3")
    p.text(
        360, 200, "weights of the children of a vertex add up to 1; colours: levels", colour=LINE
    )
    return p


@drawing
def _vertex_types() -> Picture:
    p = Picture(720, 330)
    letters = [*"gotorome"]
    xs = [45 + 70 * k + 28 * (k > 1) + 28 * (k > 3) for k in range(8)]
    words = {"go": 1, "to": 3, "rome": 7}
    for k, (letter, x) in enumerate(zip(letters, xs, strict=True)):
        if k not in (0, 2, 4):
            p.edge((xs[k - 1], 285), (x, 285))
        p.vertex(x, 285, letter, BLUE)
    middles = [xs[1], xs[3], xs[7] - 60]
    for k, (word, end) in enumerate(words.items()):
        x = middles[k]
        left, right, tag = (x - 32, 205), (x + 32, 140), (x, 55)
        for point, fill, name in ((left, GREEN, ""), (right, YELLOW, ""), (tag, RED, "")):
            p.vertex(*point, name, fill)
        p.edge((xs[end], 285), left)
        p.edge((xs[end], 285), right)
        p.edge(left, tag)
        p.edge(right, tag)
        p.text(x, 24, f'tag of "{word}"', size=12)
        if k:
            p.edge((middles[k - 1] - 32, 205), left)
            p.edge(right, (middles[k - 1] + 32, 140))
    for y, text in ((285, "letter"), (205, "left"), (140, "right"), (55, "tag")):
        p.text(712, y, text, anchor="end", bold=True)
    p.text(340, 318, "arrows go from child to parent: before, spelling, left, right", colour=LINE)
    return p


@drawing
def _functions() -> Picture:
    p = Picture(720, 215)

    def cells(x: float, y: float, columns: int, rows: int, fill: str) -> None:
        for row in range(rows):
            for column in range(columns):
                p.box(x + 24 * column, y + 24 * row, 24, 24, "", fill)

    cells(40, 80, 1, 1, RED)
    p.text(52, 125, "a number\n[]")
    cells(115, 80, 4, 1, BLUE)
    p.text(163, 125, "a vector\n[N]")
    cells(260, 56, 4, 3, GREEN)
    p.text(308, 155, "a value per child:\na vector for each child")
    p.arrow((362, 70), (418, 45))
    cells(425, 20, 1, 3, RED)
    p.text(460, 56, 'vrt.sum(x, axis="elements"):\na number for each child', anchor="start")
    p.arrow((362, 110), (418, 145))
    cells(425, 135, 4, 1, BLUE)
    p.text(530, 147, 'vrt.sum(x, axis="children"):\none vector', anchor="start")
    return p


@drawing
def _recipes() -> Picture:
    p = Picture(720, 250)
    words = ("(", ")", "(", ")")
    at = {
        (i, i + n): (150 + 60 * (2 * i + n - 1), 205 - 55 * (n - 1))
        for n in range(1, 5)
        for i in range(5 - n)
    }
    for (i, j), (x, y) in at.items():
        whole = (i, j) == (0, 4)
        p.box(x - 24, y - 15, 48, 30, f"{i}-{j}", RED if whole else LEVELS[j - i - 1])
    for i, word in enumerate(words):
        p.text(150 + 120 * i, 237, word, bold=True)
    for k, splits in enumerate(((0, 1, 4), (0, 2, 4), (0, 3, 4))):
        i, middle, j = splits
        p.box(545, 35 + 50 * k, 150, 34, f"{i}-{middle} and {middle}-{j}", GREY)
        p.arrow((543, 52 + 50 * k), (356, 42))
    p.text(620, 18, "ways to split 0-4", bold=True)
    p.text(120, 25, "spans of a sentence", bold=True)
    return p


@drawing
def _generation() -> Picture:
    p = Picture(720, 190)
    for k, (word, chosen) in enumerate((("<begin>", "the"), ("the", "film"), ("film", "<end>"))):
        x = 80 + 210 * k
        p.box(x, 75, 90, 44, "one step", LEVELS[k])
        p.text(x + 45, 165, word)
        p.arrow((x + 45, 150), (x + 45, 121))
        p.arrow((x + 45, 75), (x + 45, 52))
        p.text(x + 45, 38, chosen, bold=True)
        if k < 2:
            p.arrow((x + 90, 97), (x + 208, 97))
            p.text(x + 120, 86, "state", size=11)
            p.line([(x + 75, 38), (x + 160, 38), (x + 160, 165), (x + 225, 165)], dashed=True)
    p.text(360, 14, "the word that is chosen is the input of the next step", colour=LINE)
    return p


@drawing
def _pytorch() -> Picture:
    p = Picture(720, 165)
    line = r"resets: {} to a step a call, torch.nn.LSTM, rate\s+([\d.]+)"
    (steps,) = numbers_in("torch_cpu.txt", line.format("a step a call, vertexrt.torch.LSTM"))
    (whole,) = numbers_in("torch_cpu.txt", line.format("one call, vertexrt.torch.Recurrent"))
    rows = [
        ("loop, torch.nn.LSTM", 1.0, "1"),
        ("loop, vt.LSTM", 1 / steps, f"{1 / steps:.1f}"),
        ("one call, vt.Recurrent", 1 / whole, f"{1 / whole:.2f}"),
    ]
    p.bars(rows, 190, 18, 270)
    p.text(360, 154, "time of 128 steps of 8 environments, forward and backward", colour=LINE)
    return p


@drawing
def _speed() -> Picture:
    p = Picture(720, 230)
    for k in range(4):
        p.box(95 + 130 * k, 30, 90, 150, "", "#f5f7fa")
        p.text(140 + 130 * k, 18, f"level {k + 1}", size=12)
    first, second = (1, 2, 3, 4), (1, 2, 5)
    for y, words in ((70, first), (140, second)):
        for k, word in enumerate(words):
            x = 140 + 130 * k
            if k:
                p.edge((x - 130, y), (x, y))
            p.vertex(x, y, str(word), YELLOW if k == 0 else BLUE)
    p.line([(140, 89), (140, 121)], dashed=True)
    p.text(85, 105, "equal:\ncomputed\nonce", size=11, anchor="end")
    p.text(600, 70, "sentence 1 2 3 4", anchor="start", size=12)
    p.text(600, 140, "sentence 1 2 5", anchor="start", size=12)
    p.text(
        340,
        205,
        "a level is evaluated at once, for all sentences: 6 vertices instead of 7",
        colour=LINE,
    )
    return p


@drawing
def _serving() -> Picture:
    p = Picture(720, 165)
    line = r"h\s+64 {}\s.*?([\d.]+) times a plan"
    names = {
        "graphs, forward": "a new graph",
        "batch, forward": "new inputs, with_pulls",
        "plan ": "a plan",
    }
    rows = []
    for name, shown in names.items():
        (times,) = numbers_in("requests_cpu.txt", line.format(name))
        rows.append((shown, times, f"{times:g}"))
    p.bars(rows, 190, 18, 150)
    p.text(360, 154, "time of a request, LSTM of 64, 100 steps, one CPU thread", colour=LINE)
    return p


@drawing
def _parallel() -> Picture:
    p = Picture(720, 260)
    p.box(20, 95, 90, 50, "batch of\n8 graphs", GREY)
    ys = (30, 90, 150, 210)
    for k, y in enumerate(ys):
        p.box(170, y - 18, 150, 36, f"process {k}:\ngraphs {2 * k}, {2 * k + 1}", LEVELS[k], 12)
        p.arrow((110, 120), (168, y))

    for k, y in enumerate((60, 180)):
        p.box(440, y - 15, 34, 30, "+", WHITE)
        p.arrow((320, ys[2 * k]), (438, y - 4))
        p.arrow((320, ys[2 * k + 1]), (438, y + 4))
        p.arrow((474, y), (528, 120 + (y - 120) * 0.1))
    p.box(530, 105, 34, 30, "+", WHITE)
    p.arrow((564, 120), (600, 120))
    p.box(602, 95, 108, 50, "the same update\nin all processes", YELLOW, 12)
    p.text(500, 20, "gradients are added up in a fixed order", colour=LINE)
    return p


@drawing
def _from_other_libraries() -> Picture:
    p = Picture(720, 240)
    shape = {"a": (-55, 165), "b": (5, 165), "c": (-25, 105), "d": (55, 105), "e": (15, 45)}
    edges = [("a", "c"), ("b", "c"), ("c", "e"), ("d", "e")]
    ways = (
        ("PyTorch, DyNet:\none after the other", ("1", "2", "3", "4", "5")),
        ("DGL, PyG: all of them,\nlayer after layer", ("1, 2",) * 5),
        ("vertexrt: children first,\nwhat is ready together", ("1", "1", "2", "1", "3")),
    )
    for k, (title, order) in enumerate(ways):
        middle = 120 + 240 * k
        at = {name: (middle + x, y) for name, (x, y) in shape.items()}
        for child, parent in edges:
            p.edge(at[child], at[parent])
        for (x, y), number in zip(at.values(), order, strict=True):
            fill = GREY if "," in number else LEVELS[(int(number) - 1) % 5]
            p.vertex(x, y, number, fill)
        p.text(middle, 212, title, size=12)
    p.text(360, 14, "numbers: in which step a vertex is evaluated", colour=LINE)
    return p


@drawing
def _models() -> Picture:
    p = Picture(720, 230)
    for layer in range(3):
        for word in range(5):
            x, y = 150 + 110 * word, 165 - 60 * layer
            if word:
                p.edge((x - 110, y), (x, y))
            if layer:
                p.edge((x, y + 60), (x, y))
            p.vertex(x, y, str(layer + word + 1), LEVELS[(layer + word) % 5])
        p.text(95, 165 - 60 * layer, f"layer {layer + 1}", anchor="end")
    for word, text in enumerate(("the", "film", "was", "not", "bad")):
        p.text(150 + 110 * word, 205, text)
    p.text(360, 18, "numbers: the level in which a vertex is evaluated", colour=LINE)
    return p


@drawing
def _errors() -> Picture:
    p = Picture(720, 150)
    parts = (
        ("[gather]", "where", BLUE, 80),
        ("vertex 3 of graph 0\nhas 3 children;", "what was found", RED, 165),
        ("Sum declares\nslots 0..1;", "what was expected", GREEN, 140),
        (
            "binarise the graph, declare arity=3,\nor read them by gather_all.",
            "what to do",
            YELLOW,
            275,
        ),
    )
    x = 15.0
    for text, name, fill, width in parts:
        p.box(x, 35, width, 52, text, fill, 12)
        p.text(x + width / 2, 110, name, bold=True)
        x += width + 10
    return p


@drawing
def _glossary() -> Picture:
    p = Picture(720, 250)
    at = {"good": (170, 190), "film": (310, 190), "": (240, 100)}
    p.graph(at, [("good", ""), ("film", "")], {"good": BLUE, "film": BLUE, "": GREEN})
    notes = (
        (400, 40, "root: a vertex without a parent", (258, 95)),
        (400, 85, "push: a result, such as logits", (258, 100)),
        (400, 130, "an edge, from child to parent", (282, 150)),
        (400, 175, "leaf: a vertex without children", (328, 188)),
        (400, 220, "pull: an input, such as the word", (324, 198)),
    )
    for x, y, text, to in notes:
        p.text(x, y, text, anchor="start")
        p.line([(x - 6, y), to], width=0.8)
    p.text(130, 100, "gather:\nread children", size=12, anchor="end")
    p.line([(135, 100), (221, 100)], width=0.8)
    p.text(110, 190, "scatter:\nstate for parents", size=12, anchor="end")
    p.line([(115, 190), (152, 190)], width=0.8)
    p.text(170, 225, "child 0", size=12)
    p.text(310, 225, "child 1", size=12)
    p.text(240, 65, "level 2", size=12, colour=LINE)
    p.text(240, 190, "level 1", size=12, colour=LINE)
    return p


def main() -> None:
    """Write all pictures."""
    folder = DOCS / "guide" / "pictures"
    folder.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main()
