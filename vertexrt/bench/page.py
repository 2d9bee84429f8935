"""`vertexrt bench report FOLDER`: all results in one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import html
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vertexrt.bench.figures.draw import draw
from vertexrt.bench.read_record import read
from vertexrt.bench.record import Entry, Record
from vertexrt.bench.run import say
from vertexrt.bench.text import COUNTS, number
from vertexrt.errors import DataError, message
from vertexrt.plain_files import write_atomically

NAME = "report.html"
STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-size: 12px; margin: 1em 0; display: block;
  overflow-x: auto; }
th, td { padding: 2px 8px; border-bottom: 1px solid #ccc; text-align: left; white-space: nowrap; }
td.n { text-align: right; }
img { max-width: 100%; }
pre { background: #f3f3f3; padding: 0.6em; overflow-x: auto; }
.hidden { color: #777; }
"""


def run(folder_name: str) -> Path:
    """Write the page; return its path.

    Figures are drawn anew; without matplotlib, those that lie beside the results are taken.

    Raises: DataError, when the folder holds no results.
    """
    folder = Path(folder_name)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(
            message(
                "report",
                f"{folder} holds no results",
                "a folder with files of `vertexrt bench`",
                "Run `vertexrt bench ablation --out FOLDER` first",
            )
        )
    sections = [_section(path, read(path)) for path in paths]
    title = f"vertexrt bench: {folder.resolve().name}"
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )
    out = folder / NAME
    write_atomically(out, page.encode("utf-8", "backslashreplace"))
    say(f"written: {out}")
    return out


def _section(path: Path, record: Record) -> str:
    parts = [f"<h2>{html.escape(path.stem)}</h2>"]
    if not record.complete:
        parts.append("<p><b>This run did not come to its end.</b></p>")
    parts.append(f"<pre>{html.escape(' '.join(record.command))}</pre>")
    m = record.machine
    machine = [record.date, str(m.get("processor", "")), f"{m.get('cores')} cores"]
    machine += [f"{m.get('threads')} threads", f"device {m.get('device')}"]
    if m.get("gpu"):
        machine.append(str(m["gpu"].get("name")))
    machine += [f"{n} {v}" for n, v in m.get("versions", {}).items()]
    machine.append(f"revision {m.get('revision')}")
    parts.append(f"<p>{html.escape(', '.join(machine))}</p>")
    parts += [f"<p>{html.escape(text)}</p>" for text in record.jobs.values()]
    if record.checks:
        worst = max(float(c["largest_difference"]) for c in record.checks)
        parts.append(
            f"<p>{len(record.checks)} comparisons before timing; largest relative difference "
            f"{worst:.1e}.</p>"
        )
    parts += [_image(p) for p in _figures(path, record)]
    parts.append(_table(record.entries))
    if record.missing:
        items = (
            f"<li>{html.escape(x['name'])}: {html.escape(x['because'])}</li>"
            for x in record.missing
        )
        parts.append(f"<p>Not available here:</p><ul>{''.join(items)}</ul>")
    return "\n".join(parts)


def _figures(path: Path, record: Record) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        drawn = [(p.stem, p.read_bytes()) for p in draw(record, Path(folder))]
    if drawn:
        return drawn
    beside = sorted(path.parent.glob(f"{path.stem}*.png"))
    return [(p.stem, p.read_bytes()) for p in beside]


def _image(figure: tuple[str, bytes]) -> str:
    name, content = figure
    data = base64.b64encode(content).decode("ascii")
    return f'<p><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></p>'


def _table(entries: Sequence[Entry]) -> str:
    names = list(dict.fromkeys(n for e in entries for n in e.key))
    counted = [n for n in COUNTS if any(n in e.counts for e in entries)]
    head = [*names, "median", "quartiles", "unit", "ratio", "against", "shows", *counted]
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(n)}</th>" for n in head) + "</tr>"]
    for e in entries:
        cells = [(str(e.key.get(n, "")), False) for n in names]
        quartiles = f"{number(e.quartiles[0])} \u2013 {number(e.quartiles[1])}"
        cells += [(number(e.median), True), (quartiles, True), (e.unit, False)]
        ratio = ""
        if e.ratio is not None:
            ratio = f"{e.ratio.median:.2f} ({e.ratio.low:.2f} \u2013 {e.ratio.high:.2f})"
        cells += [(ratio, True), (e.against or "", False), (e.verdict or "", False)]
        cells += [(number(e.counts[n]) if n in e.counts else "", True) for n in counted]
        row = "".join(
            f"<td{' class=n' if right else ''}>{html.escape(text)}</td>" for text, right in cells
        )
        faint = ' class="hidden"' if e.verdict and e.verdict.startswith("hidden") else ""
        lines.append(f"<tr{faint}>{row}</tr>")
    return "\n".join([*lines, "</table>"])
