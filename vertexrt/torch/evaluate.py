"""Evaluate a bound network: by ops where a compiler looks, else by one function of autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.call import Call
from vertexrt.torch.ops import forward
from vertexrt.torch.passes import AskedPass, Pass
from vertexrt.torch.pulls import PlacedPulls
from vertexrt.torch.seeds import Orders
from vertexrt.torch.tokens import BatchTensors, graphs_in


class Evaluate(NamedTuple):
    """What a module is called for.

    Attributes:
        batch: the graphs; pulls: tensors by name; outputs: names of pushes.
        training: dropout drops.
        sparse: gradients of tables are rows and their numbers.
        orders, by: of the outputs, outside of compilers; see `AskedPass`.
    """

    batch: GraphBatch | BatchTensors
    pulls: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    training: bool
    sparse: bool = False
    orders: Orders = ()
    by: Tensor | None = None


def evaluate(
    bound: BoundNetwork, parameters: Sequence[Tensor], asked: Evaluate
) -> Sequence[Tensor]:
    """Evaluate a bound network; gradients go to the parameters and to real pulls.

    Returns: the outputs, and what else comes after them.
    """
    if not torch.compiler.is_compiling():
        return evaluate_here(bound, parameters, asked, graphs_in(asked.batch))
    call, pulled = _call(bound, parameters, asked)
    batch = asked.batch
    tensors = batch if isinstance(batch, BatchTensors) else BatchTensors.of(batch)
    seed = torch.randint(2**32, (1,)) if call.drop else torch.zeros(1, dtype=torch.int64)
    of_batch = [tensors.token, tensors.graph_of, seed]
    by_op: list[Tensor] = forward(parameters, pulled, of_batch, call.text())
    return by_op


def evaluate_here(
    bound: BoundNetwork, parameters: Sequence[Tensor], asked: Evaluate, graphs: GraphBatch
) -> Sequence[Tensor]:
    """Do so where no compiler looks; graphs: of the batch."""
    call, pulled = _call(bound, parameters, asked)
    drawn = int(torch.randint(2**32, (1,))) if call.drop else 0
    what = AskedPass(bound, call, graphs, drawn, asked.orders, asked.by)
    found: tuple[Tensor, ...] = Pass.apply(what, *parameters, *pulled)
    return found


def _call(
    bound: BoundNetwork, parameters: Sequence[Tensor], asked: Evaluate
) -> tuple[Call, list[Tensor]]:
    """Return what is asked of a network, and the pulls that are tensors."""
    names, pulled, wanted = PlacedPulls.of(bound, asked.pulls)
    keep = bound.wants(parameters) or bool(wanted)
    drops = asked.training and bound.draws
    return Call(bound.number, names, asked.outputs, wanted, keep, drops, asked.sparse), pulled
