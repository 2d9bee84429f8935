"""The ways in which a function can be run: everything that may not change a result.

Passes are turned one by one by looking at the fields of `Passes`, so a new one is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import vertexrt as vrt
from tests.fuzz.bounded import Array
from tests.runs import OFF, Way
from vertexrt.engine.variant import Passes
from vertexrt.kernels.backend import PRODUCTS
from vertexrt.kernels.ways import Configuration

HOST = ("reference", "cpu")
DEVICES = (*HOST, "shim", "cuda")
DTYPES = ("float64", "float32")

# Passes that mean nothing, or are refused, on some engine or device.
ONLY_BATCHED = {"loop", "streams"}
ONLY_PERSISTENT = {"segment", "hold", "cuts", "gradients"}
ONLY_HOST = {"loop", "products"}
ONLY_GPU = {"streams", "hold", "cuts", "gradients"}


@dataclass(frozen=True, slots=True)
class NamedWay:
    """A way to run, its name, and the width of tiles of the persistent engine on the host."""

    name: str
    way: Way
    tile: int | None = None

    def compile(
        self,
        function: vrt.VertexFunction,
        parameters: dict[str, Array] | None,
        shuffle: int,
        reduction: str = "mean_graphs",
    ) -> vrt.Network:
        """Compile a function and give it its parameters.

        Args:
            parameters: by name; None for those that every way draws.
            shuffle: of the order of threads of the shim, not 0.
        """
        way = replace(self.way, shuffle=shuffle)
        net = way.with_values(vrt.Network(way.executor(function), 3, reduction))
        if self.tile is not None:
            assert self.way.processors is not None
            groups = self.way.threads // self.way.processors
            way = Configuration(True, groups, self.way.processors, self.tile)
            net.executor.model.chooser.only(way)
        if parameters is not None:
            net.parameters.update(parameters)
        return net


def toggled() -> dict[str, Passes]:
    """Return each pass turned: off where it is on by default, on where it is not."""
    found = {}
    for field in fields(Passes):
        default = getattr(Passes(), field.name)
        if isinstance(default, bool):
            name = f"no-{field.name}" if default else field.name
            found[name] = replace(Passes(), **{field.name: not default})
        elif isinstance(default, str):
            others = (word for word in PRODUCTS if word != default)
            found |= {f"{field.name}-{w}": replace(Passes(), **{field.name: w}) for w in others}
        else:
            found[f"{field.name}-{default + 1}"] = replace(Passes(), **{field.name: default + 1})
    return found


def ways_of(device: str, dtype: str) -> list[NamedWay]:
    """List the ways of a device, the plainest first."""
    base = Way(device=device, dtype=dtype)
    return [*_batched(base), *_persistent(base)]


def chosen(found: Sequence[NamedWay], names: str) -> list[NamedWay]:
    """Return the ways whose names begin with one of several, given with commas between them."""
    wanted = tuple(names.split(","))
    return [way for way in found if way.name.startswith(wanted)]


def _turned(device: str, not_here: set[str]) -> Iterator[tuple[str, Passes]]:
    """Yield the passes that can be turned on a device."""
    not_here = not_here | (ONLY_GPU if device in HOST else ONLY_HOST)
    for name, passes in toggled().items():
        (field,) = (
            f.name for f in fields(Passes) if f.name in (name, name[3:], name.partition("-")[0])
        )
        if field not in not_here:
            yield name, passes


def _batched(base: Way) -> Iterator[NamedWay]:
    yield NamedWay("batched", base)
    for name, passes in _turned(base.device, ONLY_PERSISTENT):
        yield NamedWay(f"batched-{name}", replace(base, passes=passes))
    yield NamedWay("batched-plain", replace(base, passes=OFF, policy="serial"))
    for policy in ("depth", "agenda", "serial"):
        yield NamedWay(f"batched-{policy}", replace(base, policy=policy))
    if base.device in HOST:
        yield NamedWay("batched-threads2", replace(base, threads=2))


def _persistent(base: Way) -> Iterator[NamedWay]:
    def grouped(processors: int) -> Way:
        return replace(base, engine="persistent", processors=processors, threads=processors)

    for processors in (1, 2, 3) if base.device in HOST else (1, 2, 3, 4):
        yield NamedWay(f"persistent-{processors}", grouped(processors))
    two = grouped(2)
    for name, passes in _turned(base.device, ONLY_BATCHED):
        yield NamedWay(f"persistent-2-{name}", replace(two, passes=passes))
    by_op = replace(Passes(), segment=False, fuse=False)
    yield NamedWay("persistent-2-by-op", replace(two, passes=by_op))
    if base.device in HOST:
        for tile in (1, 3):
            yield NamedWay(f"persistent-2-tile{tile}", two, tile)
        yield NamedWay("persistent-1-groups2", replace(grouped(1), threads=2))
