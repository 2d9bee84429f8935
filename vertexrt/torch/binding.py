"""Networks whose parameters are PyTorch's: both have the same memory.

A `NetworkSource` is what a network is made from, and can be pickled; a `BoundNetwork` has its
parameters as tensors. `BoundModule` keeps them together with the `nn.Parameter`s of a module, when
these move, change their dtype or are copied.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vertexrt.api.network import Network
from vertexrt.engine.devices import module_of
from vertexrt.engine.host import HostExecutor
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import CompileOptions, draws_numbers
from vertexrt.errors import UsageError
from vertexrt.ir.program import Program
from vertexrt.torch.tensors import DTYPES, OF_NUMPY, DeviceTensors, HostTensors, tensor_of

Path = tuple[tuple[str, ...], str]  # to a parameter: modules, one in the other, and its name
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
            if device.type != "cpu":
                executor = module.compile_for(device.type, self.traced, options)
                return Network(executor, 0, self.reduction)
            key = id(self.traced), options
            model = _models.get(key)
            if model is None:
                host = module.compile_for("cpu", self.traced, options)
                _models[key] = host.model
            else:
                host = HostExecutor(model.equal())
            return Network(host, 0, self.reduction)

    def __deepcopy__(self, _: object) -> NetworkSource:
        """Return itself, which does not change: copies of a module have equal programs."""
        return self


def at(device: torch.device) -> AbstractContextManager[Any]:
    """Let CUDA's calls go to a GPU, if it is one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# The first of equal networks on the host, by the identity of their program; each keeps both alive.
_models: weakref.WeakValueDictionary[tuple[int, CompileOptions], CompiledModel] = (
    weakref.WeakValueDictionary()
)
_numbers = itertools.count(1)
bound_networks: weakref.WeakValueDictionary[int, BoundNetwork] = weakref.WeakValueDictionary()


class BoundNetwork:
    """A network whose parameters are tensors, too.

    Attributes:
        number: by which ops find it in `bound_networks`.
        model, passes: of the network; results: how its passes run.
        names: of the parameters; own: tensors with their memory, which nobody else has; trained:
            those that get gradients.
        draws: F draws random numbers.
        push_shapes: of a vertex, by name; pulls: their names.
        dtype, device: PyTorch's.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.number = network, next(_numbers)
        executor: Any = network.executor
        self._executor, self.model, self.passes = executor, executor.model, network._passes
        store, program = executor.model.store, network.program
        self.results: HostTensors | DeviceTensors = HostTensors(executor)
        if network.device == "cuda":
            self.results = DeviceTensors(executor)
        self.device = self.results.device
        self._on_gpu = self.device.type == "cuda"
        self.names, self.trained = list(store.names), store.trained
        self._places = []  # the arguments of `as_strided`
        for name in self.names:
            shape = store.shapes[name]
            strides = tuple([math.prod(shape[k + 1 :]) for k in range(len(shape))])
            self._places.append((shape, strides, int(store.offsets[name])))
        self._frozen = [k for k, name in enumerate(self.names) if name not in self.trained]
        self.own = self.lent()
        self._at = _addresses(self.own)
        self.draws = draws_numbers(program)
        pushes = [program.nodes[k] for k in program.find("push")]
        self.push_shapes = {push["name"]: tuple(push["shape"]) for push in pushes}
        self.pulls = {pull.source for pull in program.pulls}
        self.dtype = OF_NUMPY[store.dtype]
        bound_networks[self.number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy nothing: copies of a module make their own."""
        return NoneType, ()

    def parts_of(self, flat: Tensor, rows: Mapping[str, tuple[Any, Any]]) -> list[Tensor | None]:
        """Return the gradient of each parameter, None where it has none.

        Args:
            flat: in the store's layout; rows: of tables, their numbers and gradients, where these
                are sparse.
        """
        found: list[Tensor | None] = []
        for name, place in zip(self.names, self._places, strict=True):
            if name in rows:
                at, values = rows[name]
                found.append(
                    torch.sparse_coo_tensor(
                        at[None], values, place[0], is_coalesced=True, check_invariants=False
                    )
                )
            else:
                found.append(flat.as_strided(*place) if name in self.trained else None)
        return found

    def lent(self) -> list[Tensor]:
        """Return tensors with the memory of the parameters.

        On the host each has a storage of its own, since what is in a storage can be exchanged in
        place.
        """
        if self.network.device == "cpu":
            self.model.store.refresh()
            return [torch.from_numpy(self.model.store.value(name)) for name in self.names]
        flat = tensor_of(self._executor.share_values())
        return [flat.as_strided(*place) for place in self._places]

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
        current = True
        if self._on_gpu:
            if torch._C._cuda_isCurrentStreamCapturing():
                raise UsageError.at("torch", *NOT_CAPTURED)
            current = self.device.index == torch.cuda.current_device()
        if current and _addresses(parameters) == self._at:
            lock: AbstractContextManager[Any] = self._executor.lock
            return lock
        return self._with_others(parameters)

    @contextmanager
    def _with_others(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Let parameters have other numbers for a while; those given may be in their memory."""
        with at(self.device), self._executor.lock:
            moved = []
            places = _addresses(parameters)
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


def _addresses(tensors: Sequence[Tensor]) -> list[tuple[int, tuple[int, ...]]]:
    """Return where the elements of tensors are."""
    each = map(Tensor.data_ptr, tensors), map(Tensor.stride, tensors)
    return list(zip(*each, strict=True))


class NamedPart(nn.Module):
    """A part of a parameter's name: holds what comes after the dot."""


class BoundModule(nn.Module):
    """A module whose parameters are those of a network.

    Attributes:
        source: of the network; owned: where its parameters are in this module, in its order.
        binding: the network; None, until there is memory to compute with, and in copies.
    """

    source: NetworkSource
    owned: list[Path]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.binding: BoundNetwork | None = None
        self.register_load_state_dict_post_hook(_bind_again)  # which may have assigned others

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse `torch.jit.script`. Raises: UsageError."""
        got, expected = "torch.jit.script of a network", "a module of Python, which it stays"
        raise UsageError.at("torch", got, expected, "script what is around it, and call this")

    def hold(self, network: Network, prefix: str = "") -> None:
        """Have the parameters of a network, in the same memory, by its names without a prefix.

        Raises: UsageError, where a name is one of a method of modules.
        """
        self.source, self.owned = NetworkSource.of(network), []
        bound = self.binding = BoundNetwork(network)
        for name, tensor in zip(bound.names, bound.lent(), strict=True):
            *path, last = name.removeprefix(prefix).split(".")
            self.owned.append((tuple(path), last))
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

    def bound(self) -> tuple[BoundNetwork, list[Tensor]]:
        """Return the network, and its parameters, in its order; tensors, inside `functional_call`.

        Raises: UsageError, where a parameter is missing, or has no memory.
        """
        parameters, direct = [], self._parameters
        for path in self.owned:
            names, last = path
            found = _registered(self, path) if names else direct.get(last)
            if found is None:  # `torch.nn.utils.parametrize` makes a property of it
                found = getattr(self.get_submodule(".".join(names)), last, None)
                if found is None:
                    got, expected = f"no parameter {'.'.join((*names, last))}", "all of the network"
                    raise UsageError.at("torch", got, expected, "set it, or make the module anew")
            parameters.append(found)
        if self.binding is None or (parameters and not self.binding.is_at(parameters[0])):
            self.bind()  # they were set one by one
            if self.binding is None:
                got, expected = "parameters on meta", "on a CPU or a GPU"
                raise UsageError.at("torch", got, expected, "load them, or call module.to_empty")
        return self.binding, parameters

    def bind(self) -> None:
        """Let the network have the memory of the parameters, or a new one, where these changed.

        What is computed from parameters, as `torch.nn.utils.parametrize` does, is left alone.
        """
        own = [_registered(self, path) for path in self.owned]
        tensors = [p for p in own if p is not None] or [self._place()]
        before, self.binding = self.binding, None
        if any(p.is_meta for p in tensors):
            return  # nothing is there to compute with
        place = tensors[0]
        check_place(place)
        if before is None or not before.is_at(place):
            before = BoundNetwork(self.source.network(place.dtype, place.device))
        before.adopt(own)
        self.binding = before

    def _place(self) -> Tensor:
        """Return a tensor that is converted as the module is."""
        own = [] if self.binding is None else self.binding.own  # where others hold the parameters
        return next(itertools.chain(self.parameters(), self.buffers(), own))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Convert the parameters, and the network with them."""
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
    """Let parameters that were loaded have the memory of the network."""
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
