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
from vertexrt.api.forward_passes import ForwardPass
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
Path = tuple[tuple[str, ...], str]  # to a parameter: modules, one in the other, and its name
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
        names: of the parameters; own: tensors with their memory, which nobody else has; trained:
            those that get gradients; tables: those that are only looked up in.
        draws: F draws random numbers.
        push_shapes: of a vertex, by name; pulls: their names; model: what was compiled.
        dtype, device: PyTorch's; real: the dtype as NumPy's.
    """

    def __init__(self, network: Network, source: NetworkSource) -> None:
        self.network, self.source, self.number = network, source, next(_numbers)
        self._executor = network.executor
        self.model, self.forward_passes = self._executor.model, network._passes
        program, store = network.program, self.model.store
        self.store = store
        self.stays = network.device == "cuda"
        self.results: HostResults | TensorResults = self.forward_passes.on_host
        if self.stays:
            self.results = TensorResults(cast("LaunchesHere", self._executor))
        self.names, self.own = list(store.names), self.lent()
        self.device = torch.as_tensor(self.results.array([], (0,))).device
        self._uses: dict[tuple[tuple[str, ...], tuple[str, ...] | None, bool], Use] = {}
        self._at = _places_of(self.own)
        self.trained = [name for name in self.names if name in store.trained]
        self._frozen = [k for k, name in enumerate(self.names) if name not in store.trained]
        self.tables = frozenset(self.model.sparse)
        self._places = _places(store)
        self.draws = any(OPS[node.op].draws for node in program.nodes)
        pushes = [program.nodes[k] for k in program.find("push")]
        self.push_shapes = {push["name"]: tuple(push["shape"]) for push in pushes}
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
    ) -> tuple[ForwardPass | None, list[Any]]:
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

    def lent(self) -> list[Tensor]:
        """Return tensors with the memory of the parameters.

        Each has a storage of its own, since what is in a storage can be exchanged in place.
        """
        return [torch.as_tensor(x) for x in self.results.parameters().values()]

    def is_at(self, place: Tensor) -> bool:
        """Tell whether it computes in the dtype of a tensor, and where that is."""
        return bool(place.dtype == self.dtype and place.device == self.device)

    def adopt(self, parameters: Sequence[Tensor | None]) -> None:
        """Copy the numbers of parameters, and give these the network's memory, but for None.

        Those that other processes see keep theirs, as do those of which a network has no equal.
        """
        moved = [
            (given, mine, lent, given.detach().clone())
            for given, mine, lent, at in zip(
                parameters, self.own, self.lent(), self._at, strict=True
            )
            if given is not None
            and type(given) is nn.Parameter
            and self.is_at(given)
            and given.shape == mine.shape
            and (given.data_ptr(), given.stride()) != at
            and (given.is_cuda or not given.is_shared())
        ]
        for given, mine, lent, values in moved:
            mine.copy_(values)
            given.data = lent

    def wants(self, parameters: Sequence[Tensor]) -> bool:
        """Tell whether parameters get gradients.

        Raises: UsageError, for one that F does not train.
        """
        if not torch.is_grad_enabled():
            return False
        for k in self._frozen:
            if parameters[k].requires_grad:
                got, action = f"{self.names[k]} wants a gradient", "leave its requires_grad False"
                expected = "a parameter that is not declared with trainable=False"
                raise UsageError.at("torch", got, expected, action)
        return True in [p.requires_grad for p in parameters]

    def holding(self, parameters: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Hold the network, and let it compute with the numbers of tensors, perhaps not its own.

        `torch.func.functional_call` gives others.

        Raises: UsageError, while a CUDA graph is captured: before anything else, since much of what
            a pass asks of the driver would end the capture.
        """
        if self._on_gpu and torch._C._cuda_isCurrentStreamCapturing():
            raise UsageError.at("torch", *NOT_CAPTURED)
        current = not self._on_gpu or is_current(self.device)
        if current and _places_of(parameters) == self._at:
            lock: AbstractContextManager[Any] = self._executor.lock
            return lock
        return self._with_others(parameters)

    @contextmanager
    def _with_others(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Let parameters have other numbers for a while; those given may be in their memory."""
        with at(self.device), self._executor.lock:
            moved = []
            places = _places_of(parameters)
            each = zip(self.names, self.own, parameters, places, self._at, strict=True)
            for name, mine, given, place, own in each:
                if not self.is_at(given) or given.shape != mine.shape:
                    got, expected = (
                        f"{x.dtype} {list(x.shape)} on {x.device}" for x in (given, mine)
                    )
                    action = "convert the module as a whole: module.to(device, dtype)"
                    raise UsageError.at("torch", f"{name} is {got}", expected, action)
                if place != own:
                    moved.append((mine, mine.clone(), given.clone()))
            try:
                for mine, _, values in moved:
                    mine.copy_(values)
                yield
            finally:
                for mine, before, _ in moved:
                    mine.copy_(before)


def _places_of(tensors: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """Return where the elements of tensors are."""
    each = map(Tensor.data_ptr, tensors), map(Tensor.stride, tensors)
    return list(zip(*each, strict=True))


def _use(outputs: tuple[str, ...], pulls: tuple[str, ...] | None, drops: bool) -> Use:
    names = frozenset(outputs)
    if pulls is None:
        return Use(names, dropout=drops or None)
    return Use(names, seeds=names, pulls=frozenset(pulls), dropout=drops)


def _places(store: ParameterStore) -> list[ParameterPlace | None]:
    """Return where the gradient of each parameter is; None, where it has none."""
    return [ParameterPlace.of(store, n) if n in store.trained else None for n in store.names]


def sparse_gradient(rows: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a gradient of some rows."""
    return torch.sparse_coo_tensor(
        rows[None], values, tuple(shape), is_coalesced=True, check_invariants=False
    )


def binding(number: int) -> BoundNetwork:
    """Return the binding that has a number."""
    return _alive[number]


class Bindings(list[BoundNetwork]):
    """Networks of a module; copies of it make their own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Bindings, ()


class NamedPart(nn.Module):
    """A part of a parameter's name: holds what comes after the dot."""


class BoundModule(nn.Module):
    """A module whose parameters are those of networks.

    Attributes:
        sources: of its networks; owned: where each one's parameters are in this module.
        bindings: the networks; none, until there is memory to compute with.
    """

    sources: list[NetworkSource]
    owned: list[list[Path]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bindings = Bindings()
        self.register_load_state_dict_post_hook(_bind_again)  # which may have assigned others

    def hold(self, network: Network, prefix: str = "") -> None:
        """Have the parameters of one network, in the same memory, by its names without a prefix.

        Raises: UsageError, where a name is one of a method of modules.
        """
        source = NetworkSource.of(network)
        bound = BoundNetwork(network, source)
        self.sources, self.owned = [source], [[]]
        for name, tensor in zip(bound.names, bound.lent(), strict=True):
            *path, last = name.removeprefix(prefix).split(".")
            self.owned[0].append((tuple(path), last))
            inside: nn.Module = self
            for part in path:
                if part not in inside._modules:
                    inside.add_module(_free(inside, part), NamedPart())
                inside = inside.get_submodule(part)
            parameter = nn.Parameter(tensor, requires_grad=name in bound.trained)
            inside.register_parameter(_free(inside, last), parameter)
        if not bound.names:  # `to` and the like convert the network with it
            nothing = torch.empty(0, dtype=bound.dtype, device=bound.device)
            self.register_buffer("place", nothing, persistent=False)
        self.bindings.append(bound)

    def bound(self, k: int) -> tuple[BoundNetwork, list[Tensor]]:
        """Return a network, and its parameters, in its order; tensors, inside `functional_call`.

        Raises: UsageError, where a parameter is missing, or has no memory.
        """
        parameters, direct = [], self._parameters
        for path in self.owned[k]:
            names, last = path
            found = _registered(self, path) if names else direct.get(last)
            if found is None:  # `torch.nn.utils.parametrize` makes a property of it
                found = getattr(self.get_submodule(".".join(names)), last, None)
                if found is None:
                    got, expected = f"no parameter {'.'.join((*names, last))}", "all of the network"
                    raise UsageError.at("torch", got, expected, "set it, or make the module anew")
            parameters.append(found)
        if not self.bindings or (parameters and not self.bindings[k].is_at(parameters[0])):
            self.bind()  # they were set one by one
            if not self.bindings:
                got, expected = "parameters on meta", "on a CPU or a GPU"
                raise UsageError.at("torch", got, expected, "load them, or call module.to_empty")
        return self.bindings[k], parameters

    def bind(self) -> None:
        """Let networks have the memory of the parameters, or new networks, where these changed.

        What is computed from parameters, as `torch.nn.utils.parametrize` does, is left alone.
        """
        own = [[_registered(self, path) for path in paths] for paths in self.owned]
        tensors = [p for each in own for p in each if p is not None] or [self._place()]
        before, self.bindings = self.bindings, Bindings()
        if any(p.is_meta for p in tensors):
            return  # nothing is there to compute with
        place = tensors[0]
        check_place(place)
        for k, source in enumerate(self.sources):
            mine = before[k] if k < len(before) else None
            if mine is None or not mine.is_at(place):
                mine = BoundNetwork(source.network(place.dtype, place.device), source)
            mine.adopt(own[k])
            self.bindings.append(mine)

    def _place(self) -> Tensor:
        """Return a tensor that is converted as the module is."""
        own = [mine.own for mine in self.bindings]  # where others hold the parameters
        return next(itertools.chain(self.parameters(), self.buffers(), *own))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Convert the parameters, and the networks with them."""
        first = self._place()
        check_place(fn(torch.empty(0, dtype=first.dtype, device=first.device)))
        super()._apply(fn, recurse)
        self.bind()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.bind()


def _free(inside: nn.Module, name: str) -> str:
    """Return a name that a module does not have for something else. Raises: UsageError."""
    if hasattr(inside, name):
        got, action = f"a part of F called {name!r}", "rename it in the vertex function"
        raise UsageError.at("torch", got, "a name that nn.Module does not have", action)
    return name


def _registered(inside: nn.Module, path: Path) -> Tensor | None:
    """Return a parameter; None, where something else has its place.

    Attributes of modules are looked for in several places, which takes ten times as long as a dict.
    """
    names, last = path
    for name in names:
        part = inside._modules[name]
        assert part is not None, name
        inside = part
    return inside._parameters.get(last)


def _bind_again(module: BoundModule, _: object) -> None:
    """Let parameters that were loaded have the memory of the networks."""
    module.bind()


def check_place(tensor: Tensor) -> None:
    """Refuse devices and dtypes that no network here computes with. Raises: UsageError."""
    if tensor.device.type not in (*DEVICES, "meta"):
        got = f"parameters on {tensor.device}"
        raise UsageError.at("torch", got, "on a CPU or a GPU of CUDA", "leave the module there")
    if tensor.dtype not in DTYPES:
        got, expected = f"parameters of {tensor.dtype}", "float32 or float64"
        action = "leave the module in float32; under autocast it computes in float32"
        raise UsageError.at("torch", got, expected, action)
