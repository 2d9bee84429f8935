"""All parameters of a network in one flat array, and all their gradients in another.

The dense parameters come first, so that an optimizer updates them in one pass over one range. The
sparse ones (embedding tables) follow: a step reads and writes only the rows that have a gradient.
The frozen ones come last; no update reaches them.
Every parameter starts at a multiple of 16 elements, which is a cache line in float32; the padding
between two parameters is zero in both arrays and stays zero. Parameters of one stack are the
exception: their rows lie directly one after another, so that a stacked product reads them as one
matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import UsageError, nearest
from vertexrt.memory.aligned import GIB, aligned_zeros, machine_bytes
from vertexrt.native.at_once import write_at_once

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.floating[Any]]
RowArray = npt.NDArray[np.int64]

ALIGNMENT = 16  # elements: 64 bytes in float32


def _require_room(size: int) -> None:
    """Raise UsageError for what this machine's memory cannot hold: the system may promise it."""
    memory = machine_bytes()
    if size > memory:
        raise _refusal(
            f"the parameters and their gradients take {size / GIB:.4g} GiB",
            f"this machine has {memory / GIB:.4g} GiB of memory",
            "take smaller sizes",
        )


class ParameterStore:
    """Hold the values and gradients of a network's parameters.

    Attributes:
        values: float [total]; `values[:dense_size]` are the dense parameters and their padding.
        gradients: float [trained_size], the same layout, which ends before the frozen parameters.
            The rows of sparse parameters are zero between steps.
        copies: float [copies, trained_size]: a gradient array for each of the groups that share a
            batch; the first is `gradients`, the others are zero between steps.
        names: in the order of declaration; `trained` are those that are not frozen.
        shapes: shape of each parameter.
        offsets: first element of each parameter in `values` and in `gradients`.
        sparse: names of the sparse parameters, in the order of declaration.
        dense_size: elements of the dense part, padding included; trained_size: of that and of the
            sparse parameters. An optimizer's moments have as many.
        touched: for each sparse parameter that has a gradient in this step, the rows that have
            one: int64, sorted, unique. The engine sets it.
        cleared: an update has left all gradients at zero.
        versions: int64 [1], counts the times that values were updated or set.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: npt.DTypeLike = "float32",
        sparse: Collection[str] = (),
        stacks: Sequence[Sequence[str]] = (),
        copies: int = 1,
        frozen: Collection[str] = (),
    ) -> None:
        """Lay out the parameters; values and gradients start at zero.

        Args:
            shapes: name and shape of every parameter; each extent at least 1.
            dtype: float32 or float64.
            sparse: names of parameters with rows that a step may leave untouched.
            stacks: names of dense parameters whose rows must lie directly one after another; they
                agree in every extent but the first.
            copies: of the gradients; memory that is not written to is not taken.
            frozen: names of parameters that have no gradient; a stack is frozen whole, or not.
        Raises: UsageError, when a name is unknown or in two stacks, a shape is empty, the dtype is
            not a float type of 4 or 8 bytes, or the members of a stack do not fit together.
        """
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise _refusal(f"dtype {self.dtype}", "float32 or float64", "choose one of them")
        self.shapes = {name: tuple(int(extent) for extent in shapes[name]) for name in shapes}
        self.names = tuple(self.shapes)
        self._check_shapes(sparse)
        self.trained = tuple(name for name in self.names if name not in frozen)
        self.sparse = tuple(name for name in self.names if name in sparse)
        self._stack_of = self._check_stacks(stacks)
        self.offsets, self.dense_size, self.trained_size, total = self._layout()
        _require_room((total + self.trained_size) * self.dtype.itemsize)  # values and gradients
        self.values = aligned_zeros(total, self.dtype)
        flat = aligned_zeros(copies * self.trained_size, self.dtype)
        self.copies = flat.reshape(copies, self.trained_size)
        self.gradients = self.copies[0]
        self.touched: dict[str, RowArray] = {}
        self.cleared = False
        self.versions = np.zeros(1, np.int64)
        self.on_refresh: Callable[[], None] | None = None
        self.on_write: Callable[[], None] | None = None
        self._values = self.views(self.values)
        self._gradients = self.views(self.gradients)

    def _check_shapes(self, sparse: Collection[str]) -> None:
        """Refuse shapes that are empty, and sparse parameters without rows."""
        for name, shape in self.shapes.items():
            if min(shape, default=1) < 1:
                raise _refusal(
                    f"parameter '{name}' has the shape {shape}",
                    "every extent is at least 1",
                    "correct its declaration",
                )
        for name in sparse:
            self._check_name(name)
            if not self.shapes[name]:
                raise _refusal(
                    f"sparse parameter '{name}' has the shape ()", "rows", "declare it dense"
                )

    def value(self, name: str) -> FloatArray:
        """Return the live view of a parameter's values, in its shape."""
        self._check_name(name)
        return self._values[name]

    def gradient(self, name: str) -> FloatArray:
        """Return the live view of a parameter's gradient, in its shape."""
        self._check_name(name)
        return self._gradients[name]

    def refresh(self) -> None:
        """Make the arrays current where they are a copy of a device's; they may be written to."""
        if self.on_refresh is not None:
            self.on_refresh()

    def write(self, values: Mapping[str, FloatArray]) -> None:
        """Set values by name, all or none."""
        self.refresh()
        if self.on_write is not None:
            self.on_write()
        pairs = [(self.value(name), array) for name, array in values.items()]
        write_at_once([*pairs, (self.versions, self.versions + 1)])
        self.refresh()  # others may read them on the device

    @property
    def home(self) -> ParameterStore:
        """The store that its values are for."""
        return self

    def to_write(self, array: Array) -> Array:
        """Return where new numbers of an array belong, such as moments that go with the values."""
        return array

    def views(self, flat: FloatArray) -> dict[str, FloatArray]:
        """Return views of a flat array of this store's layout: each parameter's part, shaped.

        Args:
            flat: contiguous; as long as `gradients`, it has the trained parameters alone.
        """
        found = {}
        for name in self.names if flat.size == self.values.size else self.trained:
            shape = self.shapes[name]
            start = self.offsets[name]
            found[name] = flat[start : start + math.prod(shape)].reshape(shape)
        return found

    def zero_gradients(self) -> None:
        """Clear the gradients of the dense part and of the touched rows; nothing stays touched.

        What follows adds to them, so that they are not `cleared` any more.
        """
        if not self.cleared:
            self.gradients[: self.dense_size] = 0.0
            for name, rows in self.touched.items():
                self._gradients[name][rows] = 0.0
        self.touched.clear()
        self.cleared = False

    def _check_name(self, name: str) -> None:
        if name not in self.shapes:
            raise _refusal(
                f"no parameter is called '{name}'",
                f"the parameters are {', '.join(self.names)}",
                "correct the name." + nearest(name, self.names),
            )

    def _check_stacks(self, stacks: Sequence[Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Return the stack of every stacked parameter."""
        stack_of: dict[str, tuple[str, ...]] = {}
        for stack in stacks:
            for name in stack:
                self._check_name(name)
                shape, first = self.shapes[name], self.shapes[stack[0]]
                if name in stack_of or name in self.sparse or not shape:
                    raise _refusal(
                        f"parameter '{name}' cannot join the stack {tuple(stack)}",
                        "a dense parameter with rows, in one stack only",
                        "take it out of the stack",
                    )
                if shape[1:] != first[1:]:
                    raise _refusal(
                        f"'{stack[0]}' and '{name}' of one stack have the shapes {first}, {shape}",
                        "shapes that agree in every extent but the first",
                        "take one out of the stack",
                    )
                stack_of[name] = tuple(stack)
        return stack_of

    def _layout(self) -> tuple[dict[str, int], int, int, int]:
        """Return offsets, and the sizes of the dense part, the trained part and everything."""
        offsets: dict[str, int] = {}
        dense = [name for name in self.trained if name not in self.sparse]
        frozen = [name for name in self.names if name not in self.trained]
        dense_size = self._place(dense, 0, offsets)
        trained_size = self._place(self.sparse, dense_size, offsets)
        total = self._place(frozen, trained_size, offsets)
        return {name: offsets[name] for name in self.names}, dense_size, trained_size, total

    def _place(self, names: Sequence[str], end: int, offsets: dict[str, int]) -> int:
        """Give parameters their offsets from an element on, stacks whole; return where they end."""
        for name in names:
            if name in offsets:
                continue
            for member in self._stack_of.get(name, (name,)):
                offsets[member] = end
                end += math.prod(self.shapes[member])
            end = -(-end // ALIGNMENT) * ALIGNMENT
        return end


class StoreDraft(ParameterStore):
    """A store for an `update` of one's own: what it writes is the network's once it is committed.

    Values are copies, and so are the moments and counts of optimizers that `update` calls.
    Gradients are those of the store.
    """

    def __init__(self, store: ParameterStore) -> None:
        self.__dict__ |= store.__dict__
        self._home = store
        self._copies: dict[int, tuple[Array, Array]] = {}
        self.values = self.to_write(store.values)
        self._values = self.views(self.values)

    @property
    def home(self) -> ParameterStore:
        """The store that its values are for."""
        return self._home

    def to_write(self, array: Array) -> Array:
        """Return the copy of an array, which takes its place when the draft is committed."""
        if id(array) not in self._copies:
            self._copies[id(array)] = array, array.copy()
        return self._copies[id(array)][1]

    def commit(self, counts: Sequence[Array]) -> None:
        """Let all copies take their places at once, and count one more in arrays without one."""
        counted = [(count, count + 1) for count in counts if id(count) not in self._copies]
        write_at_once([*self._copies.values(), *counted])


def _refusal(got: str, expected: str, action: str) -> UsageError:
    return UsageError.at("parameters", got, expected, action)
