"""Forward and backward of a network as ops of PyTorch, with fakes: autograd and compilers see two.

Outside of compilers `Pass` does the same as one function of autograd: calling an op of Python takes
PyTorch longer than a small network runs.

The forward op returns the pushes and, with gradients to come, a token of the pass that it keeps.
Where that is gone when the backward op runs (it was gone back through already, or a compiler made
the op anew), the pass is repeated: the seed of what is drawn is an input.

Both take parameters in the binding's order; pulls; the tensors of a batch, which are those of
`BatchTensors` and the seed, int64 [1]; and a `Call` as text, since ops know no records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vertexrt.api.network import Network
from vertexrt.errors import NoKernelError
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundNetwork, binding, sparse_gradient
from vertexrt.torch.pulls import with_pulls
from vertexrt.torch.tokens import graphs_of, taken, token_of

BETWEEN_NAMES, BETWEEN_FIELDS = "\n", "\n\n"


class Call(NamedTuple):
    """What is asked of a network.

    Attributes:
        number: of the binding.
        pulls: names of those that are tensors; outputs: names of pushes.
        wanted: names of the pulls that get a gradient.
        keep: for the backward op; drop: let dropout drop.
        sparse: gradients of tables are rows and their numbers.
    """

    number: int
    pulls: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    keep: bool
    drop: bool
    sparse: bool = False

    def text(self) -> str:
        """Write it as text."""
        number, pulls, outputs, wanted, *flags = self
        lists = [BETWEEN_NAMES.join(each) for each in (pulls, outputs, wanted)]
        return BETWEEN_FIELDS.join([str(number), *lists, *(str(int(flag)) for flag in flags)])

    @staticmethod
    @lru_cache
    def of(text: str) -> Call:
        """Read it from text; those of the last calls are kept."""
        number, *lists, keep, drop, sparse = text.split(BETWEEN_FIELDS)
        pulls, outputs, wanted = (
            tuple(each.split(BETWEEN_NAMES)) if each else () for each in lists
        )
        return Call(int(number), pulls, outputs, wanted, keep == "1", drop == "1", sparse == "1")


class AskedPass(NamedTuple):
    """A pass that is asked for.

    Attributes:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
    """

    bound: BoundNetwork
    call: Call
    graphs: GraphBatch
    seed: int

    @staticmethod
    def of(call: Call, of_batch: Sequence[Tensor]) -> AskedPass:
        """Return what inputs of an op ask for."""
        token, _, seed = of_batch
        return AskedPass(binding(call.number), call, graphs_of(token), int(seed))

    def evaluate(self, net: Network, pulls: Sequence[Tensor]) -> dict[str, Any]:
        """Evaluate the network."""
        try:
            return self._forward(net, pulls)
        except NoKernelError:
            if not self.bound.source.falls_back(net):
                raise
        return self._forward(net, pulls)

    def _forward(self, net: Network, pulls: Sequence[Tensor]) -> dict[str, Any]:
        call, dtype = self.call, net.executor.model.store.dtype
        return self.bound.passes.forward(
            with_pulls(self.graphs, call.pulls, pulls, dtype),
            call.keep,
            call.outputs,
            pulls=call.wanted if call.keep else None,
            dropout=call.drop,
            seed=self.seed,
        )

    def back(
        self, d_outputs: Sequence[Tensor | None], given: Sequence[Tensor], kept: Any
    ) -> list[Tensor]:
        """Go back through a pass that is kept, or that is repeated; see the op `backward`.

        Args:
            given: parameters, then pulls.
        """
        bound, call = self.bound, self.call
        count = len(bound.names)
        with bound.holding(given[:count]) as net:
            pushed = zip(call.outputs, d_outputs, strict=True)
            d_pushes = {name: bound.passed(d) for name, d in pushed if d is not None}
            if kept is None or not net.keeps(kept):
                kept = self.evaluate(net, given[count:])
            found = bound.passes.backward(d_pushes, of=kept, sparse=call.sparse)
            arrays: list[Any] = []
            for name in bound.trained:
                arrays += found.rows[name] if name in found.rows else (found.parameters[name],)
            arrays += [found.pulled[name] for name in call.wanted]
            return [torch.as_tensor(array) for array in arrays]


@torch.library.custom_op("vertexrt::forward", mutates_args=())
def forward(
    parameters: Sequence[Tensor], pulls: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    """Evaluate a network on a batch.

    Returns: the pushes [V, ...], and if the pass is kept, its token.
    """
    asked = AskedPass.of(Call.of(call), of_batch)
    with asked.bound.holding(parameters) as net:
        found = asked.evaluate(net, pulls)
        tensors = [torch.as_tensor(found[name]) for name in asked.call.outputs]
    return [*tensors, token_of(found)] if asked.call.keep else tensors


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
    asked = AskedPass.of(Call.of(call), of_forward)
    found = asked.back(d_outputs, [*parameters, *pulls], taken(made))
    # What an op returns may not share memory; on a GPU gradients are parts of one tensor.
    return [x.clone() if x.untyped_storage().nbytes() != x.nbytes else x for x in found]


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


forward.register_autograd(_go_back, setup_context=_keep_inputs)


class Pass(torch.autograd.Function):
    """A pass and its way back, where no compiler looks."""

    @staticmethod
    def forward(ctx: Any, asked: AskedPass, *given: Tensor) -> tuple[Tensor, ...]:
        """Evaluate a network.

        Args:
            given: parameters, then pulls.
        """
        bound, call = asked.bound, asked.call
        count = len(bound.names)
        with bound.holding(given[:count]) as net:
            found = asked.evaluate(net, given[count:])
            pushes = tuple([torch.as_tensor(found[name]) for name in call.outputs])
        if call.keep:
            ctx.asked, ctx.kept = asked, found
            ctx.save_for_backward(*given)
            ctx.set_materialize_grads(False)
        return pushes

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
        """Return the gradient of each argument of `forward`."""
        given, asked = ctx.saved_tensors, ctx.asked
        found = asked.back(d_outputs, given, ctx.kept)
        of_parameters, of_pulls = _by_input(asked.call, found, given[: len(asked.bound.names)])
        return None, *of_parameters, *of_pulls
