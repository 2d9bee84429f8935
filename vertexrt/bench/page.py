"""`vertexrt bench report FOLDER`: all results in one HTML page that needs nothing else."""

import base64
from html import escape
from pathlib import Path

from vertexrt.bench.figures import draw
from vertexrt.bench.record import read, table
from vertexrt.bench.run import say
from vertexrt.errors import DataError
from vertexrt.plain_files import write_atomically

NAME = "report.html"
STYLE = """
body { font: 15px/1.45 sans-serif; max-width: 110em; margin: 2em auto; padding: 0 1em; }
img { max-width: 100%; }
pre { background: #f3f3f3; padding: 0.6em; overflow-x: auto; font-size: 12px; }
"""


def run(folder_name: str) -> Path:
    """Write the page; return its path.

    Figures of ablations and breakdowns are drawn into the folder anew; for other results, and
    without matplotlib, the PNG files that lie there are taken.

    Raises: DataError, when the folder holds no results.
    """
    folder = Path(folder_name)
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError.at(
            "report",
            f"{folder} holds no results",
            "a folder with files of `vertexrt bench`",
            "Run `vertexrt bench ablation --out FOLDER` first",
        )
    parts: list[str] = []
    for path in paths:
        record = read(path)
        parts.append(f"<h2>{escape(path.stem)}</h2>")
        if not record.complete:
            parts.append("<p><b>This run did not come to its end.</b></p>")
        parts.append(f"<pre>{escape(' '.join(record.command))}</pre>")
        machine = ", ".join(f"{name}: {value}" for name, value in record.machine.items())
        paragraphs = [f"{record.date}, {machine}", *record.jobs.values()]
        if record.checks:
            worst = max(float(c["largest_difference"]) for c in record.checks)
            said = f"comparisons before timing; largest relative difference {worst:.1e}."
            paragraphs.append(f"{len(record.checks)} {said}")
        parts += [f"<p>{escape(text)}</p>" for text in paragraphs]
        drawn = draw(record, path)
        for image in [drawn] if drawn else sorted(path.parent.glob(f"{path.stem}*.png")):
            data = base64.b64encode(image.read_bytes()).decode("ascii")
            source = f"data:image/png;base64,{data}"
            parts.append(f'<p><img alt="{escape(image.stem)}" src="{source}"></p>')
        if record.entries:
            parts.append(f"<pre>{escape(table(record.entries))}</pre>")
        if record.missing:
            items = "".join(
                f"<li>{escape(lack['name'])}: {escape(lack['because'])}</li>"
                for lack in record.missing
            )
            parts.append(f"<p>Not available here:</p><ul>{items}</ul>")
    title = escape(f"vertexrt bench: {folder.resolve().name}")
    sections = "\n".join(parts)
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n{sections}\n</body></html>\n"
    )
    out = folder / NAME
    write_atomically(out, page.encode("utf-8", "backslashreplace"))
    say(f"written: {out}")
    return out
