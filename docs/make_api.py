"""Write docs/api.md: every public name, from its docstring and docs/api_examples.

python docs/make_api.py
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vertexrt as vrt
from vertexrt.ir.program import Domain

DOCS = Path(__file__).resolve().parent
CALLED = ("vrt.Network", "vrt.types.Plan")  # whose calls have a place of their own
EXAMPLES, PAGE = DOCS / "api_examples", DOCS / "api.md"

# In reading order. Ops are the functions of these modules; the rest of `vrt` is below.
OPS = {"Elementwise": "elementwise", "Vectors and children": "functional"}
GROUPS = {
    "Functions": "VertexFunction Model Parameter compile",
    "Networks": "Network types.Outputs types.Record types.Gradients types.Plan types.Loss",
    "Graphs": "InputGraph GraphBatch Rows",
    "Optimizers": "Optimizer SGD Adagrad Adam AdamW RMSprop Lion",
    "Averages and carried states": "ExponentialMovingAverage CarriedState",
    "Checkpoints": "save_checkpoint load_checkpoint types.Checkpoint",
    "Version": "__version__",
}
MODULES = {"random": "Ops: random numbers", "losses": "Ops: losses"}
MODULES |= {"nn": "Cells", "data": "Data", "schedules": "Schedules", "init": "Initializers"}
MODULES |= {"parallel": "Several processes", "errors": "Errors", "bench": "Ablations"}

# Rows of the table of ops that are written with signs.
OPERATORS = {
    "x + y": "sum; `-`, `*` and `/` likewise",
    "x * a": "a number stands for all elements",
    "-x": "negative",
    "x ** 2": "power by a number: whole ones of any base, others of a positive one",
    "x == y": "1.0 where it holds, else 0.0; `!=`, `<`, `<=`, `>`, `>=` likewise",
    "w @ x": "product with a matrix, a parameter [M, N]",
    "w.T @ z": "product with its transpose",
    "x[k]": "an element; of an integer that is computed too",
    "x[:n]": "a part",
}
# What functions are called with in the table; `f(x)` is not listed.
CALLS = {
    **dict.fromkeys(("maximum", "minimum", "straight_through", "squared_error"), "x, y"),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "hinge_loss", "dot", "concat"), "x, y"),
    **dict.fromkeys(("cross_entropy", "multi_margin_loss"), "x, k"),
    **dict.fromkeys(("uniform", "normal"), "N, x, y"),
    **dict.fromkeys(("zeros", "ones"), "n"),
    "clip": "x, 0.0, 1.0",
    "where": "x > y, x, y",
    "embed": "t, k",
    "split": "x, 2",
    "stack": "a, a",
    "full": "n, 0.5",
    "block_diagonal": "u, x",
    "dropout": "x, 0.1",
}
OVER_CHILDREN = ("sum", "max", "mean", "softmax", "log_softmax", "logsumexp")
SECTIONS = ("Args", "Returns", "Raises", "Source", "Attributes", "Parameters")
AXES = {2: "2", 3: "M", 4: "N / 2", 5: "n", 6: "B M", 7: "E", 8: "N", 16: "2 N"}
SOURCE = re.compile(r"[A-Z][a-z]+(?:, [A-Z][a-z]+)*(?: and [A-Z][a-z]+| et al\.)? (?:19|20)\d\d")


class Entry(NamedTuple):
    """A public name: how it is called by users, what it is, and which kind of member."""

    name: str
    value: Any
    kind: str  # "class", "function", "value", or of a class "method", "property"


def examples() -> dict[str, str]:
    """Return the code of each example by the names that it shows; `given` is what all have.

    In each file an example begins after the line `#:` with the names that it shows.
    """
    found: dict[str, str] = {}
    texts = [path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.py"))]
    for block in [block for text in texts for block in text.split("\n#: ")[1:]]:
        names, _, code = block.partition("\n")
        for name in names.split(", "):
            assert name not in found, f"two examples of {name}"
            found[name] = code.strip()
    return found


def entries() -> dict[str, list[Entry]]:
    """Return every public name by the title of its group, in the order of the examples.

    Members follow their class; what has no example comes last.
    """
    groups = {title: [f"vrt.{name}" for name in names.split()] for title, names in GROUPS.items()}
    for title, module in OPS.items():
        home = f"vertexrt.api.{module}"
        every = [f"vrt.{n}" for n in vrt.__all__], [f"vrt.nn.{n}" for n in vrt.nn.__all__]
        of_module = [name for names in every for name in names if _home(value_of(name)) == home]
        groups[f"Ops: {title.lower()}"] = of_module
    for module, title in MODULES.items():
        names = getattr(vrt, module).__all__
        of_module = [f"vrt.{module}.{name}" for name in names]
        listed = [name for group in groups.values() for name in group]
        groups[f"{title}: vrt.{module}"] = [name for name in of_module if name not in listed]
    order = {name: place for place, name in enumerate(examples())}
    return {
        title: [each for name in ordered(names, order) for each in with_members(name, order)]
        for title, names in groups.items()
    }


def ordered(names: Iterable[str], order: dict[str, int]) -> list[str]:
    """Sort names by the places of their examples; names without one keep their order."""
    return sorted(names, key=lambda name: order.get(name, len(order)))


def value_of(name: str) -> Any:
    """Return what a public name stands for."""
    value: Any = vrt
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def with_members(name: str, order: dict[str, int]) -> Iterator[Entry]:
    """Go through a name and the public methods and properties of a class of ours."""
    value = value_of(name)
    if not isinstance(value, type):
        yield Entry(name, value, "function" if callable(value) else "value")
        return
    yield Entry(name, value, "class")
    made = (types.FunctionType, classmethod, staticmethod, property)
    homes = [*(base for base in value.__bases__ if base.__name__.startswith("_")), value]
    members = {
        f"{name}.{member}": "property" if isinstance(each, property) else "method"
        for home in homes
        for member, each in vars(home).items()
        if isinstance(each, made)
        and (not member.startswith("_") or (member == "__call__" and name in CALLED))
    }
    for member in ordered(members, order):
        yield Entry(member, getattr(value, member.rpartition(".")[2]), members[member])


def _home(value: object) -> str:
    return str(getattr(value, "__module__", ""))


def heading(entry: Entry) -> str:
    """Return a name with what it takes: `vrt.compile(function, *, device='auto', ...)`."""
    if entry.kind in ("property", "value"):
        return entry.name
    if entry.kind == "class" and issubclass(entry.value, Exception):
        return f"{entry.name}(message)"
    parameters = inspect.signature(entry.value).parameters.values()
    shown = [each.replace(annotation=each.empty) for each in parameters if each.name != "self"]
    text = str(inspect.Signature(shown))
    return entry.name + re.sub(r"<function (\w+) at 0x[0-9a-f]+>|<factory>", r"...", text)


def text_of(entry: Entry) -> str:
    """Return the docstring as Markdown: its sections in bold, what is indented as it is."""
    if entry.kind == "value":
        return f"A `{type(entry.value).__name__}`."
    doc = inspect.getdoc(entry.value)
    assert doc, f"{entry.name} has no docstring"
    lines, section, indents = [], "", 4
    for line in doc.split("\n"):
        title = re.match(r"([A-Z][A-Za-z, ]*):($| )", line)
        if title and title[1].split(",")[0] in SECTIONS:
            section = title[1]
            lines += ["", f"**{section}:**{line[title.end() - 1 :].rstrip(':')}"]
        elif (
            section
            and (item := re.match(r"( +)(\w+(?:, \w+)*):( .*|$)", line))
            and (len(item[1]) in (4, indents))
        ):
            lines.append(f"{item[1][4:]}- `{item[2]}`:{item[3]}")
            if len(item[1]) == 4:
                indents = 4 if item[3] else 8
        else:
            lines.append(line.strip() if section else line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


class Op(vrt.VertexFunction):
    """One op of the table, evaluated to see what shape it gives and where its gradient goes."""

    def __init__(self, call: str) -> None:
        super().__init__(state={"h": 8})
        self.call, self.shape = call, ""
        shapes = {"x": (8,), "y": (8,), "c": (8,), "z": (3,), "p": (1,)}
        for name, shape in {**shapes, "w": (3, 8), "u": (2, 3, 4), "t": (5, 7)}.items():
            setattr(self, name, vrt.Parameter(shape, init=_between))

    def forward(self) -> None:
        kids, p = self.gather_all(), self.parameters()
        names = {**p, "vrt": vrt, "kids": kids.h, "n": 5, "N": 8, "a": p["p"][0]}
        names["k"] = self.pull_index("k")
        value = eval(self.call, names)
        value = value[0] if isinstance(value, list) else value
        axes = ", ".join(AXES[extent] for extent in value.shape)
        per_child = value.type.domain == Domain.EDGE
        self.shape = f"[{axes}]" + (" for each child" if per_child else "")
        self.push("out", vrt.sum(value * value) if per_child else value)
        self.scatter(h=p["c"] * names["k"])


def _between(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    return rng.uniform(0.2, 0.8, shape)


def row(call: str, what: str, doc: str = "", link: str = "") -> str:
    """Return a row of the table of ops."""
    function = Op(call)
    net = vrt.compile(function, device="reference", seed=1)
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], {"k": [1, 2, 3]})
    run = net.record(vrt.GraphBatch.from_graphs([graph]))
    out = run.outputs["out"]
    run.backward({"out": out * 0.0 + 1.0 + np.random.default_rng(0).random(out.shape)})
    names = {"c": "kids", "p": "a"}
    to = [names.get(n, n) for n, d in net.gradients.items() if np.any(np.abs(d) > 1e-6)]
    gradient = ", ".join(f"`{name}`" for name in to) or "none"
    found = dict.fromkeys(SOURCE.findall(" ".join(doc.split())))
    shown = f"[`{call}`](#{link})" if link else f"`{call}`"
    return f"| {shown} | {what} | {function.shape} | {gradient} | {'; '.join(found)} |"


def ops_table(groups: dict[str, list[Entry]]) -> list[str]:
    """Return the table of all ops, which evaluates each of them."""
    lines = ["| op | what | shape | gradient to | source |", "| --- | --- | --- | --- | --- |"]
    lines += [row(call, what) for call, what in OPERATORS.items()]
    for title, group in groups.items():
        for entry in group if title.startswith("Ops") else ():
            doc, name = inspect.getdoc(entry.value) or "", entry.name.rpartition(".")[2]
            what = re.split(r"\.\n|\.$|\. [A-Z]", doc.removeprefix("Return "), maxsplit=1)[0]
            what, link = " ".join(what.split()), anchor(entry.name)
            lines.append(row(f"{entry.name}({CALLS.get(name, 'x')})", what, doc, link))
            if name in OVER_CHILDREN:
                call = f"{entry.name}(kids, axis='children')"
                lines.append(row(call, "the same, over the children", "", link))
    return lines


def anchor(name: str) -> str:
    """Return the link target of a heading: names as they are, without points."""
    return re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


INTRODUCTION = """# Every public name

Written by `python docs/make_api.py` from docstrings and from `docs/api_examples`; do not edit it
by hand. The [guide](guide/functions.md) is for reading, this page for looking up.

Examples run as they stand, one after another, after the lines below. These give `vrt`, `np`, a
`graph`, a `batch` of two of it, a network `net`, an `optimizer`, a `folder` for files, and
`at_root`, which evaluates a function of values.
"""
TABLE = """
Shapes are those of one vertex: x and y are vectors [N], z is [M], a a number, n and N plain
numbers, k an integer pull, w a parameter [M, N], t one of [rows, E], u one of [B, M, N / 2] (here
B = 2), kids a vector for each child. `gradient to` says which operands a gradient reaches, found by
running backward.
"""


def page() -> str:
    """Return the text of docs/api.md."""
    shown, groups = examples(), entries()
    lines = [INTRODUCTION, "```python", shown["given"], "```", "", "## Contents", ""]
    for title, group in groups.items():
        top = [entry.name for entry in group if not is_member(entry)]
        links = ", ".join(f"[`{name.split('.')[-1]}`](#{anchor(name)})" for name in top)
        lines.append(f"- [{title}](#{anchor(title)}): {links}")
    lines += ["- [Table of all ops](#table-of-all-ops)", ""]
    first: dict[str, str] = {}  # the name that an example stands at, by its code
    for title, group in groups.items():
        lines += [f"## {title}", ""]
        for entry in group:
            level = "####" if is_member(entry) else "###"
            lines += [f"{level} `{entry.name}`", "", f"`{heading(entry)}`", "", text_of(entry), ""]
            code = shown.get(entry.name, "")
            home = first.setdefault(code, entry.name)
            if code and home != entry.name:
                lines += [f"Example: that of [`{home}`](#{anchor(home)}).", ""]
            elif code:
                lines += ["```python", code, "```", ""]
    lines += ["## Table of all ops", TABLE, *ops_table(groups)]
    return "\n".join(lines) + "\n"


def is_member(entry: Entry) -> bool:
    """Tell whether a name is that of a method or property, under its class."""
    return entry.kind in ("method", "property")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
