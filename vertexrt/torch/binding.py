"""Networks whose parameters are PyTorch's: both have the same memory.

A `NetworkSource` is what a network is made from, and can be pickled; a `BoundNetwork` has its
parameters as tensors. `BoundModule` keeps them together with the `nn.Parameter`s of a module, when
these move, change their dtype or are copied.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vertexrt.api.arguments import check_pushes
from vertexrt.api.forward_passes import ForwardOutputs
from vertexrt.api.network import Network
from vertexrt.engine.devices import module_of
from vertexrt.engine.executor import Asked
from vertexrt.engine.host_results import HostResults
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.results import LaunchesHere, PushRows
from vertexrt.engine.variant import CompileOptions, Use
from vertexrt.errors import UsageError
from vertexrt.ir.ops import OPS
from vertexrt.ir.program import Program
from vertexrt.torch.results import DTYPES, ParameterPlace, RowsOf, TensorResults, readable

Array = np.ndarray[Any, Any]
OF_NUMPY = {real: dtype for dtype, real in DTYPES.items()}
DEVICES = ("cpu", "cuda")
NOT_CAPTURED = (
    "a network inside of a CUDA graph that is captured",
    "a call outside of it: what a pass launches is for that call alone",
    "leave the module out of the graph",
)


@dataclass(frozen=True)
class NetworkSource:
    """What a network is made from.

    Attributes:
        traced: the program of F; options: of `vrt.compile`, for a device.
        reduction: of the loss.
    """

    traced: Program
    options: CompileOptions
    device: str
    reduction: str

    @staticmethod
    def of(network: Network) -> NetworkSource:
        """Return what a network was made from.

        Raises: UsageError, when it is on another device than a CPU or a GPU.
        """
        model = network.executor.model
        if network.device not in DEVICES:
            got, action = f"a network on {network.device!r}", "compile it with device='cpu'"
            raise UsageError.at("torch", got, "one on the CPU or a GPU", action)
        return NetworkSource(model.traced, model.options, network.device, network.reduction)

    def network(self, dtype: torch.dtype, device: torch.device) -> Network:
        """Compile it for a dtype and a device; parameters are zero.

        On another device than it was made for, no engine was asked for.

        Raises: DeviceError, when vertexrt cannot use the device; UsageError, where it does not have
            what the network was compiled with.
        """
        options = replace(self.options, dtype=DTYPES[dtype])
        if device.type != self.device:
            options = replace(options, engine="auto", threads=None, processors=None)
        module = module_of(device.type)
        with at(device):
            module.check(device.type, options)
            executor = module.compile_for(device.type, self.traced, options)
            return Network(executor, 0, self.reduction)


def at(device: torch.device) -> AbstractContextManager[Any]:
    """Let CUDA's calls go to a GPU, if it is one."""
    return nullcontext() if is_current(device) else torch.cuda.device(device)


def is_current(device: torch.device) -> bool:
    """Tell whether CUDA's calls go to a device, or do not matter to it."""
    return device.type != "cuda" or bool(device.index == torch.cuda.current_device())


_numbers = itertools.count(1)
_alive: weakref.WeakValueDictionary[int, BoundNetwork] = weakref.WeakValueDictionary()


class BoundNetwork:
    """A network whose parameters are tensors, too.

    Attributes:
        source: of the network; number: by which ops find it.
        store: its parameters; forward_passes, results: its passes, and how they run.
        stays: what passes give back stays on a GPU.
        names: of the parameters; own: tensors with their memory; trained: those that get
            gradients; tables: those that are only looked up in.
        draws: F draws random numbers.
        push_shapes: of a vertex, by name; pulls: their names; model: what was compiled.
        dtype, device: PyTorch's; real: the dtype as NumPy's.
    """

    def __init__(self, network: Network, source: NetworkSource) -> None:
        self.network, self.source, self.number = network, source, next(_numbers)
        self.model, self.forward_passes = network.executor.model, network._passes
        program, store = network.program, self.model.store
        self.store = store
        self.stays = network.device == "cuda"
        self.results: HostResults | TensorResults = self.forward_passes.on_host
        if self.stays:
            self.results = TensorResults(cast("LaunchesHere", network.executor))
        values = self.results.parameters()
        self.names, self.own = list(values), [torch.as_tensor(x) for x in values.values()]
        self.device = self.own[0].device if self.own else torch.device("cpu")
        self._uses: dict[tuple[tuple[str, ...], tuple[str, ...] | None, bool], Use] = {}
        self._at = [mine.data_ptr() for mine in self.own]
        self.trained = [name for name in self.names if name in store.trained]
        self.tables = frozenset(self.model.sparse)
        self._places = _places(store)
        self.draws = any(OPS[node.op].draws for node in program.nodes)
        self.push_shapes = _push_shapes(program)
        self._on_gpu = self.device.type == "cuda"
        self.pulls = {pull.source for pull in program.pulls}
        self.real, self.dtype = store.dtype, OF_NUMPY[store.dtype]
        _alive[self.number] = self

    def passed(self, d: Tensor, row_of: Array | None = None) -> Any:
        """Return the gradient of a push as passes take it.

        Args:
            row_of: int32 [V], which row of it each vertex has; None for its own.
        """
        given = d.detach()
        if self.stays:
            whole = readable(given)
            return whole if row_of is None else RowsOf(whole, row_of)
        return given.numpy() if row_of is None else given.numpy().take(row_of, axis=0)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Return no gradient of a push as passes take it."""
        return self.results.array(None, shape)

    def use(self, outputs: tuple[str, ...], pulls: tuple[str, ...] | None, drops: bool) -> Use:
        """Return what a pass is for; each is made once.

        Args:
            outputs: names of pushes; pulls: of those that get a gradient; None, where nothing does.
        Raises: UsageError, where no push is named.
        """
        asked = outputs, pulls, drops
        found = self._uses.get(asked)
        if found is None:
            program = self.network.program
            check_pushes("forward", outputs, tuple(self.push_shapes), program.name)
            found = self._uses[asked] = _use(*asked)
        return found

    def evaluate(
        self, asked: Asked, wanted: Sequence[PushRows]
    ) -> tuple[ForwardOutputs | None, list[Any]]:
        """Evaluate what is asked; return what keeps the way back, or None, and what is wanted."""
        if asked.use.backward:
            return self.forward_passes.begin(asked, wanted, self.results)
        return None, self.forward_passes.evaluate(asked, wanted, self.results)

    def parts_of(
        self, flat: Tensor, rows: Mapping[str, tuple[Tensor, Tensor]]
    ) -> list[Tensor | None]:
        """Return the gradient of each parameter, None where it has none: parts of a tensor.

        Args:
            flat: in the store's layout; rows: of tables, their numbers and gradients, which take
                the place of parts.
        """
        if not rows:
            as_strided = flat.as_strided
            return [None if place is None else as_strided(*place) for place in self._places]
        return [
            None
            if place is None
            else sparse_gradient(*rows[name], place.shape)
            if name in rows
            else place.part(flat)
            for name, place in zip(self.names, self._places, strict=True)
        ]

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

    def holding(self, parameters: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Hold the network, and let it compute with the numbers of tensors, perhaps not its own.

        `torch.func.functional_call` gives others.

        Raises: UsageError, while a CUDA graph is captured: before anything else, since much of what
            a pass asks of the driver would end the capture.
        """
        if self._on_gpu and torch._C._cuda_isCurrentStreamCapturing():
            raise UsageError.at("torch", *NOT_CAPTURED)
        current = not self._on_gpu or is_current(self.device)
        if current and [given.data_ptr() for given in parameters] == self._at:
            lock: AbstractContextManager[Any] = self.network.executor.lock
            return lock
        return self._with_others(parameters)

    @contextmanager
    def _with_others(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        with at(self.device), self.network.executor.lock:
            pairs = zip(self.own, parameters, strict=True)
            moved = [(a, b) for a, b in pairs if a.data_ptr() != b.data_ptr()]
            before = [mine.clone() for mine, _ in moved]
            try:
                for mine, given in moved:
                    mine.copy_(given)
                yield
            finally:
                for (mine, _), kept in zip(moved, before, strict=True):
                    mine.copy_(kept)


def _use(outputs: tuple[str, ...], pulls: tuple[str, ...] | None, drops: bool) -> Use:
    names = frozenset(outputs)
    if pulls is None:
        return Use(names, dropout=drops or None)
    return Use(names, seeds=names, pulls=frozenset(pulls), dropout=drops)


def _places(store: ParameterStore) -> list[ParameterPlace | None]:
    """Return where the gradient of each parameter is; None, where it has none."""
    return [ParameterPlace.of(store, n) if n in store.trained else None for n in store.names]


def _push_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a vertex's pushes, by name."""
    pushes = [program.nodes[k] for k in program.find("push")]
    return {push["name"]: tuple(push["shape"]) for push in pushes}


def sparse_gradient(rows: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a gradient of some rows."""
    return torch.sparse_coo_tensor(
        rows[None], values, tuple(shape), is_coalesced=True, check_invariants=False
    )


def binding(number: int) -> BoundNetwork:
    """Return the binding that has a number."""
    return _alive[number]


class BoundModule(nn.Module):
    """A module whose parameters are those of networks.

    Attributes:
        sources: of its networks; owned: the names of each one's parameters in this module; paths:
            the same, split.
    """

    sources: list[NetworkSource]
    owned: list[list[str]]
    bindings: list[BoundNetwork]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.paths: dict[int, list[tuple[tuple[str, ...], str]]] = {}
        self.register_load_state_dict_post_hook(_bind_again)  # which may have assigned others

    def parameters_of(self, k: int) -> list[Tensor]:
        """Return the parameters of a network, in its order; tensors, inside `functional_call`."""
        own, found = self._parameters, []
        for path in self._paths(k):
            inside, last = path
            mine = None if inside else own.get(last)
            found.append(_parameter(self, path) if mine is None else mine)
        return found

    def _paths(self, k: int) -> list[tuple[tuple[str, ...], str]]:
        """Return where the parameters of a network are: modules, one in the other, and a name."""
        found = self.paths.get(k)
        if found is None:
            split = [name.rpartition(".") for name in self.owned[k]]
            found = [(tuple(path.split(".")) if path else (), last) for path, _, last in split]
            self.paths[k] = found
        return found

    def bind(self, bindings: Sequence[BoundNetwork] = ()) -> None:
        """Let networks have the memory of the parameters, or new networks, where these changed."""
        found: list[BoundNetwork] = []
        self.bindings = found
        for k, source in enumerate(self.sources):
            parameters = self.parameters_of(k)
            if any(p.is_meta for p in parameters):
                return found.clear()  # nothing is there to compute with
            dtype, device = parameters[0].dtype, parameters[0].device
            check_place(parameters[0])
            mine = bindings[k] if k < len(bindings) else None
            if mine is None or mine.dtype != dtype or mine.device != device:
                mine = BoundNetwork(source.network(dtype, device), source)
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


def _parameter(inside: nn.Module, path: tuple[tuple[str, ...], str]) -> Tensor:
    """Return a parameter, or what has its place.

    Attributes of modules are looked for in several places, which takes ten times as long as a dict.
    """
    names, last = path
    for name in names:
        part = inside._modules[name]
        assert part is not None, name
        inside = part
    found = inside._parameters.get(last)
    if found is None:  # `torch.nn.utils.parametrize` makes a property of it
        other: Tensor = getattr(inside, last)
        return other
    return found


def _bind_again(module: BoundModule, _: object) -> None:
    """Let parameters that were loaded have the memory of the networks."""
    module.bind(list(module.bindings))


def check_place(tensor: Tensor) -> None:
    """Refuse devices and dtypes that no network here computes with. Raises: UsageError."""
    if tensor.device.type not in (*DEVICES, "meta"):
        got = f"parameters on {tensor.device}"
        raise UsageError.at("torch", got, "on a CPU or a GPU of CUDA", "leave the module there")
    if tensor.dtype not in DTYPES:
        got, expected = f"parameters of {tensor.dtype}", "float32 or float64"
        action = "leave the module in float32; under autocast it computes in float32"
        raise UsageError.at("torch", got, expected, action)
