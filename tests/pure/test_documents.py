"""What the documents name exists: files, folders, modules and names in them, links, sections."""

import importlib.util
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import pages
from vertexrt.data import catalogue

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "datasets" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
ENDINGS = r"(?:py|cuh|cu|toml|md|json|txt|png|svg)"
IN_TICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
A_PATH = re.compile(rf"[\w.-]+(?:/[\w.-]+)*\.{ENDINGS}|(?:[\w.-]+/)+")
A_NAME = re.compile(r"(?<![\w./-])(?:vertexrt|benchmarks|tests)(?:\.\w+)+")
A_WORD = re.compile(r"(?<![\w./])(?:[A-Za-z]+_\w+|[A-Z][a-z]+[A-Z]\w+)(?![\w/])(?!\.\w)")
NOT_OURS = {  # of data sets, of runs and of other libraries
    "vrt_NAME", "last.safetensors", "metrics.jsonl", "config.json", "curve.png", "confusion.png",
    "model.safetensors", "vocabularies.json", "A.json", "B.json",
    "train.txt", "dev.txt", "test.txt", "valid.txt",
    "ptb.train.txt", "ptb.valid.txt", "ptb.test.txt",
    "HeteroConv", "HeteroGraphConv", "MessagePassing",
    "edge_softmax", "prop_nodes_topo", "update_all",
}  # fmt: skip
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@cache
def names_of_files() -> frozenset[str]:
    """Return the last part of the path of every file that a document may call by it."""
    folders = ("vertexrt", "tests", "benchmarks", "docs", "datasets")
    return frozenset(path.name for folder in folders for path in (ROOT / folder).rglob("*.*"))


def is_there(path: str, document: Path) -> bool:
    """Tell whether a path leads to something from where readers may take it to start."""
    starts = (ROOT, ROOT / "vertexrt", document.parent)
    if any((start / path).exists() for start in starts):
        return True
    return "/" not in path and path in names_of_files() | NOT_OURS


def resolves(name: str) -> bool:
    """Tell whether a dotted name is a module, or a public name in one."""
    path = ROOT.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True  # some want PyTorch to be imported
    if ".torch." in name and importlib.util.find_spec("torch") is None:
        return True  # where PyTorch is, it is looked at
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@each_document
def test_what_is_named_exists(document: Path) -> None:
    """Paths, dotted names, links, and words in ticks with an underscore or two capitals."""
    text = document.read_text(encoding="utf-8")
    words = set(IN_TICKS.findall(text))
    paths = {word for word in words if A_PATH.fullmatch(word)}
    names = {name for word in words - paths for name in A_WORD.findall(word)}
    missing = {path for path in paths if not is_there(path, document)}
    missing |= {name for name in A_NAME.findall(text) if not resolves(name)}
    missing |= names - names_in_code() - NOT_OURS
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    targets = set(re.findall(r"\]\((?!https?:)([^)#\s]+)", text))
    missing |= {target for target in targets if not (document.parent / target).exists()}
    assert not missing, f"{document.name} names what does not exist: {sorted(missing)}"


@cache
def names_in_code() -> frozenset[str]:
    """Return every word of the sources, those of tests and of the device included."""
    files = [path for folder in ("vertexrt", "tests", "benchmarks") for path in sources(folder)]
    texts = (path.read_text(encoding="utf-8") for path in files)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def sources(folder: str) -> list[Path]:
    """List the files of a folder that hold code."""
    return [p for p in (ROOT / folder).rglob("*.*") if p.suffix in (".py", ".cuh", ".cu", ".h")]


def test_sections_that_other_documents_name_exist() -> None:
    for document in DOCUMENTS:
        text = " ".join(document.read_text(encoding="utf-8").split())
        for target, section in re.findall(r"\]\(([\w./]+\.md)\),? section (\d+)", text):
            headings = (document.parent / target).read_text(encoding="utf-8")
            assert re.search(rf"^## {section}\. ", headings, re.MULTILINE), (document, section)


@pytest.mark.parametrize("document", pages.PAGES, ids=lambda path: path.stem)
def test_tables_are_what_the_results_say(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert text == pages.written(text), "run python -m benchmarks.pages"


def test_documents_are_short() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in DOCUMENTS}
    assert lines[ROOT / "README.md"] <= 120
    assert lines[ROOT / "docs" / "all-of-vertexrt.md"] <= 160
    assert sum(lines[path] for path in DOCUMENTS if path.parent == ROOT / "docs") <= 1620


def test_every_data_set_has_a_card() -> None:
    text = (ROOT / "datasets" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| .+?\]\((\S+\.md)\)", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(entry.name for entry in catalogue())
    cards = {path.name for path in (ROOT / "datasets").glob("*.md")} - {"README.md"}
    assert {card for _, card in rows} == cards
