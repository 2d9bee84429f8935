"""Layers of vertex types: which functions of a network can run before which, all vertices at once.

A function reads children of some functions. Functions that read each other, in a circle, or
themselves are of one layer; it comes after the layers of all others that they read. So a stack of
recurrent layers runs one after the other, and what a layer does with the states below is one
product over all its vertices, not one a step. Functions that no other reads come last, together.

Sources: strongly connected components (Tarjan 1972) of the functions, not of the vertices; inputs'
products over all steps at once, as cuDNN's (Appleyard et al. 2016, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from vertexrt.ir.program import FunctionSite, Node, Program, Stage

OF_ALL_CHILDREN = ("gather_all", "degree", "scatter_children", "edge_pull")


class Phase(NamedTuple):
    """A stage of a layer; phases of a step follow each other, compared by their place.

    The eager stage and the path of each layer take turns, from the lowest one on; then all lazy
    stages; then the path and the final stage of each layer, from the highest one on.
    """

    place: int
    stage: Stage
    layer: int

    @staticmethod
    def of(stage: Stage, layer: int = 0, layers: int = 1) -> Phase:
        """Return the phase of a stage of a layer, of so many."""
        if stage in (Stage.EAGER, Stage.PATH):
            return Phase(2 * layer + (stage - Stage.EAGER), stage, layer)
        if stage in (Stage.LAZY, Stage.LAZY_BACKWARD):
            return Phase(2 * layers + (stage - Stage.LAZY), stage, 0)
        turn = layers + 1 + layers - 1 - layer
        return Phase(2 * turn + (stage - Stage.PATH_BACKWARD), stage, layer)

    @property
    def name(self) -> str:
        """Name it, for people."""
        return f"{self.stage.name} {self.layer}" if self.layer else self.stage.name


def phase_of(program: Program, stage: Stage, layer: int) -> Phase:
    """Return the phase of a stage of a layer of a program."""
    return Phase.of(stage, layer, max(program.layers, default=0) + 1)


def find_layers(sites: Sequence[FunctionSite]) -> tuple[int, ...]:
    """Return the layer of each function of a network, from 0."""
    # What each function reads, directly or through others; itself, where there is a way.
    reached: list[set[int]] = [set().union(*site.children) for site in sites]
    for via in range(len(sites)):
        for each in reached:
            if via in each:
                each |= reached[via]
    found = [-1] * len(sites)
    for f in sorted(range(len(sites)), key=lambda f: len(reached[f])):
        below = [found[c] for c in reached[f] if f not in reached[c]]
        found[f] = max(below, default=-1) + 1
    read = set[int]().union(*reached)
    last = max((found[f] for f in read), default=-1) + 1
    return tuple(layer if f in read else last for f, layer in enumerate(found))


def with_layers(program: Program) -> Program:
    """Return a program whose functions run layer by layer, where there are several layers."""
    layers = find_layers(program.sites)
    return replace(program, layers=layers) if any(layers) else program


def is_within_layer(program: Program, node: Node) -> bool:
    """Tell whether a node reads, or leaves gradients for, children that may be of its own layer.

    Args:
        node: of an op that is about children: `gather`, `present`, `scatter_child` and so on.
    """
    if not program.layers:
        return True
    site, slot = program.sites[node.function], int(node["slot"])
    children = site.children[site.slots :]
    if slot < site.slots and node.op not in OF_ALL_CHILDREN:
        children = site.children[slot : slot + 1]
    own = program.layer_of(node.function)
    return own in {program.layers[c] for each in children for c in each}


def chain_slot(program: Program, function: int) -> int:
    """Return the one slot by which vertices read children of their layer; -1 for several or none.

    Such vertices are chains within their layer, whatever else they read.
    """
    if not program.sites:
        return 0 if program.arity == 1 else -1
    site, mine = program.sites[function], program.layer_of(function)
    layers = [{program.layer_of(c) for c in children} for children in site.children]
    own = [slot for slot, found in enumerate(layers) if mine in found]
    return own[0] if len(own) == 1 and own[0] < site.slots else -1
