"""Generate circuits of AND gates and inverters with the probability that each signal is 1.

Inputs are 1 half of the time, independently, so a probability is the share of all combinations of
inputs for which a signal is 1: it is counted, not estimated.
Source: the task of DeepGate (Li et al., DAC 2022), whose circuits are parts of real designs.
"""

from __future__ import annotations

import numpy as np

from vertexrt.data.dataset import Dataset
from vertexrt.graph import GraphBatch, InputGraph, Rows

SPLITS = {"train": 300, "dev": 60, "test": 60}
INPUTS, GATES = 5, 16
INVERTERS = 0.35  # of all gates

KINDS = ("input", "conjunction", "inverter")
_RELATIONS = [
    *((child, "reads", gate) for child in KINDS for gate in KINDS[1:]),
    *((kind, "own", "reverse") for kind in KINDS),
    ("reverse", "readers", "reverse"),
]


def circuits_dataset(*, seed: int = 0) -> Dataset:
    """Make circuits of the vertex types of a `DeepGate`.

    Returns: the pull "target", float [1], of every vertex of the type `reverse`: of the inputs,
        then of AND gates, then of inverters.
    """
    rng = np.random.default_rng(seed)
    splits = {
        split: GraphBatch.from_graphs([_circuit(rng) for _ in range(count)])
        for split, count in SPLITS.items()
    }
    text = f"circuits of {INPUTS} inputs and {GATES} gates"
    return Dataset("generated", "circuits", splits, {}, 0, text)


def _circuit(rng: np.random.Generator) -> InputGraph:
    """Draw gates, each over earlier signals, and evaluate them for all inputs at once."""
    values = list((np.arange(2**INPUTS) >> np.arange(INPUTS)[:, None] & 1).astype(bool))
    kinds = ["input"] * INPUTS
    below: list[list[int]] = [[] for _ in range(INPUTS)]
    for signal in range(INPUTS, INPUTS + GATES):
        inverter = bool(rng.random() < INVERTERS)
        read = rng.choice(signal, 1 if inverter else 2, replace=False).tolist()
        kinds.append("inverter" if inverter else "conjunction")
        below.append(read)
        values.append(~values[read[0]] if inverter else values[read[0]] & values[read[1]])
    return circuit_graph(kinds, below, np.array([value.mean() for value in values]))


def circuit_graph(kinds: list[str], below: list[list[int]], targets: np.ndarray) -> InputGraph:
    """Build the graph of a circuit for a `DeepGate`.

    Args:
        kinds: of each signal, in an order in which each comes after what it reads: input,
            conjunction or inverter.
        below: the signals that each reads.
        targets: float [signals], the probability that each is 1.
    """
    order = sorted(range(len(kinds)), key=lambda signal: KINDS.index(kinds[signal]))
    place = {signal: at for at, signal in enumerate(order)}  # in the type `reverse`
    first = {kind: sum(kinds.count(k) for k in KINDS[:at]) for at, kind in enumerate(KINDS)}
    edges = {relation: list[tuple[int, int]]() for relation in _RELATIONS}
    for signal in order:
        kind = kinds[signal]
        edges[kind, "own", "reverse"].append((place[signal] - first[kind], place[signal]))
        for child in below[signal]:
            pair = place[child] - first[kinds[child]], place[signal] - first[kind]
            edges[kinds[child], "reads", kind].append(pair)
            edges["reverse", "readers", "reverse"].append((place[signal], place[child]))
    sizes = {kind: kinds.count(kind) for kind in KINDS} | {"reverse": len(kinds)}
    target = {"target": Rows(targets[order, None].astype(np.float32))}
    return InputGraph.from_types(sizes, edges, {"reverse": target})
