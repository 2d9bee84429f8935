"""Where the values of a task lie in memory: in tensors that tasks share, or in temporaries."""

from __future__ import annotations

from dataclasses import dataclass

from vertexrt.ir.passes.store import Key, Read
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.location import Location, Temporary


@dataclass(slots=True)
class Temporaries:
    """Temporary memory of a launch or a tile: what has been set aside so far.

    Attributes:
        rows, edges, once: elements for each row, for each edge, and once.
    """

    rows: int = 0
    edges: int = 0
    once: int = 0

    @property
    def elements(self) -> tuple[int, int, int]:
        """Return the elements for each row, for each edge, and once."""
        return self.rows, self.edges, self.once

    @property
    def end(self) -> Temporary:
        """Return where the next temporary starts."""
        return Temporary(*self.elements)

    def take(
        self, size: int, edges: bool, stride: int = 0, own: tuple[int, int] | None = None
    ) -> Location:
        """Set aside elements for each row or, with `edges`, for each edge.

        Args:
            stride: elements from one row to the next, 0 for no gap.
            own: see `Location`.
        """
        at, size = self.end, max(size, 1)
        if edges:
            self.edges += stride or size
        else:
            self.rows += stride or size
        return Location("", size, "local_edge" if edges else "local", 0, stride, at, own)


def in_tensor(node: Node, key: Key, binding: Binding) -> Location:
    """Return where a value lies that has a tensor of its own."""
    row = "edge" if node.type.domain == Domain.EDGE else "row"
    return Location(f"tensor_{binding.tensors[key]}", max(node.type.size, 1), row)


def read_from(node: Node, read: Read, binding: Binding) -> Location:
    """Return where a value lies that another stage has stored, maybe as a part of a tensor."""
    whole = in_tensor(node, read.key, binding)
    if read.width == whole.size:
        return whole
    return Location(whole.base, whole.size, whole.row, read.start, read.width)
