"""Networks of several vertex types agree with evaluation by hand and with central differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import vertexrt as vrt
from tests import edge_models as by_edges
from tests import relation_models as related
from tests import typed_models as typed
from tests.devices import gpu, require, shim
from tests.runs import Way, cotangents, evaluate, train
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes import specialise

NETWORKS: dict[str, tuple[Callable[[], vrt.Model], Callable[[], GraphBatch]]] = {
    "tagger": (typed.CharTagger, typed.sentences),
    "tied": (lambda: typed.CharTagger(tied=True), typed.sentences),
    "up-down": (typed.UpDown, typed.trees),
    "summary": (typed.Summarised, typed.chains),
    "translator": (typed.Translator, typed.translations),
    "weighed": (by_edges.WeighedDag, by_edges.weighed),
    "relational": (related.RelationalDag, related.relational),
    "circuit": (related.Circuit, related.circuits),
}
WAYS = {
    "cpu": Way("cpu"),
    "threads": Way("cpu", threads=2),
    "agenda": Way("cpu", policy="agenda"),
    "serial": Way("cpu", policy="serial"),
    "depth": Way("cpu", policy="depth"),
    "persistent": Way("cpu", engine="persistent", processors=2, threads=4),
    "reference-persistent": Way(engine="persistent", processors=2, threads=2),
}
SHIM = {
    "batched": Way("shim"),
    "persistent": Way("shim", engine="persistent", processors=2, threads=2),
}
STEP = 1e-5


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_central_differences(network: str) -> None:
    model, batch = NETWORKS[network][0](), NETWORKS[network][1]()
    net = Way().compile(model)
    found = train(net, batch).parameters
    rng = np.random.default_rng(1)
    for name, value in net.parameters.items():
        for _ in range(3):
            at = tuple(int(rng.integers(0, n)) for n in value.shape)
            old, losses = float(value[at]), []
            for moved in (old + STEP, old - STEP):
                other = value.copy()
                other[at] = moved
                net.parameters[name] = other
                losses.append(net(batch, outputs=["loss"])["loss"].sum())
            net.parameters[name] = value
            slope = (losses[0] - losses[1]) / (2 * STEP * batch.num_graphs)
            assert abs(slope - found[name][at]) < 1e-8 + 1e-6 * abs(slope), (name, at)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", NETWORKS)
def test_ways_agree(network: str, way: str) -> None:
    _agree(network, WAYS[way])


@shim
@pytest.mark.parametrize("way", SHIM)
@pytest.mark.parametrize("network", NETWORKS)
def test_cuda_agrees(network: str, way: str) -> None:
    _agree(network, SHIM[way])


@shim
def test_a_tile_of_many_children() -> None:
    """One vertex has more children than a tile has indices for in shared memory."""
    batch = typed.wide_sum(150)
    want = train(Way().compile(typed.WideSum()), batch)
    got = train(SHIM["persistent"].compile(typed.WideSum()), batch)
    for name, value in want.parameters.items():
        np.testing.assert_allclose(got.parameters[name], value, rtol=1e-11, atol=1e-11)


@gpu
@pytest.mark.parametrize("way", SHIM)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_gpu_agrees(network: str, way: str) -> None:
    require("cuda")
    _agree(network, replace(SHIM[way], device="cuda", threads=1, processors=None))


def _agree(network: str, way: Way) -> None:
    model, batch = NETWORKS[network][0](), NETWORKS[network][1]()
    for run in (evaluate, train):
        want, got = run(Way().compile(model), batch), run(way.compile(model), batch)
        for part in ("outputs", "parameters", "pulled"):
            mine, other = getattr(want, part), getattr(got, part)
            assert mine.keys() == other.keys()
            for name, value in mine.items():
                np.testing.assert_allclose(other[name], value, rtol=0, atol=1e-11, err_msg=name)


def test_a_tagger_is_what_its_papers_say() -> None:
    batch = typed.sentences()
    net = Way("cpu").compile(typed.CharTagger())
    logits = net(batch)["logits"][batch.of_type("tag")]
    letters = batch.pulls["letter"]
    assert isinstance(letters, np.ndarray)
    begin, want = 0, []
    for graph, lengths in enumerate(([2, 3, 1], [4], [1, 1, 2, 3])):
        first = batch.graph_ptr[graph]
        mine = letters[first : first + sum(lengths)]
        want.append(typed.tagger_logits(net.parameters, lengths, mine))
        begin += len(lengths)
    np.testing.assert_allclose(logits, np.concatenate(want), rtol=0, atol=1e-12)
    assert len(logits) == begin


def test_attention_over_an_input_is_what_its_papers_say() -> None:
    """Slots beside all children of a relation: a decoder, and a DAG over what it decoded."""
    batch = typed.translations()
    net = Way("cpu").compile(typed.Translator())
    found = net(batch)
    assert "vertex type decode: reads before of decode, all over of encode" in net.explain()
    logits, joined = [], []
    letters, last = (np.asarray(batch.pulls[name]) for name in ("letter", "last"))
    for graph, begin in enumerate(batch.graph_ptr[:-1]):
        n, m = ((4, 3), (1, 1), (0, 4))[graph]
        given = letters[begin : begin + n], last[begin + n : begin + n + m], typed.JOINED[graph]
        of_graph = typed.translate(net.parameters, *given)
        logits += of_graph[0]
        joined += of_graph[1]
    for name, kind, want in (("logits", "decode", logits), ("joined", "join", joined)):
        np.testing.assert_allclose(found[name][batch.of_type(kind)], want, rtol=0, atol=1e-12)


def test_words_and_phrases_are_one_tree_lstm() -> None:
    """Types of leaves and inner vertices give what one function gives that has both parts."""
    batch = typed.trees()
    split = Way("cpu").compile(typed.UpDown())
    found = split(batch)["d"][batch.of_type("down")]

    values, states = split.parameters, []
    for words, pairs in zip(
        np.reshape(batch.pulls["word"], (2, 10))[:, :3],
        ([[0, 1], [3, 2]], [[1, 2], [0, 3]]),
        strict=True,
    ):
        c, h = [], []
        for word in words:
            i, u = np.split(values["leaf.w"] @ values["leaf.table"][word], 2)
            c.append(np.tanh(u) / (1 + np.exp(-i)))
            h.append(np.tanh(c[-1]))
        for kids in pairs:
            i, u = np.split(values["phrase.u"] @ (h[kids[0]] + h[kids[1]]), 2)
            total = np.tanh(u) / (1 + np.exp(-i))
            for k in kids:
                total = total + c[k] / (1 + np.exp(-(values["phrase.f"] @ h[k])))
            c.append(total)
            h.append(np.tanh(total))
        d = [np.zeros(typed.N)] * 5
        above = {3: 4, **dict.fromkeys(pairs[0], 3), **dict.fromkeys(pairs[1], 4)}
        for v in (4, 3, 0, 1, 2):
            over = d[above[v]] if v in above and v != 4 else np.zeros(typed.N)
            d[v] = np.tanh(values["down.a"] @ h[v] + values["down.z"] @ over)
        states += d
    np.testing.assert_allclose(found, states, rtol=0, atol=1e-12)


class Link(vrt.VertexFunction):
    """Adds a vector to the state of the link before it; the first has none."""

    def __init__(self, before: Link | None) -> None:
        super().__init__(state={"h": 2}, inputs={} if before is None else {"before": before})
        self.b = vrt.Parameter((2,), init=vrt.init.normal(1.0))

    def forward(self) -> None:
        h = self.b + (self.gather("before").h if self.inputs else 0.0)
        self.scatter(h=h)
        self.push("h", h)


def test_a_model_may_have_64_functions() -> None:
    """The last was an overflow where another read it: children were bits of a signed number."""
    count = specialise.MOST_FUNCTIONS
    links: list[Link] = []
    for _ in range(count):
        links.append(Link(links[-1] if links else None))
    model = vrt.Model()
    names = [f"link{k}" for k in range(count)]
    vars(model).update(reversed(list(zip(names, links, strict=True))))  # the first is function 63
    net = Way("cpu").compile(model)
    edges = {(a, "before", b): [(0, 0)] for a, b in itertools.pairwise(names)}
    graph = InputGraph.from_types(dict.fromkeys(names, 1), edges)
    want = np.cumsum([net.parameters[f"{name}.b"] for name in names], axis=0)
    found = net(GraphBatch.from_graphs([graph]))["h"]
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


def test_edges_carry_values() -> None:
    batch, net = by_edges.weighed(), Way("cpu").compile(by_edges.WeighedDag())
    want = by_edges.weighed_states(net.parameters, batch)
    np.testing.assert_allclose(net(batch)["h"], want, rtol=0, atol=1e-12)
    some = batch.take([2, 0, 2])
    want = by_edges.weighed_states(net.parameters, some)
    np.testing.assert_allclose(net(some)["h"], want, rtol=0, atol=1e-12)


def test_each_relation_has_a_weight_of_its_own() -> None:
    batch, net = by_edges.related(), Way("cpu").compile(by_edges.RelatedDag())
    want = by_edges.related_states(net.parameters, batch)
    found = net(batch)["h"][batch.of_type("node")]
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


def test_values_of_edges_have_gradients() -> None:
    batch, net = by_edges.weighed(), Way("cpu", threads=2).compile(by_edges.WeighedDag())
    found, rng = evaluate(net, batch), np.random.default_rng(3)
    d_outputs = cotangents({name: value.shape for name, value in found.outputs.items()})
    assert found.pulled.keys() == {"weight", "x"}
    for name, gradient in found.pulled.items():
        pull = batch.edge_pulls[name]
        assert isinstance(pull, vrt.Rows)
        d, sums = rng.standard_normal(gradient.shape), []
        for step in (STEP, -STEP):
            moved = {**batch.edge_pulls, name: vrt.Rows(pull.table + step * d, pull.index)}
            outputs = net(replace(batch, edge_pulls=moved))
            sums.append(sum(float((outputs[n] * given).sum()) for n, given in d_outputs.items()))
        slope = (sums[0] - sums[1]) / (2 * STEP)
        assert abs(slope - float((gradient * d).sum())) < 1e-8 * max(1.0, abs(slope))


def test_a_shared_parameter_has_one_name() -> None:
    tied = vrt.compile(typed.CharTagger(tied=True), device="reference")
    names = set(tied.parameters)
    assert {"left.w", "left.u", "left.b", "right.b"} <= names
    assert not {"right.w", "right.u"} & names


def test_minibatches_keep_types() -> None:
    whole = typed.sentences()
    net = Way("cpu").compile(typed.CharTagger())
    both = net(whole)["logits"]
    taken = whole.take([2, 0])
    ends = whole.graph_ptr
    want = np.concatenate([both[ends[2] : ends[3]], both[ends[0] : ends[1]]])
    np.testing.assert_array_equal(net(taken)["logits"], want)
    assert len(taken.of_type("char")) == 13


def test_one_schedule_runs_types_side_by_side() -> None:
    """A direction does not wait for the other: levels are those of one direction."""
    batch = typed.sentences()
    run = Way("cpu").model(typed.CharTagger())
    text = vrt.compile(typed.CharTagger(), device="cpu", threads=1).explain_batch(batch)
    assert run.function.sites[1].relations == ("spelling", "before")
    assert "levels: 8" in text  # the last of four words has three letters; four words; their tags
