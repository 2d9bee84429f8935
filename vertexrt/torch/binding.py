"""Networks whose parameters are PyTorch's: both have the same memory.

A `NetworkSource` is what a network is made from, and can be pickled; a `BoundNetwork` has its
parameters as tensors. `BoundModule` keeps them together with the `nn.Parameter`s of a module, when
these move, change their dtype or are copied.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vertexrt.api.network import Network
from vertexrt.engine.devices import module_of
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import UsageError
from vertexrt.ir.program import Program

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}
DEVICE = "cpu"


@dataclass(frozen=True)
class NetworkSource:
    """What a network is made from.

    Attributes:
        traced: the program of F; options: of `vrt.compile`.
        reduction: of the loss.
    """

    traced: Program
    options: CompileOptions
    reduction: str

    @staticmethod
    def of(network: Network) -> NetworkSource:
        """Return what a network was made from.

        Raises: UsageError, when it is on another device than a CPU.
        """
        model = network.executor.model
        if network.device != DEVICE:
            got = f"a network on {network.device!r}"
            raise UsageError.at("torch", got, "one on the CPU", "compile it with device='cpu'")
        return NetworkSource(model.traced, model.options, network.reduction)

    def network(self, dtype: torch.dtype) -> Network:
        """Compile it for a dtype; parameters are zero."""
        options = replace(self.options, dtype=DTYPES[dtype])
        executor = module_of(DEVICE).compile_for(DEVICE, self.traced, options)
        return Network(executor, 0, self.reduction)


_numbers = itertools.count(1)
_alive: weakref.WeakValueDictionary[int, BoundNetwork] = weakref.WeakValueDictionary()


class BoundNetwork:
    """A network whose parameters are tensors, too.

    Attributes:
        number: by which ops find it.
        names: of the parameters; own: tensors with their memory; trained: those that get
            gradients; tables: those that are only looked up in.
        push_shapes: of a vertex, by name; pulls: their names; dtype: PyTorch's.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.number = network, next(_numbers)
        program, values = network.program, network.parameters
        self.names = list(values)
        self.own = [torch.from_numpy(values[name]) for name in self.names]
        store = network.executor.model.store
        self.trained = [name for name in self.names if name in store.trained]
        self.tables = frozenset(network.executor.model.sparse)
        pushes = (node for node in program.nodes if node.op == "push")
        self.push_shapes = {node["name"]: tuple(node["shape"]) for node in pushes}
        self.pulls = {pull.name for pull in program.pulls}
        self.dtype = {real: torch_s for torch_s, real in DTYPES.items()}[store.dtype]
        _alive[self.number] = self

    def shares(self, parameters: Sequence[Tensor]) -> bool:
        """Tell whether tensors have the network's memory."""
        return all(
            mine.data_ptr() == given.data_ptr() and mine.dtype == given.dtype
            for mine, given in zip(self.own, parameters, strict=True)
        )

    def adopt(self, parameters: Sequence[Tensor]) -> None:
        """Copy the numbers of parameters, and give these the network's memory."""
        for mine, given in zip(self.own, parameters, strict=True):
            mine.copy_(given.data)
            given.data = mine

    @contextmanager
    def holding(self, parameters: Sequence[Tensor]) -> Iterator[Network]:
        """Let the network compute with the numbers of tensors, which may be others than its own.

        `torch.func.functional_call` gives others.
        """
        with self.network.executor.lock:
            pairs = zip(self.own, parameters, strict=True)
            moved = [(a, b) for a, b in pairs if a.data_ptr() != b.data_ptr()]
            before = [mine.clone() for mine, _ in moved]
            try:
                for mine, given in moved:
                    mine.copy_(given)
                yield self.network
            finally:
                for (mine, _), kept in zip(moved, before, strict=True):
                    mine.copy_(kept)


def binding(number: int) -> BoundNetwork:
    """Return the binding that has a number."""
    return _alive[number]


class BoundModule(nn.Module):
    """A module whose parameters are those of networks.

    Attributes:
        sources: of its networks; owned: the names of each one's parameters in this module.
    """

    sources: list[NetworkSource]
    owned: list[list[str]]
    bindings: list[BoundNetwork]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_post_hook(_bind_again)  # which may have assigned others

    def parameters_of(self, k: int) -> list[Tensor]:
        """Return the parameters of a network, in its order; tensors, inside `functional_call`."""
        return [reduce(getattr, name.split("."), self) for name in self.owned[k]]

    def bind(self, bindings: Sequence[BoundNetwork] = ()) -> None:
        """Let networks have the memory of the parameters, or new networks, where these changed."""
        found: list[BoundNetwork] = []
        self.bindings = found
        for k, source in enumerate(self.sources):
            parameters = self.parameters_of(k)
            if any(p.is_meta for p in parameters):
                return found.clear()  # nothing is there to compute with
            dtype = parameters[0].dtype
            check_place(parameters[0])
            mine = bindings[k] if k < len(bindings) else None
            if mine is None or mine.dtype != dtype:
                mine = BoundNetwork(source.network(dtype))
            if not mine.shares(parameters):
                mine.adopt(parameters)
            found.append(mine)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Convert the parameters, and the networks with them."""
        first = next(self.parameters(), None)
        if first is not None:
            check_place(fn(torch.empty(0, dtype=first.dtype, device=first.device)))
        super()._apply(fn, recurse)
        self.bind(list(self.bindings))
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "bindings": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.bind()


def _bind_again(module: BoundModule, _: object) -> None:
    """Let parameters that were loaded have the memory of the networks."""
    module.bind(list(module.bindings))


def check_place(tensor: Tensor) -> None:
    """Refuse devices and dtypes that no network here computes with. Raises: UsageError."""
    if tensor.device.type not in ("cpu", "meta"):
        got = f"parameters on {tensor.device}"
        raise UsageError.at("torch", got, "on the CPU", "leave the module on the CPU")
    if tensor.dtype not in DTYPES:
        got, expected = f"parameters of {tensor.dtype}", "float32 or float64"
        action = "leave the module in float32; under autocast it computes in float32"
        raise UsageError.at("torch", got, expected, action)
