"""Forward and backward of a network as ops of PyTorch, with fakes: autograd and compilers see two.

Outside of compilers `passes.Pass` does the same as one function of autograd: calling an op of
Python takes PyTorch longer than a small network runs.

The forward op returns the pushes and, with gradients to come, a token of the pass that it keeps.
Where that is gone when the backward op runs (it was gone back through already, or a compiler made
the op anew), the pass is repeated: the seed of what is drawn is an input.

Both take parameters in the binding's order; pulls; the tensors of a batch, which are those of
`BatchTensors` and the seed, int64 [1]; and a `Call` as text, since ops know no records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vertexrt.torch.binding import binding, sparse_gradient
from vertexrt.torch.call import Call
from vertexrt.torch.once import refuse_twice
from vertexrt.torch.passes import AskedPass
from vertexrt.torch.results import tensor_of
from vertexrt.torch.tokens import graphs_of, taken, token_of


def _asked(call: Call, of_batch: Sequence[Tensor]) -> AskedPass:
    """Return what inputs of an op ask for."""
    token, _, seed = of_batch
    return AskedPass(binding(call.number), call, graphs_of(token), int(seed))


@torch.library.custom_op("vertexrt::forward", mutates_args=())
def forward(
    parameters: Sequence[Tensor], pulls: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    """Evaluate a network on a batch.

    Returns: the pushes [V, ...], and if the pass is kept, its token.
    """
    asked = _asked(Call.of(call), of_batch)
    with asked.bound.holding(parameters):
        kept, found = asked.evaluate(pulls)
    return found if kept is None else [*found, token_of(kept)]


@forward.register_fake
def _fake_forward(
    parameters: Sequence[Tensor], pulls: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    asked = Call.of(call)
    mine, (token, graph_of, _) = binding(asked.number), of_batch
    shapes = [(graph_of.shape[0], *mine.push_shapes[name]) for name in asked.outputs]
    like = {"dtype": mine.dtype, "device": mine.device}
    tensors = [graph_of.new_empty(shape, **like) for shape in shapes]
    return [*tensors, torch.empty_like(token)] if asked.keep else tensors


@torch.library.custom_op("vertexrt::backward", mutates_args=())
def backward(
    d_outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    pulls: Sequence[Tensor],
    of_batch: Sequence[Tensor],
    call: str,
) -> list[Tensor]:
    """Go back through a pass of the forward op.

    Args:
        d_outputs: gradients of the pushes; the last of `of_batch` is the token of the pass.
    Returns: gradients of the trained parameters, and of the wanted pulls; of a table, if they are
        sparse, the rows first, int64 [n].
    """
    *of_forward, made = of_batch
    asked = _asked(Call.of(call), of_forward)
    found = asked.back(d_outputs, [*parameters, *pulls], taken(made))
    arrays: list[Any] = []
    for name in asked.bound.trained:
        arrays += found.rows[name] if name in found.rows else (found.parameters[name],)
    tensors = [tensor_of(x) for x in (*arrays, *[found.pulled[n] for n in asked.call.wanted])]
    # What an op returns may not share memory; on a GPU gradients are parts of one tensor.
    return [x.clone() if x.untyped_storage().nbytes() != x.nbytes else x for x in tensors]


@backward.register_fake
def _fake_backward(
    d_outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    pulls: Sequence[Tensor],
    of_batch: Sequence[Tensor],
    call: str,
) -> list[Tensor]:
    asked = Call.of(call)
    mine = binding(asked.number)
    of = dict(zip((*asked.pulls, *mine.names), (*pulls, *parameters), strict=True))
    like = [of[name] for name in (*mine.trained, *asked.wanted)]
    return [torch.empty_like(x, dtype=mine.dtype) for x in like]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Note for the way back what the forward op was given, and its pass."""
    parameters, pulls, of_batch, ctx.call = inputs
    if Call.of(ctx.call).keep:
        ctx.sizes = len(parameters), len(pulls)
        ctx.save_for_backward(*parameters, *pulls, *of_batch, output[-1])


def _go_back(ctx: Any, d_outputs: list[Tensor]) -> tuple[Any, ...]:
    """Return the gradient of each input of the forward op."""
    asked, saved = Call.of(ctx.call), ctx.saved_tensors
    count, end = ctx.sizes[0], sum(ctx.sizes)
    parameters, pulls, of_batch = list(saved[:count]), list(saved[count:end]), list(saved[end:])
    found = backward(d_outputs[:-1], parameters, pulls, of_batch, ctx.call)
    of_parameters, of_pulls = _by_input(asked, found, parameters)
    return of_parameters, of_pulls, [None] * (len(of_batch) - 1), None


def _by_input(
    asked: Call, gradients: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return the gradients of all parameters and of all pulls, None where there is none."""
    mine, found = binding(asked.number), iter(gradients)
    tables = mine.tables if asked.sparse else frozenset()
    shapes = dict(zip(mine.names, [each.shape for each in parameters], strict=True))
    of_parameters = {
        name: sparse_gradient(next(found), next(found), shapes[name])
        if name in tables
        else next(found)
        for name in mine.trained
    }
    of_pulls = dict(zip(asked.wanted, found, strict=True))
    return (
        [of_parameters.get(name) for name in mine.names],
        [of_pulls.get(name) for name in asked.pulls],
    )


def _refuse(ctx: Any, d_gradients: list[Tensor]) -> Any:
    raise refuse_twice()


forward.register_autograd(_go_back, setup_context=_keep_inputs)
backward.register_autograd(_refuse)
