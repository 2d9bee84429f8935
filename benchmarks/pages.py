"""Write the tables and pictures of the documents from the files of `benchmarks/results`.

    python -m benchmarks.pages

A table follows a comment that says where it comes from: files, and a pattern that the names of its
rows match. The name of a row is what a file says of a measurement but for the batch size, such as
`LSTM h 64, kernel` or `tree-lstm, train`; a file with several revisions has the newest first, and
that is taken.

    <!-- table overlap_h200.txt LSTM .*kernel -->     a row a measurement, in a cell all ways of it
    <!-- switches h200/ablation-tree-lstm.json -->   a row a switch: alone, and left out
    <!-- parts h200/breakdown-tree-lstm.json -->     a row a part of a step

With several sizes of groups the best is shown. The last number of a cell says how many times as
fast our fastest way is as the fastest other one; where all are ours, the last as the first. After a
pattern ` without NAME` leaves a way, or a setting, out.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vertexrt.bench.ablation import ONE_OFF, ONE_ON, TOTAL
from vertexrt.bench.figures import draw_ablation, draw_step_time
from vertexrt.bench.record import HIDDEN, Entry, read
from vertexrt.pictures import figure

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
TABLE = re.compile(
    r"^<!-- (table|switches|parts) (\S+) ?(.*?) -->\n(?:\|.*\n)*", flags=re.MULTILINE
)
NAME = re.compile(r"^([^|:]*?),? +batch +(\d+)(?:, (.*?))? {2,}(?=[a-z])")
NUMBER = r"([\d,]*\.?\d+(?:e[+-]\d+)?)"
WAY = re.compile(
    r"((?:by )?[a-z][\w.-]*(?: \d+)?) +" + NUMBER + r"(?: (ms|us a step|us|kwords/s|graphs/s)\b)?"
    r"(?: [\d.]+ TFLOP/s)?(?P<quartiles> \([\d,]+ - [\d,]+\))?"
)
BLOCK = re.compile(r"^(?:model )?([\w-]+), batch size (\d+)$")
OURS = re.compile("vertexrt|batched|persistent|auto")
NAMES = {"vrt-batched": "batched", "vrt-persistent": "persistent", "torch-nn.LSTM": "nn.LSTM"}


class Measured(NamedTuple):
    """One number of a file: the name of its row, the batch size, the way, the value, its unit."""

    row: str
    batch: int
    way: str
    value: float
    unit: str


def measured(file: str) -> Iterator[list[Measured]]:
    """Go through what a file has, of either form: all ways of one measurement at a time."""
    path = RESULTS / file
    if path.suffix == ".json":
        together: dict[tuple[str, int], list[Measured]] = defaultdict(list)
        record = read(path)
        engine = re.findall(r"\w+", str(record.options["engines"]))[0]  # that of `vertexrt`
        for entry in record.entries:
            row, batch = f"{entry.key['suite']}, {entry.key['mode']}", int(entry.key["batch_size"])
            way = str(entry.key["variant"]).replace("vertexrt", engine)
            one = Measured(row, batch, way, entry.median, entry.unit)
            together[row, batch].append(one)
        yield from together.values()
        return
    block: list[Measured] = []
    head = None
    for line in path.read_text(encoding="utf-8").splitlines():
        name, found = NAME.match(line), WAY.match(line)
        if start := BLOCK.match(line):
            yield block
            block, head = [], start
        elif name:
            row = ", ".join(" ".join(part.split()) for part in (name[1], name[3]) if part)
            ways = list(WAY.finditer(line, name.end()))
            unit = next((way[3] for way in ways if way[3]), "")
            if any(way["quartiles"] for way in ways):
                unit = "graphs/s"
            yield [Measured(row, int(name[2]), way[1], value_of(way), unit) for way in ways]
        elif not line:
            head = None
        elif head and found:
            block.append(Measured(head[1], int(head[2]), found[1], value_of(found), found[3]))
    yield block


def value_of(way: re.Match[str]) -> float:
    """Return the number that a way took."""
    return float(way[2].replace(",", ""))


def grid(files: str, pattern: str, without: str = "") -> dict[str, dict[int, dict[str, Measured]]]:
    """Return what rows that match have by row, batch size and way; the best group of several.

    What files have first is taken, since what is newest stands there.
    """
    rows: dict[str, dict[int, dict[str, Measured]]] = defaultdict(dict)
    for one in (one for file in files.split(",") for one in measured(file)):
        if (
            not one
            or not re.fullmatch(pattern or ".*", one[0].row)
            or one[0].batch in rows[one[0].row]
        ):
            continue
        best: dict[str, Measured] = {}
        for each in one:
            way = re.sub(r" \d+$", "", NAMES.get(each.way, each.way))
            if way == without:
                continue
            best[way] = fastest([each, best[way]]) if way in best else each
        rows[one[0].row][one[0].batch] = best
    rows = {row: sizes for row, sizes in rows.items() if sizes}
    assert rows, f"{files} has no row like {pattern}"
    return rows


def fastest(ways: list[Measured]) -> Measured:
    """Return the fastest of several."""
    return max(ways, key=lambda one: one.value if one.unit.endswith("/s") else -one.value)


def shown(value: float) -> str:
    """Return a number with three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def unit_of(rows: dict[str, dict[int, dict[str, Measured]]]) -> str:
    """Return the unit of a table."""
    return next(one.unit for row in rows.values() for at in row.values() for one in at.values())


def in_order(number: re.Match[str]) -> str:
    """Return a number so that texts with it are in its order."""
    return number[0].zfill(6)


def by_row(files: str, pattern: str) -> list[list[str]]:
    """Return a table: a row a measurement, a column a batch size, in a cell all ways."""
    pattern, _, without = pattern.partition(" without ")
    rows = grid(files, pattern, without)
    sizes = sorted({batch for row in rows.values() for batch in row})
    ways = list(dict.fromkeys(way for row in rows.values() for at in row.values() for way in at))
    unit = unit_of(rows)
    lines = [[f"{unit}: {' / '.join(ways)}", *(f"batch {size}" for size in sizes)]]
    for name, row in sorted(rows.items(), key=lambda at: re.sub(r"\d+", in_order, at[0])):
        cells = []
        for size in sizes:
            at = row.get(size, {})
            cell = " / ".join(shown(at[way].value) if way in at else "-" for way in ways)
            cell *= bool(at)
            ours = [one for way, one in at.items() if OURS.match(way)] or [*at.values()][1:]
            others = [one for one in at.values() if one not in ours]
            if len(at) > 1:
                mine, peer = (fastest(ours), fastest(others)) if others else (ours[-1], ours[0])
                ratio = mine.value / peer.value
                cell += f", {ratio if mine.unit.endswith('/s') else 1 / ratio:.2f}"
            cells.append(cell)
        lines.append([name, *cells])
    return lines


def by_switch(file: str, pattern: str) -> list[list[str]]:
    """Return a table of an ablation: what each switch brings alone, and what it takes left out."""
    entries = read(RESULTS / file).entries
    sizes = list(dict.fromkeys(entry.key["batch_size"] for entry in entries))
    names = {ONE_ON: "alone", ONE_OFF: "left out"}
    lines = [["speed to", *(f"{names[f]}, batch {size}" for f in names for size in sizes)]]
    found: dict[str, dict[tuple[str, object], Entry]] = defaultdict(dict)
    for entry in entries:
        variant, family = str(entry.key["variant"]), str(entry.key["family"])
        family = ONE_ON if family == TOTAL else family
        if entry.ratio is None or "again" in variant:
            continue
        name = re.sub(r"^[+-] |^(?:persistent|batched)(?:, | - )", "", variant.removeprefix("+ "))
        found[name][family, entry.key["batch_size"]] = entry
    for name, at in found.items():
        if re.fullmatch(pattern or ".*", name):
            cells = [at.get((family, size)) for family in names for size in sizes]
            lines.append([name, *(ratio_of(cell) for cell in cells)])
    return lines


def by_part(file: str, pattern: str) -> list[list[str]]:
    """Return a table of a breakdown: the parts of a step by setting and batch size."""
    pattern, _, without = pattern.partition(" without ")
    entries = [e for e in read(RESULTS / file).select(part="time") if e.key["setting"] != without]
    steps = list(dict.fromkeys((e.key["setting"], e.key["batch_size"]) for e in entries))
    found = {(e.key["setting"], e.key["batch_size"], e.key["variant"]): e.median for e in entries}
    lines = [[entries[0].unit, *(f"{setting}, batch {size}" for setting, size in steps)]]
    for part in dict.fromkeys(str(e.key["variant"]) for e in entries):
        if re.fullmatch(pattern or ".*", part):
            cells = [found.get((*step, part)) for step in steps]
            lines.append([part, *("" if cell is None else shown(cell) for cell in cells)])
    return lines


def ratio_of(entry: Entry | None) -> str:
    """Return a ratio as a cell; ≈ where the spread hides the difference."""
    if entry is None or entry.ratio is None:
        return ""
    return f"{entry.ratio.median:.3g}" + "≈" * (entry.verdict == HIDDEN)


FORMS = {"table": by_row, "switches": by_switch, "parts": by_part}


def written(text: str) -> str:
    """Return a document with its tables as the results have them."""

    def table(found: re.Match[str]) -> str:
        form, file, pattern = found.groups()
        lines = FORMS[form](file, pattern)
        lines.insert(1, ["---"] * len(lines[0]))
        head = found[0].split("\n", 1)[0]
        return "\n".join([head, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    return TABLE.sub(table, text)


def draw_peers(path: Path) -> None:
    """Draw the speed of training against PyTorch, three networks on one GPU."""
    titles = {
        "tree-lstm": "Tree-LSTM 256, trees of SST",
        "var-lstm": "LSTM 512, sentences of PTB",
        "fixed-lstm": "LSTM 512, 64 words",
    }
    found = grid("peers_h200.json", ".*train")
    persistent = grid("h200/peers.json", ".*train")
    ways = {"batched": "o-", "torch": "s--", "torch-manual": "^:", "nn.LSTM": "d-."}
    names = {"torch": "PyTorch, batched by level", "torch-manual": "the same, backward by hand"}
    with figure(path, 1, len(titles), (9.0, 2.9)) as (axes,):
        for at, (suite, title) in zip(axes, titles.items(), strict=True):
            row = found[f"{suite}, train"]
            for way, style in ways.items():
                points = [(size, row[size][way].value) for size in sorted(row) if way in row[size]]
                if way == "batched":
                    label = "vertexrt, batched engine"
                else:
                    label = names.get(way, "PyTorch, nn.LSTM (cuDNN)")
                if points:
                    at.plot(*zip(*points, strict=True), style, color="0.15", ms=4, label=label)
            if more := persistent.get(f"{suite}, train"):
                points = [(size, more[size]["persistent"].value) for size in sorted(more)]
                label = "vertexrt, persistent engine"
                at.plot(*zip(*points, strict=True), "o-", color="tab:blue", ms=4, label=label)
            at.set_xscale("log", base=2)
            at.set_yscale("log")
            at.set_xticks([1, 16, 64, 256], ["1", "16", "64", "256"])
            at.set_xlabel("graphs in a batch")
            at.set_title(title, loc="left")
        axes[0].set_ylabel("graphs/s in training")
        handles: dict[str, object] = {}
        for at in axes:
            handles |= dict(zip(*reversed(at.get_legend_handles_labels()), strict=True))
        axes[0].figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=3)


def draw_timeline(path: Path) -> None:
    """Draw what two processors of a persistent step do, and when."""
    events = json.loads((RESULTS / "timeline_cpu.json").read_text(encoding="utf-8"))
    colors = {"eager": "0.85", "path": "tab:blue", "lazy": "0.65", "path'": "tab:orange"}
    colors |= {"final": "0.45", "wait": "white"}
    with figure(path, 1, 1, (9.0, 1.7)) as ((axes,),):
        for event in events["traceEvents"]:
            if event["ph"] == "X":
                kind = event["cat"]
                style = {"color": colors[kind], "hatch": "////" if kind == "wait" else ""}
                span, edge = (event["dur"], 0.7), {"edgecolor": "black", "linewidth": 0.3}
                axes.barh(event["tid"], *span, left=event["ts"], label=kind, **style, **edge)
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        kinds = [kind for kind in colors if kind in once]
        legend = [once[kind] for kind in kinds], kinds
        axes.figure.legend(*legend, loc="outside upper center", ncols=len(kinds))
        axes.set_yticks([0, 1], ["processor 0", "processor 1"])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("microseconds of a training step")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    figures = DOCS / "figures"
    draw_peers(figures / "speed-peers.png")
    draw_timeline(figures / "timeline.png")
    switches, parts = (RESULTS / "cpu" / f"{n}-tree-lstm.json" for n in ("ablation", "breakdown"))
    draw_ablation(read(switches), figures / "ablation-tree-lstm.png")
    draw_step_time(read(parts), figures / "breakdown-time-tree-lstm.png")
