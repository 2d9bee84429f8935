"""`vertexrt bench report FOLDER`: all results in one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import tempfile
from html import escape
from pathlib import Path

from vertexrt.bench.figures.draw import draw
from vertexrt.bench.read_record import read
from vertexrt.bench.record import Results
from vertexrt.bench.run import say
from vertexrt.bench.text import table
from vertexrt.errors import DataError, message
from vertexrt.plain_files import write_atomically

NAME = "report.html"
STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }
img { max-width: 100%; }
pre { background: #f3f3f3; padding: 0.6em; overflow-x: auto; font-size: 12px; }
"""


def run(folder_name: str) -> Path:
    """Write the page; return its path.

    Figures of ablations and breakdowns are drawn anew; for other results, and without matplotlib,
    the PNG files in the same folder are taken.

    Raises: DataError, when the folder holds no results.
    """
    folder = Path(folder_name)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        got, expected = f"{folder} holds no results", "a folder with files of `vertexrt bench`"
        action = "Run `vertexrt bench ablation --out FOLDER` first"
        raise DataError(message("report", got, expected, action))
    sections = "\n".join(_section(path, read(path)) for path in paths)
    title = escape(f"vertexrt bench: {folder.resolve().name}")
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{sections}\n</body></html>\n"
    )
    out = folder / NAME
    write_atomically(out, page.encode("utf-8", "backslashreplace"))
    say(f"written: {out}")
    return out


def _section(path: Path, record: Results) -> str:
    parts = [f"<h2>{escape(path.stem)}</h2>"]
    if not record.complete:
        parts.append("<p><b>This run did not come to its end.</b></p>")
    parts.append(f"<pre>{escape(' '.join(record.command))}</pre>")
    paragraphs = [_machine(record), *record.jobs.values()]
    if record.checks:
        worst = max(float(c["largest_difference"]) for c in record.checks)
        count = len(record.checks)
        paragraphs.append(
            f"{count} comparisons before timing; largest relative difference {worst:.1e}."
        )
    parts += [f"<p>{escape(text)}</p>" for text in paragraphs]
    parts += [_image(name, content) for name, content in _figures(path, record)]
    if record.entries:
        parts.append(f"<pre>{escape(table(record.entries))}</pre>")
    if record.missing:
        items = "".join(
            f"<li>{escape(lack['name'])}: {escape(lack['because'])}</li>" for lack in record.missing
        )
        parts.append(f"<p>Not available here:</p><ul>{items}</ul>")
    return "\n".join(parts)


def _machine(record: Results) -> str:
    m = record.machine
    said = [record.date, str(m.get("processor", "")), f"{m.get('cores')} cores"]
    said += [f"{m.get('threads')} threads", f"device {m.get('device')}"]
    if m.get("gpu"):
        said.append(str(m["gpu"].get("name")))
    said += [f"{n} {v}" for n, v in m.get("versions", {}).items()]
    return ", ".join([*said, f"revision {m.get('revision')}"])


def _figures(path: Path, record: Results) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        drawn = draw(record, Path(folder) / path.name)
        paths = [drawn] if drawn else sorted(path.parent.glob(f"{path.stem}*.png"))
        return [(p.stem, p.read_bytes()) for p in paths]


def _image(name: str, content: bytes) -> str:
    data = base64.b64encode(content).decode("ascii")
    return f'<p><img alt="{escape(name)}" src="data:image/png;base64,{data}"></p>'
