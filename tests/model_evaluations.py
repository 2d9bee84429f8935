"""What the models of `vertexrt.models` compute, a vertex at a time, from the papers' equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

Params = Mapping[str, Any]
Step = Callable[..., list[Any]]


class Evaluated(NamedTuple):
    """Logits of the vertices that have some, in their order, and the sum of all losses."""

    logits: list[Any]
    loss: Any


def part(params: Params, prefix: str) -> dict[str, Any]:
    """Return the parameters whose names begin so, without that beginning."""
    return {k[len(prefix) :]: v for k, v in params.items() if k.startswith(prefix)}


def cut(x: Any, parts: int) -> list[Any]:
    n = len(x) // parts
    return [x[k * n : k * n + n] for k in range(parts)]


def cross_entropy(logits: Any, label: int) -> Any:
    return np.log(np.exp(logits).sum()) - logits[label] if label >= 0 else 0.0


def classified(logits: Sequence[Any], labels: Sequence[int]) -> Evaluated:
    pairs = zip(logits, labels, strict=True)
    return Evaluated(list(logits), sum(cross_entropy(y, label) for y, label in pairs))


# Cells: from x and the state before (h first) to the state after. A form is what `nn` calls so.


def both(p: Params, x: Any, h: Any) -> tuple[Any, Any]:
    """Return the products of the input and of the state."""
    weight = p["weight_hh"]
    if weight.ndim == 3:  # of heads: blocks of each gate on the diagonal
        heads, each = weight.shape[0], weight.shape[2]
        blocks, weight = weight, np.zeros((4 * heads * each, heads * each))
        for head, gate in product(range(heads), range(4)):
            at = slice(head * each, (head + 1) * each)
            rows = blocks[head, gate * each : (gate + 1) * each]
            weight[gate * heads * each :][at, at] = rows
    return p["weight_ih"] @ x + p.get("bias_ih", 0.0), weight @ h + p.get("bias_hh", 0.0)


def rnn(p: Params, x: Any, state: Sequence[Any], form: str = "") -> list[Any]:
    total = sum(both(p, x, state[0]))
    return [np.maximum(total, 0.0) if form == "relu" else np.tanh(total)]


def gru(p: Params, x: Any, state: Sequence[Any], form: str = "") -> list[Any]:
    (h,), n = state, len(state[0])
    given, before = both(p, x, h)
    r, z = cut(expit(given[: 2 * n] + before[: 2 * n]), 2)
    new = p["weight_hn"] @ (r * h) + p["bias_hn"] if form == "before" else r * before[2 * n :]
    return [(1 - z) * np.tanh(given[2 * n :] + new) + z * h]


def lstm(p: Params, x: Any, state: Sequence[Any], form: str = "") -> list[Any]:
    h, c = state
    given, before = both(p, x, h)
    if form == "norm":
        given, before = normed(p, "norm_ih", given), normed(p, "norm_hh", before)
    i, f, g, o = cut(given + before, 4)
    if form:
        i, f = i + p["weight_ci"] * c, f + p["weight_cf"] * c
    c = expit(f) * c + expit(i) * np.tanh(g)
    o = o + p["weight_co"] * c if form else o
    return [expit(o) * np.tanh(normed(p, "norm_c", c) if form == "norm" else c), c]


def normed(p: Params, name: str, x: Any) -> Any:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def slstm(p: Params, x: Any, state: Sequence[Any], form: str = "") -> list[Any]:
    h, c, n, m = state
    i, f, z, o = cut(sum(both(p, x, h)), 4)
    f = (-np.logaddexp(0.0, -f) if form == "sigmoid" else f) + m
    top = np.maximum(f, i)
    keep, take = np.exp(f - top), np.exp(i - top)
    c, n = keep * c + take * np.tanh(z), keep * n + take
    return [expit(o) * c / n, c, n, top]


FIELDS = {rnn: "h", gru: "h", lstm: "hc", slstm: "hcnm"}


def along(step: Step, p: Params, inputs: Sequence[Any]) -> list[list[Any]]:
    """Return the state after each input of a sequence."""
    state = [np.zeros(p["weight_hh"].shape[1])] * len(FIELDS[step])
    found = []
    for x in inputs:
        state = step(p, x, state)
        found.append(state)
    return found


# Models.


def language_model(
    p: Params,
    sentences: Sequence[tuple[Sequence[int], Sequence[int]]],
    step: Step,
    residual: bool = False,
) -> Evaluated:
    """Evaluate stacked layers; the softmax has the table of words where it has no own."""
    logits, labels = [], []
    layers = len({name.split(".")[1] for name in p if name.startswith("layers.")})
    for words, following in sentences:
        inputs = [p["layers.0.words"][word] for word in words]
        for k in range(layers):
            cell = part(p, f"layers.{k}.cell.")
            found = [state[0] for state in along(step, cell, inputs)]
            inputs = [h + x for h, x in zip(found, inputs, strict=True)] if residual else found
        weight = p.get("next.weight", p["layers.0.words"])
        logits += [weight @ x + p["next.bias"] for x in inputs]
        labels += following
    return classified(logits, labels)


class LabelledVertex(NamedTuple):
    """A vertex of a tree or another graph: its children, the word that it has (-1), its label."""

    children: Sequence[int]
    word: int
    label: int


def of_graphs(
    p: Params,
    graphs: Sequence[Sequence[LabelledVertex]],
    compute: Callable[[Params, Any, Sequence[Any]], Any],
) -> Evaluated:
    """Evaluate graphs whose states are (h, c) or (h,), and classify the h of each vertex."""
    logits, labels = [], []
    for graph in graphs:
        states: list[Any] = []
        for vertex in graph:
            table = p["embedding"]
            x = table[vertex.word] if vertex.word >= 0 else np.zeros(table.shape[1])
            states.append(compute(p, x, [states[k] for k in vertex.children]))
            logits.append(p["out.weight"] @ states[-1][0] + p["out.bias"])
            labels.append(vertex.label)
    return classified(logits, labels)


def rvnn(p: Params, x: Any, children: Sequence[Any]) -> Any:
    if not children:
        return (x,)
    both = np.concatenate([h for (h,) in children])
    return (np.tanh(p["compose.weight"] @ both + p["compose.bias"]),)


def child_sum(p: Params, x: Any, children: Sequence[Any]) -> Any:
    p = part(p, "cell.")
    x_i, x_o, x_u, x_f = cut(p["weight_ih"] @ x + p["bias"], 4)
    total = sum((h for h, _ in children), np.zeros(len(x_i)))
    i, o, u = (a + b for a, b in zip((x_i, x_o, x_u), cut(p["weight_hh"] @ total, 3), strict=True))
    c = expit(i) * np.tanh(u)
    for h, below in children:
        c = c + expit(x_f + p["weight_fh"] @ h) * below
    return expit(o) * np.tanh(c), c


def nary(p: Params, x: Any, children: Sequence[Any]) -> Any:
    p = part(p, "cell.")
    i, o, u, x_f = cut(p["weight_ih"] @ x + p["bias"], 4)
    for k, (h, _) in enumerate(children):
        h_i, h_o, h_u = cut(p[f"weight_hh.{k}"] @ h, 3)
        i, o, u = i + h_i, o + h_o, u + h_u
    c = expit(i) * np.tanh(u)
    for k, (_, below) in enumerate(children):
        f = x_f + sum(p[f"weight_fh.{k}.{n}"] @ h for n, (h, _) in enumerate(children))
        c = c + expit(f) * below
    return expit(o) * np.tanh(c), c


class SpeltSentence(NamedTuple):
    """Words with their letters, and tags."""

    words: Sequence[int]
    letters: Sequence[Sequence[int]]
    tags: Sequence[int]


def tagger(p: Params, sentences: Sequence[SpeltSentence]) -> Evaluated:
    """Evaluate a BiLSTM tagger, with letters and paths where it has parameters for them."""
    logits, labels, losses = [], [], []
    for words, letters, tags in sentences:
        inputs = [p["word.weight"][word] for word in words]
        if "forth.embedding" in p:
            pairs = zip(inputs, letters, strict=True)
            inputs = [np.concatenate([x, *_spelt(p, spelt)]) for x, spelt in pairs]
        left = along(lstm, part(p, "left.cell."), inputs)
        right = along(lstm, part(p, "right.cell."), inputs[::-1])[::-1]
        paths = "scores.moves" in p
        out = part(p, "scores.out." if paths else "tag.out.")
        scores = [
            out["weight"] @ np.concatenate([a[0], b[0]]) + out["bias"]
            for a, b in zip(left, right, strict=True)
        ]
        if paths:
            scores, loss = _all_paths(scores, p["scores.moves"], tags)
            losses.append(loss)
        logits += scores
        labels += tags
    found = classified(logits, labels)
    return Evaluated(found.logits, sum(losses)) if losses else found


def _all_paths(scores: Sequence[Any], moves: Any, tags: Sequence[int]) -> tuple[list[Any], Any]:
    """Return log-probabilities of each word's tags, and -log p(tags), by listing all paths."""
    classes = range(len(moves))
    weights = {
        path: np.exp(
            sum(score[tag] for score, tag in zip(scores, path, strict=True))
            + sum(moves[a][b] for a, b in pairwise(path))
        )
        for path in product(classes, repeat=len(scores))
    }
    total = sum(weights.values())
    shares = [
        [sum(w for path, w in weights.items() if path[at] == tag) / total for tag in classes]
        for at in range(len(scores))
    ]
    logs = [np.stack([np.log(share) for share in of_word]) for of_word in shares]
    return logs, np.log(total) - np.log(weights[tuple(tags)])


def _spelt(p: Params, letters: Sequence[int]) -> list[Any]:
    """Return the last state of each direction over the letters of a word."""
    found = []
    for name, order in (("forth", letters), ("back", letters[::-1])):
        inputs = [p[f"{name}.embedding"][letter] for letter in order]
        found.append(along(lstm, part(p, f"{name}.cell."), inputs)[-1][0])
    return found


def translated(
    p: Params, pairs: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]]
) -> Evaluated:
    """Evaluate attention over an encoder: words of the source, words said before, labels."""
    logits, labels = [], []
    for source, said, following in pairs:
        inputs = [p["encoder.embedding"][word] for word in source]
        heard = [state[0] for state in along(gru, part(p, "encoder.cell."), inputs)]
        h = heard[-1]
        for word in said:
            query = p["decoder.query"] @ h
            scores = [
                (p["decoder.score"] * np.tanh(p["encoder.key"] @ s + query)).sum() for s in heard
            ]
            context = attended(scores, heard)
            x = np.concatenate([p["decoder.embedding"][word], context])
            h = gru(part(p, "decoder.cell."), x, [h])[0]
            both = np.concatenate([h, context])
            logits.append(p["decoder.out.weight"] @ both + p["decoder.out.bias"])
        labels += following
    return classified(logits, labels)


def attended(scores: Sequence[Any], values: Sequence[Any]) -> Any:
    weights = [np.exp(score) for score in scores]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def dagnn(p: Params, graphs: Sequence[Sequence[LabelledVertex]]) -> Evaluated:
    layers = len({name.split(".")[1] for name in p if name.startswith("layers.")})
    logits, labels = [], []
    for graph in graphs:
        below = [p["word.weight"][vertex.word] for vertex in graph]
        columns = []
        for k in range(layers):
            states: list[Any] = []
            score = p[f"layers.{k}.score"]
            for vertex, x in zip(graph, below, strict=True):
                read = [states[c] for c in vertex.children]
                message = attended([(score * h).sum() for h in read], read) if read else 0.0
                start = np.zeros(len(x)) + message
                states.append(gru(part(p, f"layers.{k}.cell."), x, [start])[0])
            below = states
            columns.append(states)
        for at, vertex in enumerate(graph):
            both = np.concatenate([states[at] for states in columns])
            logits.append(p["label.out.weight"] @ both + p["label.out.bias"])
            labels.append(vertex.label)
    return classified(logits, labels)


class Signal(NamedTuple):
    """A signal of a circuit: input, conjunction or inverter; what it reads; its probability."""

    kind: str
    below: Sequence[int]
    target: float


def deepgate(p: Params, signals: Sequence[Signal]) -> Evaluated:
    """Evaluate one circuit. The rows are probabilities, in the order of the kinds."""
    forth: list[Any] = []
    for kind, below, _ in signals:
        if kind == "input":
            forth.append(p["input.start"])
            continue
        read = [forth[k] for k in below]
        message = attended([(p[f"{kind}.score"] * h).sum() for h in read], read)
        forth.append(gru(part(p, f"{kind}.cell."), message, [p[f"{kind}.start"]])[0])
    back: dict[int, Any] = {}
    score, loss = p["reverse.score"], 0.0
    for at in reversed(range(len(signals))):
        read = [back[k] for k, signal in enumerate(signals) if at in signal.below]
        x = attended([(score * h).sum() for h in read], read) if read else 0.0
        x = np.zeros(len(forth[at])) + x
        back[at] = gru(part(p, "reverse.cell."), x, [forth[at]])[0]
    found = {}
    for at, signal in enumerate(signals):
        both = np.concatenate([forth[at], back[at]])
        inner = p["reverse.inner.weight"] @ both + p["reverse.inner.bias"]
        inner = inner * (inner > 0)
        found[at] = expit(p["reverse.out.weight"] @ inner + p["reverse.out.bias"])
        loss = loss + abs(found[at] - signal.target).sum()
    kinds = ("input", "conjunction", "inverter")
    order = sorted(found, key=lambda at: kinds.index(signals[at].kind))
    return Evaluated([found[at] for at in order], loss)
