"""The site, of the Markdown files of this folder: `sphinx-build -W -b html docs site`."""

import os.path
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

project = html_title = "vertexrt"
html_theme = "furo"
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["api_examples"]
myst_heading_anchors = 3
highlight_language = "none"  # of blocks that name none: commands, and what they print
default_role = "literal"  # docstrings write `x` for code
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # Members of private bases are shown with the class; those of these bases are not.
    "inherited-members": "Cell, Mapping, Matrix, Operators, Optimizer, VertexrtError, "
    "BaseException, AttributeError, tuple",
}
autodoc_typehints = "none"  # docstrings say shapes and dtypes, which types do not

# Pages that show a document from outside this folder; what they say themselves follows it.
SHOWN = {
    "index": "README.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/changelog": "CHANGELOG.md",
    "project/benchmarks": "benchmarks/README.md",
    "project/datasets": "datasets/README.md",
}
PAGES = {ROOT / document: DOCS / f"{page}.md" for page, document in SHOWN.items()}
SECTIONS = "Args|Returns|Raises|Source|Attributes|Parameters"


def examples() -> dict[str, str]:
    """Return the code of each example of `api_examples` by the names that it shows, to be run so.

    An example begins after a line `#:` with these names; `given` is what all have.
    """
    first = ("given", "networks", "graphs")  # the others read what these define
    files = {path.stem: path.read_text("utf-8") for path in (DOCS / "api_examples").glob("*.py")}
    texts = [files.pop(name) for name in first] + [files[name] for name in sorted(files)]
    found: dict[str, str] = {}
    for block in [block for text in texts for block in text.split("\n#: ")[1:]]:
        names, _, code = block.partition("\n")
        for name in names.split(", "):
            assert name not in found, f"two examples of {name}"
            found[name] = code.strip()
    return found


def show_docstring(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Turn a docstring into reStructuredText, in place, and add the example of its name."""
    shown: list[str] = []
    section, indent = False, 0
    for line in lines:
        if not section and line.startswith("    ") and not (shown and shown[-1].startswith("    ")):
            shown += [".. code-block:: python", ""]
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*_|\\])", r"\\\1", part) for part in parts[::2]]
        text = "`".join(parts)
        if title := re.match(rf"((?:{SECTIONS})[^:`]*):(?= |$)", line):
            shown += ["", f"**{title[1]}:**{text[title.end() :]}"]
            section, indent = True, 0
        elif section and (item := re.match(r" {4,8}(\w+(?:, \w+)*):( .*|$)", line)):
            indent = len(line) - len(line.lstrip()) - 4
            shown += ["", f"{' ' * indent}- `{item[1]}`:{text.partition(':')[2]}"]
            indent += 2
        else:
            shown.append(" " * indent + text.strip() if section else text)
    if code := app.examples.get(name.replace("vertexrt.", "vrt.", 1)):
        shown += ["", ".. code-block:: python", "", *(f"   {line}" for line in code.split("\n"))]
    lines[:] = [*shown, ""]


def show_page(app: Any, page: str, source: list[str]) -> None:
    """Put a document from outside this folder into its page, and lead links to what the site has.

    Other files of the repository are named, and not linked to. The table of contents of the guide
    are the lists on its first page.
    """
    document = ROOT / SHOWN[page] if page in SHOWN else DOCS / f"{page}.md"
    folder = (DOCS / page).parent

    def lead(link: re.Match[str]) -> str:
        path, mark, section = link[2].partition("#")
        target = (document.parent / path).resolve()
        if not path or "://" in path:
            return link[0]
        target = PAGES.get(target, target)
        if not target.is_relative_to(DOCS):
            name = f"`{target.relative_to(ROOT)}`"
            return name if link[1].strip("`/") in name else f"{link[1]} ({name})"
        return f"[{link[1]}]({os.path.relpath(target, folder)}{mark}{section})"

    links = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
    text = links.sub(lead, document.read_text("utf-8"))
    own = source[0].partition("\n```")
    source[0] = text + "".join(own[1:]) if page in SHOWN else text
    if page == "guide/README":
        pages = re.findall(r"^(?:\d+\.|-) \[.*?\]\(([\w-]+)\.md\)", text, re.MULTILINE)
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def setup(app: Any) -> None:
    """Connect what reads docstrings and pages."""
    app.examples = examples()
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("source-read", show_page)
