"""Modules of ours beside PyTorch's: the same is done to both, and what comes of it is compared.

A `Subject` is a pair of modules that compute the same, and what both are called with. Trees are
judged by autograd one vertex at a time, cells by PyTorch's cells one step at a time, layers by
PyTorch's layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import SHIM_AND_GPU  # noqa: E402
from tests.shim_device import ShimDevice, put_in_place  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.api.network import Network  # noqa: E402
from vertexrt.engine.devices import module_of  # noqa: E402
from vertexrt.models.tree_lstm import TreeLSTM  # noqa: E402
from vertexrt.torch.binding import BoundNetwork  # noqa: E402

rnn = torch.nn.utils.rnn
INPUT, SIZE = 3, 4  # of layers and cells
WIDTH = 5  # of trees
ENGINES = ["batched", "persistent"]
PLACES = ["cpu", *SHIM_AND_GPU]
COUNTS = {"mean_graphs": "num_graphs", "mean_vertices": "num_vertices", "sum": ""}


class Node(vrt.VertexFunction):
    """A recurrent network over trees, of words and vectors."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(state={"h": WIDTH})
        self.embedding = vrt.Parameter((7, WIDTH), vrt.init.normal(0.5))
        self.fixed = vrt.Parameter((WIDTH,), vrt.init.normal(0.5), trainable=False)
        self.cell = nn.RNNCell(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word")) + self.pull("x", shape=(WIDTH,))
        below = vrt.sum(self.gather_all().h)
        h = self.push("h", self.cell(vrt.random.dropout(x * self.fixed, self.dropout), below))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class TreeJudge(torch.nn.Module):
    """`Node` by autograd, one vertex at a time; parameters have the names of the network's."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        values = {n: torch.tensor(x).double() for n, x in network.parameters.items()}
        self.embedding = torch.nn.Parameter(values.pop("embedding"))
        self.fixed = torch.nn.Parameter(values.pop("fixed"), requires_grad=False)
        self.cell = torch.nn.RNNCell(WIDTH, WIDTH).double()
        self.load_state_dict(values, strict=False)

    def forward(
        self, given: Any, outputs: Sequence[str] = ("h", "loss"), **pulls: Any
    ) -> dict[str, Any]:
        batch = getattr(given, "graphs", given)
        rows = pulls.get("x", torch.zeros(batch.num_vertices, WIDTH, dtype=self.fixed.dtype))
        own = batch.pulls["x"]
        if isinstance(own, vrt.Rows):
            rows = rows[torch.from_numpy(own.index.astype(np.int64))]
        words = torch.from_numpy(batch.pulls["word"].astype(np.int64))
        states: list[Any] = []
        for v, inside in enumerate((self.embedding[words] + rows) * self.fixed):
            children = batch.child[batch.child_ptr[v] : batch.child_ptr[v + 1]]
            below = sum((states[child] for child in children), torch.zeros_like(inside))
            states.append(self.cell(inside, below))
        h = torch.stack(states)
        found = {"h": h, "loss": h.square().sum(1)}
        return {name: found[name] for name in outputs}

    def loss(self, batch: Any, reduction: str = "mean_graphs", **pulls: Any) -> Any:
        return self(batch, **pulls)["loss"].sum() / getattr(batch, COUNTS[reduction], 1)


def trees(graphs: int = 3) -> vrt.GraphBatch:
    rng, made = np.random.default_rng(graphs), []
    for _ in range(graphs):
        n = int(rng.integers(2, 7))
        lists: list[list[int]] = [[] for _ in range(n)]
        for child in range(n - 1):
            lists[int(rng.integers(child + 1, n))].append(child)
        pulls = {"word": rng.integers(0, 7, n), "x": np.zeros((n, WIDTH))}
        made.append(vrt.InputGraph.from_children(lists, pulls))
    return vrt.GraphBatch.from_graphs(made)


def shared_rows() -> vrt.GraphBatch:
    """Return trees whose vertices share two rows and a word."""
    batch = trees(3)
    index = (np.arange(batch.num_vertices) % 2).astype(np.int32)
    words = np.zeros(batch.num_vertices, np.int32)
    return batch.with_pulls({"x": vrt.Rows(np.zeros((2, WIDTH)), index), "word": words})


def twins(count: int, word: int) -> vrt.GraphBatch:
    """Return equal trees, which are computed once and count as often as they occur."""
    pulls = {"word": [word, word, -1], "label": [1, 1, 2]}
    trees = [vrt.InputGraph.from_children([[], [], [0, 1]], pulls=pulls) for _ in range(count)]
    return vrt.GraphBatch.from_graphs(trees)


class Leaky(nn.Cell):
    """h = a h + tanh(W x), with one a: a cell of a user's own."""

    def __init__(self) -> None:
        self.weight_ih = vrt.Parameter((SIZE, INPUT), vrt.init.normal(0.5))
        self.a = vrt.Parameter((SIZE,), vrt.init.constant(0.5))

    def __call__(self, x: Any, h: Any) -> Any:
        return self.a * h + vrt.tanh(self.weight_ih @ x)


class LeakyJudge(torch.nn.Module):
    """`Leaky` in PyTorch."""

    def __init__(self, *_: int) -> None:
        super().__init__()
        self.weight_ih = torch.nn.Parameter(torch.zeros(SIZE, INPUT))
        self.a = torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: Any, h: Any) -> Any:
        return self.a * h + torch.tanh(x @ self.weight_ih.T)


CELLS = {
    "Leaky": (Leaky, LeakyJudge),
    "GRUCell": (lambda: nn.GRUCell(INPUT, SIZE), torch.nn.GRUCell),
    "LSTMCell": (lambda: nn.LSTMCell(INPUT, SIZE), torch.nn.LSTMCell),
}


class Steps(torch.nn.Module):
    """A cell of PyTorch step by step, as `vt.Recurrent` runs one; resets set states to zero."""

    def __init__(self, cell: torch.nn.Module, batch_first: bool) -> None:
        super().__init__()
        self._parameters.update(cell._parameters)
        self.names, self.kind, self.batch_first = [*cell._parameters], type(cell), batch_first

    def forward(self, x: Any, state: Any = None, resets: Any = None) -> Any:
        packed = isinstance(x, rnn.PackedSequence)
        steps = x.data.split(x.batch_sizes.tolist()) if packed else x
        if self.batch_first and not packed:
            steps, resets = x.transpose(0, 1), None if resets is None else resets.T
        given = (state,) if isinstance(state, torch.Tensor) else state
        if given is None:
            count = 2 if self.kind is torch.nn.LSTMCell else 1
            given = [steps[0].new_zeros(len(steps[0]), SIZE)] * count
        elif packed and x.sorted_indices is not None:
            given = [each[x.sorted_indices] for each in given]
        if packed and resets is not None:
            resets = resets.split(x.batch_sizes.tolist())
        states, out = list(given), []
        weights = {name: getattr(self, name) for name in self.names}
        cell = self.kind(INPUT, SIZE)
        for t, step in enumerate(steps):
            now = [each[: len(step)] for each in states]
            if resets is not None:
                now = [torch.where(resets[t][:, None], 0.0, each) for each in now]
            args = step, tuple(now) if len(now) > 1 else now[0]
            found = torch.func.functional_call(cell, weights, args)
            found = found if len(now) > 1 else [found]
            pairs = zip(found, states, strict=True)
            states = [torch.cat([new, each[len(step) :]]) for new, each in pairs]
            out.append(found[0])
        if packed:
            if x.unsorted_indices is not None:
                states = [each[x.unsorted_indices] for each in states]
            return x._replace(data=torch.cat(out)), tuple(states)
        return torch.stack(out, int(self.batch_first)), tuple(states)


class Subject(NamedTuple):
    """What is judged.

    Attributes:
        make: returns ours and the judge, on the host in float64, with equal numbers.
        give: returns arguments of call number k, given how a tensor becomes one that gets a
            gradient; and these tensors.
        ask: calls a module; returns a tensor, or a tuple of these.
        weight: the name of one that is square, or has squares on top of each other.
    """

    make: Callable[[], tuple[Any, Any]]
    give: Callable[[int, Callable[[Any], Any]], tuple[Any, ...]]
    ask: Callable[..., Any]
    weight: str


def layer_pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return a layer of ours and PyTorch's; both draw the same numbers."""
    made = []
    for library in (vt, torch.nn):
        torch.manual_seed(0)
        made.append(getattr(library, kind)(INPUT, SIZE, dtype=torch.float64, **options))
    return made[0], made[1]


def cell_pair(kind: str, batch_first: bool = False) -> tuple[Any, Any]:
    cell, judged = CELLS[kind]
    mine = vt.Recurrent(
        cell(), INPUT, {"h": SIZE} if kind == "Leaky" else None, batch_first=batch_first
    )
    judge = Steps(judged(INPUT, SIZE), batch_first).double()
    judge.load_state_dict(mine.double().state_dict())
    return mine, judge


def tree_pair() -> tuple[Any, Any]:
    net = vrt.compile(Node(), device="cpu", dtype="float64", seed=2)
    return vt.Module(net), TreeJudge(net)


def twin_pair() -> tuple[Any, Any]:
    sizes = {"vocab": 9, "embed": 8, "hidden": 8, "classes": 5}
    made = [vrt.compile(TreeLSTM(**sizes), device="cpu", dtype="float64") for _ in range(2)]
    return vt.Module(made[0]), vt.Module(made[1])


# Of each call; the last ones come once.
LENGTHS = [(3, 1, 2), (4,), (9, 7, 8, 9), (1, 1, 1), *[(3, 1, 2)] * 6, (5,), (6,), (7,), (8,)]


def laid_out(k: int, x: Any) -> Any:
    """Return the same numbers, of some calls in other memory: strided, unaligned, yet to negate."""
    if k == 7:
        return torch.stack([x, x + 1.0], -1)[..., 0]
    if k == 8:
        return torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x)
    return torch.complex(x, -x).conj().imag if k == 9 else x


def sequences(k: int, leaf: Callable[[Any], Any], number: int, states: int) -> tuple[Any, ...]:
    """Return packed sequences; of some calls with states that are views, or without gradients."""
    packed = rnn.pack_sequence([torch.randn(n, INPUT) for n in LENGTHS[k]], enforce_sorted=False)
    drawn = torch.randn(states, number, len(LENGTHS[k]), 2 * SIZE)
    data = leaf(packed.data)
    data = data.detach() if k in (5, 6) else laid_out(k, data)
    given = packed.to(data.device)._replace(data=data)
    state = [leaf(each)[..., ::2] for each in drawn]
    held: Any = tuple(state) if states > 1 else state[0]
    return (given, held) if k in (4, 6) else (given,)


def with_resets(k: int, leaf: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return steps [T, B, I], states and resets; of some calls without them."""
    x = leaf(torch.randn(2 + k, 3, INPUT))
    state = leaf(torch.randn(3, SIZE)) if k % 2 else None
    return laid_out(k, x), state, (torch.rand(2 + k, 3) < 0.3).to(x.device) if k != 1 else None


def forest(k: int, leaf: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a batch and rows for its vertices, or for some of its tables; or the batch alone."""
    batch = shared_rows().take([0, 1, 2]) if k == 3 else trees(2 + k % 3)
    count = 2 if k == 3 else batch.num_vertices
    rows = leaf(torch.randn(count, WIDTH))
    return (batch,) if k == 4 else (batch, rows.detach() if k == 5 else laid_out(k, rows))


def outputs_of(module: Any, batch: Any, x: Any = None) -> Any:
    pulls = {} if x is None else {"x": x}
    return tuple(module(batch, **pulls).values())


def loss_of(module: Any, batch: Any, x: Any = None) -> Any:
    pulls = {} if x is None else {"x": x}
    return module.loss(batch, **pulls)


def of_layer(kind: str, number: int = 1, states: int = 1, **options: Any) -> Subject:
    return Subject(
        lambda: layer_pair(kind, **options),
        lambda k, leaf: sequences(k, leaf, number, states),
        lambda layer, *given: layer(*given),
        "weight_hh_l0",
    )


SUBJECTS = {
    "LSTM": of_layer("LSTM", states=2),
    "GRU": of_layer("GRU"),
    "stack": of_layer("LSTM", 4, 2, num_layers=2, bidirectional=True),
    "cell": Subject(lambda: cell_pair("GRUCell"), with_resets, lambda m, *a: m(*a), "weight_hh"),
    "module": Subject(tree_pair, forest, outputs_of, "cell.weight_hh"),
    "loss": Subject(tree_pair, forest, loss_of, "cell.weight_hh"),
    "both": Subject(tree_pair, forest, lambda *a: (*outputs_of(*a), loss_of(*a)), "cell.weight_hh"),
    "twins": Subject(twin_pair, lambda k, _: (twins(k + 1, k % 9),), lambda m, b: m.loss(b), "u_f"),
}


class Side:
    """A module that is one of a pair, and how it is called."""

    def __init__(self, module: Any, subject: Subject) -> None:
        self.module, self.subject = module, subject

    @property
    def weights(self) -> list[Any]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def __call__(self, k: int) -> tuple[list[Any], list[Any]]:
        """Return results of call k, and the tensors that were given to it and get a gradient."""
        leaves, like = [], next(iter(self.module.parameters()))

        def leaf(values: Any) -> Any:
            leaves.append(values.to(like.device, like.dtype, copy=True).requires_grad_())
            return leaves[-1]

        torch.manual_seed(k)
        given = self.subject.give(k, leaf)
        return flat(self.subject.ask(self.module, *given)), leaves

    def gradients(self, number: Any, leaves: Sequence[Any], **more: Any) -> list[Any]:
        """Return what `backward` gives everything that gets a gradient."""
        wanted = [*leaves, *self.module.parameters()]
        for each in wanted:
            each.grad = None
        number.backward(**more)
        return [None if each.grad is None else each.grad.clone() for each in wanted]


def flat(found: Any) -> list[Any]:
    """Return the real tensors of a result."""
    if isinstance(found, rnn.PackedSequence):
        return [found.data]
    return [x for each in found for x in flat(each)] if isinstance(found, tuple) else [found]


def total(found: Sequence[Any]) -> Any:
    """Return a number that depends on all of the results, and on where each number is."""
    places = [
        torch.linspace(1.0, 2.0, x.numel(), dtype=x.dtype, device=x.device).view_as(x)
        for x in found
    ]
    return sum((x * p + x.square()).sum() for x, p in zip(found, places, strict=True))


def same(mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Compare what both return, in order, relative to the largest element.

    A judge in float64 may have one in float32 beside it.
    """
    assert len(mine) == len(theirs)
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        assert (a is None) == (b is None), f"number {k}"
        if b is None:
            continue
        assert a.dtype in (b.dtype, torch.float32), f"number {k}"
        assert a.shape == b.shape, f"number {k}"
        one, other = (each.detach().to_dense().double().cpu() for each in (a, b))
        bound = 1e-12 if a.dtype == torch.float64 else 2e-5
        bound *= max([1.0, *other.abs().flatten().tolist()])
        text = f"number {k}"
        torch.testing.assert_close(one, other, rtol=0.0, atol=bound, msg=lambda e, t=text: t + e)


def compile_again(module: Any, device: str, engine: str) -> None:
    """Let a module compute by an engine of a device."""
    source = module.source
    processors = 4 if engine == "persistent" and device == "cuda" else None
    options = replace(
        source.options,
        engine=engine,
        processors=processors,
        dtype=np.dtype("float32" if device == "cuda" else "float64"),
    )
    executor = module_of(device).compile_for(device, source.traced, options)
    module.binding = BoundNetwork(Network(executor, 0, source.reduction))
    module.bind()


def sides_at(
    name: str, place: str, engine: str, patch: pytest.MonkeyPatch, device: Any = ShimDevice
) -> tuple[Side, Side]:
    """Return a subject's modules, ours at a place: on the shim and on a GPU in float32."""
    subject = SUBJECTS[name]
    mine, judge = subject.make()
    if place == "shim":
        put_in_place(patch, device)
    if place != "cpu":
        mine.float()
    if place == "cuda":
        mine.to("cuda")
    compile_again(mine, "cpu" if place == "cpu" else "cuda", engine)
    return Side(mine, subject), Side(judge, subject)
