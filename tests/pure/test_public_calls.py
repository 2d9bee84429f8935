"""Every public name, called with what it does not take: an error of ours, with its form of text.

A row of the table is calls with holes. `odd` and `other` stand for everything in ODD; in calls that
a forward() may do, they stand for all that it computes with, too, and `value` for that alone. A new
public name needs a row.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.bodies import WithBody, left_over, network_of
from tests.messages import FORM, table
from vertexrt.errors import VertexrtError
from vertexrt.ir.updates import OPTIMIZERS as ROWS

pytestmark = pytest.mark.filterwarnings("ignore")  # of what NumPy makes of odd operands

ODD: list[Any] = [
    *(None, "x", b"x", "children", "elements", [1.0], (1, 2), {}, 1, -1, 2.5, True, float("nan")),
    *(10**400, 1j, np.float32(1), np.ones(3), np.ones((2, 2)), np.array("a")),
    *(np.datetime64("2020-01-01"), slice(1), object(), int, WithBody, WithBody(), left_over()),
    *(vrt.Parameter((3,)), vrt.SGD, vrt.SGD(0.1)),
]


def values(f: Any) -> list[Any]:
    """Return what a forward() computes with, of every kind."""
    kids, first = f.gather_all(), f.gather(0)
    integer, matrix = f.pull_index("i"), f.pull("m", shape=(2, 2))
    made = [f.b, f.w, f.b * 1.0, vrt.sum(f.b), first, first.h, kids, kids.h, integer, matrix]
    return [*made, vrt.Parameter((3,))]


def scatter(k: int) -> None:
    """Scatter the k-th of all, which a function does once."""

    def body(f: Any) -> None:
        every = [*values(f), *ODD]
        x = every[k % len(every)]
        f.scatter(c=x, h=x)

    WithBody(body).trace()


class Speaker(vrt.VertexFunction):
    """Say word 0 after each word."""

    def __init__(self) -> None:
        super().__init__(state={})
        self.next = vrt.Parameter((2, 2), vrt.init.constant([[1.0, 0.0], [1.0, 0.0]]))

    def forward(self) -> None:
        self.push("logits", vrt.embed(self.next, self.pull("word")))


def model_with(part: Any) -> vrt.Model:
    found = vrt.Model()
    vars(found)["part"] = part
    return found


def options(call: str, *names: str) -> list[str]:
    """Give a call, which ends in an option, each of some options."""
    return [f"{call}{name}=odd)" for name in names]


ONE = "abs argmax cos erf exp floor log ones relu sigmoid sin sqrt stack stop_gradient tanh"
TWO = "concat dot embed full maximum minimum outer repeat split straight_through tile"
REDUCTIONS = "cumsum logsumexp log_softmax max mean prod softmax sum"
ACTIVATIONS = {
    **dict.fromkeys(("silu", "softplus"), "odd"),
    **dict.fromkeys(("block_diagonal", "elu", "gelu", "leaky_relu"), "odd, other"),
    "zoneout": "odd, other, 0.5",
}

# What a forward() may call; it is called outside of one, too.
IN_FORWARD: dict[str, list[str]] = {
    **{name: [f"vrt.{name}(odd)"] for name in ONE.split()},
    **{name: [f"vrt.{name}(odd, other)"] for name in TWO.split()},
    "sort": ["vrt.sort(odd)", "vrt.sort(odd, descending=other)"],
    **{name: [f"vrt.{name}(odd, axis=other)"] for name in REDUCTIONS.split()},
    **{name: [f"vrt.{name}(odd, other, odd)"] for name in ("clip", "reshape", "where")},
    "zeros": ["vrt.zeros(odd)"],
    "top_k": ["vrt.top_k(odd, other)", "vrt.top_k(odd, 1, axis=other)"],
    "losses": [f"vrt.losses.{name}(odd, other)" for name in vrt.losses.__all__],
    "random": [f"vrt.random.{name}(odd, other, odd)" for name in vrt.random.__all__],
    "activations": [f"vrt.nn.{name}({given})" for name, given in ACTIVATIONS.items()],
}
OPERATORS = ["+", "-", "*", "/", "**", "@", "==", "!=", "<", "<=", ">", ">=", "%", "//", "&", "|"]
METHODS: list[str] = [
    *(f"value {sign} odd" for sign in OPERATORS),
    *(f"odd {sign} value" for sign in OPERATORS),
    *("-value", "abs(value)", "float(value)", "int(value)", "len(value)", "bool(value)"),
    *("list(value)", "~value", "operator.index(value)", "np.asarray(value)", "np.tanh(value)"),
    *("np.sum(value)", "repr(value)", "str(value)", "hash(value)", "value[odd]", "odd in value"),
    *(
        "f.gather(odd)",
        "f.present(odd)",
        "f.pull(odd)",
        "f.count_children(odd)",
        "elsewhere.pull(odd)",
    ),
    *("elsewhere.gather(odd)", 'f.pull("p", shape=odd)', 'f.pull("q", dtype=odd)'),
    *("f.push(odd, f.b)", 'f.push(f"push {next(count)}", odd)'),
]
CELLS = sorted(set(vrt.nn.__all__) - {"Cell", *ACTIVATIONS})
SIZES = dict.fromkeys(("NaryTreeLSTMCell", "ChainConv"), "odd, other, 2")
UPDATES = ("weight_decay", "clip_norm", "clip_value", "groups")
TABLE: dict[str, list[str]] = {
    name: calls.split("\n") for name, calls in table(__file__, "TABLE", "\n").items()
} | {
    "bench": [
        f"compiled(passes=vrt.bench.Passes({field.name}=odd))"
        for field in dataclasses.fields(vrt.bench.Passes)
    ],
    **{
        row.title: [
            f"vrt.{row.title}(odd)",
            *options(f"vrt.{row.title}(0.1, ", *UPDATES, *(each.name for each in row.options)),
            f"vrt.{row.title}(0.1).update(odd)",
            f"vrt.{row.title}(0.1).step(odd)",
            f'vrt.{row.title}(0.1, groups={{"w": {{"lr": odd, "frozen": odd}}}})',
        ]
        for row in ROWS
    },
    "nn": [
        *(f"vrt.nn.{name}({SIZES.get(name, 'odd, other')})" for name in CELLS),
        *(
            f"vrt.nn.{name}(2, 3, odd)"
            for name in CELLS
            if name
            not in (
                "Embedding",
                "LayerNorm",
                "RMSNorm",
                "MultiHeadAttention",
                "ChildSumTreeLSTMCell",
            )
        ),
    ],
}

# Checked where their subject is, or made by vertexrt alone.
ELSEWHERE = {"__version__", "errors", "load_checkpoint", "save_checkpoint", "types"}


def attempt(codes: list[str], pool: list[Any], names: dict[str, Any]) -> None:
    """Do calls with all that fills their holes; an error must be ours and say what to do."""
    fills = {"odd": pool, "other": pool, "value": names.get("made", []), "k": range(50)}
    for code in codes:
        call = compile(code, code, "eval")
        holes = [hole for hole in fills if re.search(rf"\b{hole}\b", code)]
        for filled in itertools.product(*(fills[hole] for hole in holes)):
            names.update(zip(holes, filled, strict=True))
            try:
                eval(call, names)
            except VertexrtError as error:
                text = str(error)
                assert FORM.fullmatch(text), (code, filled, text)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    def compiled(**options: Any) -> vrt.Network:
        return vrt.compile(WithBody(), **{"device": "reference", **options})

    chain = vrt.InputGraph.chain(2)
    word = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(1, {"word": [1]})])
    speaker = vrt.compile(Speaker(), device="reference")
    found = {"operator": operator, "rates": vrt.schedules, "compiled": compiled}
    found |= {"chain": chain, "batch": vrt.GraphBatch.from_graphs([chain]), "net": network_of()}
    found |= {"word": word, "speaker": speaker, "decoder": vrt.Decoder(speaker, word)}
    return {**globals(), **found, "elsewhere": WithBody()}


def test_every_public_name_is_called() -> None:
    assert {*TABLE, *IN_FORWARD} - {"activations"} | ELSEWHERE == set(vrt.__all__)


@pytest.mark.parametrize("name", TABLE)
def test_odd_arguments_are_errors_of_ours(name: str, names: dict[str, Any]) -> None:
    attempt(TABLE[name], ODD, names)


@pytest.mark.parametrize("name", [*IN_FORWARD, "methods"])
def test_odd_operands_are_errors_of_ours(name: str, names: dict[str, Any]) -> None:
    def body(f: Any) -> None:
        names.update(f=f, made=values(f), count=itertools.count())
        attempt(IN_FORWARD.get(name, METHODS), [*names["made"], *ODD], names)

    attempt(IN_FORWARD.get(name, []), ODD, names)
    WithBody(body).trace()
