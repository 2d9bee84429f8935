"""A network as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from vertexrt.api.arguments import check_loss, check_pushes, names_of
from vertexrt.api.network import Network
from vertexrt.engine.model import REDUCTIONS
from vertexrt.errors import UsageError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundModule
from vertexrt.torch.passes import BatchTensors, evaluate, graphs_in, outside_graphs

NOT_IN_GRAPHS = (
    "[torch] module.loss in a graph of torch.compile; a call outside of it; leave fullgraph out, "
    "or write module(batch, outputs=['loss'])['loss'].sum()."
)
evaluate_outside = outside_graphs(evaluate)


class Module(BoundModule):
    """A network as an `nn.Module`: its parameters are those of the network, in the same memory.

    Several forward passes may be alive; each is gone back through by autograd. It draws dropout
    from PyTorch's generator, in `train()` alone. It computes in its dtype, float32 or float64,
    under autocast too; real pulls are converted. `state_dict` has the network's names.

    Args:
        network: what `vrt.compile` returned, for the CPU or a GPU.
        sparse: gradients of tables, which are only looked up in, are sparse tensors, as of
            `nn.Embedding(sparse=True)`; not under `torch.compile`.
    Raises: UsageError, when it is none, or a part of F has the name of a method of `nn.Module`.
    """

    def __init__(self, network: Network, *, sparse: bool = False) -> None:
        super().__init__()
        given: object = network
        if not isinstance(given, Network):
            got = f"a {type(network).__name__}"
            action = "write Module(vrt.compile(function, device='cpu'))"
            raise UsageError.at("torch", got, "a network", action)
        self.sparse = sparse
        self.hold(network)

    @property
    def network(self) -> Network:
        """The network that computes."""
        return self.bound()[0].network

    def extra_repr(self) -> str:
        """Say what is inside."""
        return "" if self.binding is None else self.binding.network.program.name

    def forward(
        self,
        batch: GraphBatch | BatchTensors,
        outputs: Collection[str] | None = None,
        **pulls: Tensor,
    ) -> dict[str, Tensor]:
        """Evaluate the network on a batch.

        Args:
            batch: graphs, as they are or as a `BatchTensors`; with their own pulls.
            outputs: names of pushes; all by default.
            pulls: by name, in place of the batch's or in addition: [V, *shape], or the rows [N,
                *shape] of a pull that the batch has as a table (`vrt.Rows`).
        Returns: name -> [V, *shape], in the order of the batch's vertices.
        Raises: UsageError, for names that the network does not have; PullError, when pulls do not
            fit.
        """
        given: object = batch
        if not isinstance(given, (GraphBatch, BatchTensors)):
            graphs_in(given)
        bound, parameters = self.bound()
        names = tuple(bound.push_shapes) if outputs is None else names_of("torch", outputs)
        _check_names("pushes", names, bound.push_shapes)
        _check_names("pulls", tuple(pulls), bound.pulls)
        if not names:
            check_pushes("forward", names, tuple(bound.push_shapes), bound.network.program.name)
        asked = bound, parameters, batch, pulls, names
        found = evaluate(*asked, training=self.training, sparse=self.sparse)
        return dict(zip(names, found, strict=False))

    def loss(
        self,
        batch: GraphBatch | BatchTensors,
        *,
        reduction: str | None = None,
        **pulls: Tensor,
    ) -> Tensor:
        """Evaluate the push `loss`, reduced to one number, which `Network.step` goes down along.

        Forward and backward are one launch, so that `backward()` of what it returns finds the
        gradients made, and multiplies them by the gradient that comes in. Without gradients to come
        (`torch.no_grad()`) it evaluates the loss alone.

        Args:
            batch, pulls: of `forward`.
            reduction: "mean_graphs", "mean_vertices" or "sum", see `vrt.compile`; by default the
                network's own.
        Returns: a tensor [] on the network's device.
        Raises: UsageError, where F pushes no loss, and for a pull or a reduction that there is not;
            PullError, when pulls do not fit. Inside `torch.compile` it ends a graph; with
            `fullgraph=True` that is an error.
        """
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=NOT_IN_GRAPHS)
        bound, parameters = self.bound()
        _check_names("pulls", tuple(pulls), bound.pulls)
        check_loss("loss", bound.network.program.name, bound.push_shapes)
        if reduction is None:
            reduction = bound.network.reduction
        elif reduction not in REDUCTIONS:
            action = f"name one of these.{nearest(reduction, REDUCTIONS)}"
            expected = f"one of {', '.join(REDUCTIONS)}"
            raise UsageError.at("loss", f"reduction={reduction!r:.60}", expected, action)
        given = bound, parameters, batch, pulls, ("loss",)
        (loss,) = evaluate_outside(
            *given, training=self.training, sparse=self.sparse, reduction=reduction
        )
        return loss


def _check_names(what: str, names: tuple[str, ...], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            expected = f"it {what} {', '.join(sorted(known)) or 'nothing'}"
            action = f"name one of these.{nearest(name, known)}"
            raise UsageError.at("torch", f"{name!r}", expected, action)
