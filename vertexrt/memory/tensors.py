"""Dynamic tensors (Cavs, section 3.3 and figure 6): one row for each vertex or edge of a batch.

All tasks of a minibatch write one after another, in execution order, so that lazy ops read all rows
as one tensor. A tensor is named by a key: a state, a push, or the value of a node; kinds share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vertexrt.ir.layers import Phase

Key = tuple[object, ...]


@dataclass(slots=True)
class TensorSpec:
    """What is known of a dynamic tensor before any batch.

    Attributes:
        size: elements a row.
        edges: rows are edges, not vertices.
        first, last: phases between which it must stay in memory.
    """

    key: Key
    size: int
    edges: bool
    first: Phase
    last: Phase

    def overlaps(self, other: TensorSpec) -> bool:
        """Tell whether both are in memory at the same time."""
        return self.first <= other.last and other.first <= self.last

    def describe(self) -> str:
        """Name the tensor, its row and its life, for people."""
        rows = "E" if self.edges else "V"
        name = " ".join(str(part) for part in self.key)
        return f"{name:24} [{rows}, {self.size}] {self.first.name} .. {self.last.name}"


@dataclass(slots=True)
class TensorTable:
    """All tensors of a compiled function, numbered in order of appearance."""

    specs: list[TensorSpec] = field(default_factory=list)
    numbers: dict[Key, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.specs)

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.specs)

    def use(self, key: Key, size: int, edges: bool, phase: Phase) -> int:
        """Return the number of a tensor that a phase reads or writes; its life is widened."""
        if key not in self.numbers:
            self.specs.append(TensorSpec(key, size, edges, phase, phase))
            self.numbers[key] = len(self.specs) - 1
        spec = self.specs[self.numbers[key]]
        assert (spec.size, spec.edges) == (size, edges), f"{key} has two shapes: {spec}, {size}"
        spec.first = min(spec.first, phase)
        spec.last = max(spec.last, phase)
        return self.numbers[key]
