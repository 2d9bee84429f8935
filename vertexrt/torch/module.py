"""A network as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from vertexrt.api.network import Network
from vertexrt.errors import UsageError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.torch.binding import BoundModule, BoundNetwork, NetworkSource
from vertexrt.torch.ops import AskedPass, Call, Pass, forward
from vertexrt.torch.tokens import BatchTensors, graphs_in


class NamedPart(nn.Module):
    """A part of a parameter's name: holds what comes after the dot."""


def run(
    bound: BoundNetwork,
    parameters: list[Tensor],
    batch: GraphBatch | BatchTensors,
    pulls: Mapping[str, Tensor],
    outputs: tuple[str, ...],
    training: bool,
    sparse: bool = False,
) -> dict[str, Tensor]:
    """Evaluate a bound network; gradients go to the parameters and to real pulls."""
    given = {name: _placed(bound, tensor) for name, tensor in pulls.items()}
    wanted = _with_gradients(given)
    keep = bool(wanted) or (torch.is_grad_enabled() and any(p.requires_grad for p in parameters))
    call = Call(bound.number, tuple(given), outputs, wanted, keep, training, sparse)
    pulled = list(given.values())
    if torch.compiler.is_compiling():
        tensors = batch if isinstance(batch, BatchTensors) else BatchTensors.of(batch)
        seed = torch.randint(2**32, (1,)) if training else torch.zeros(1, dtype=torch.int64)
        of_batch = [tensors.token, tensors.graph_of, seed]
        found = forward(parameters, pulled, of_batch, call.text())
    else:
        drawn = int(torch.randint(2**32, (1,))) if training else 0
        asked = AskedPass(bound, call, graphs_in(batch), drawn)
        found = Pass.apply(asked, *parameters, *pulled)
    return dict(zip(outputs, found, strict=False))


def _placed(bound: BoundNetwork, pull: Tensor) -> Tensor:
    """Return a pull where, and as, the network reads it: whole numbers on the host."""
    if not pull.is_floating_point():
        return pull.cpu()
    return pull.to(bound.device, bound.dtype)


def _with_gradients(pulls: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of pulls to which a gradient will come."""
    if not torch.is_grad_enabled():
        return ()
    return tuple([name for name, tensor in pulls.items() if tensor.requires_grad])


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
        source = NetworkSource.of(network)
        bound, self.sparse = BoundNetwork(network, source), sparse
        self.sources, self.owned = [source], [bound.names]
        for name, tensor in zip(bound.names, bound.own, strict=True):
            *path, last = name.split(".")
            inside: nn.Module = self
            for part in path:
                if part not in inside._modules:
                    inside.add_module(_free(inside, part), NamedPart())
                inside = inside.get_submodule(part)
            parameter = nn.Parameter(tensor, requires_grad=name in bound.trained)
            inside.register_parameter(_free(inside, last), parameter)
        self.bind([bound])

    @property
    def network(self) -> Network:
        """The network that computes."""
        return self.bindings[0].network

    def extra_repr(self) -> str:
        """Say what is inside."""
        return f"{self.bindings[0].network.program.name}" if self.bindings else ""

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
                *shape] of a pull that the batch has as a table (`vrt.Pulled`).
        Returns: name -> [V, *shape], in the order of the batch's vertices.
        Raises: UsageError, for names that the network does not have; PullError, when pulls do not
            fit.
        """
        bound = self.bindings[0]
        names = tuple(bound.push_shapes) if outputs is None else tuple(outputs)
        _check_names("pushes", names, bound.push_shapes)
        _check_names("pulls", tuple(pulls), bound.pulls)
        parameters = self.parameters_of(0)
        return run(bound, parameters, batch, pulls, names, self.training, self.sparse)


def _free(inside: nn.Module, name: str) -> str:
    """Return a name that a module does not have for something else. Raises: UsageError."""
    if hasattr(inside, name):
        got, action = f"a part of F called {name!r}", "rename it in the vertex function"
        raise UsageError.at("torch", got, "a name that nn.Module does not have", action)
    return name


def _check_names(what: str, names: tuple[str, ...], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            expected = f"it {what} {', '.join(sorted(known)) or 'nothing'}"
            action = f"name one of these.{nearest(str(name), list(known))}"
            raise UsageError.at("torch", f"{name!r}", expected, action)
