"""Which relations a vertex function reads, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from vertexrt.errors import TraceError
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.ir.user_line import user_line

CHILDREN = "children"  # the relation of `gather_all`, where it is not named


@dataclass(slots=True)
class Relations:
    """What a function reads, in the order in which it reads it first.

    Attributes:
        alone: the function is no part of a model, so that relations have no names.
        arity: slots that it declares by number; they come first.
        slots: name of a relation of one child -> its slot.
        every: name of the relation of which all children are read.
    """

    alone: bool
    arity: int | None
    slots: dict[str, int] = field(default_factory=dict)
    every: str | None = None

    @property
    def count(self) -> int:
        """Count the slots."""
        return (self.arity or 0) + len(self.slots)

    @property
    def names(self) -> tuple[str, ...]:
        """Name the relation of each slot, in order, or the one of which all children are read."""
        if self.every is not None:
            return (self.every,)
        return (*map(str, range(self.arity or 0)), *self.slots)

    def slot(self, name: str) -> int:
        """Return the slot of a relation of one child.

        Raises: TraceError, when the function stands alone, reads all children of a relation, or
            has no slot left.
        """
        self._check_named("gather", name)
        if self.every is not None:
            raise self._one_way("gather", name)
        if name not in self.slots and self.count == MOST_SLOTS:
            got = f"{name!r} is one relation more, at {user_line()}"
            raise TraceError.at("gather", got, f"at most {MOST_SLOTS}", "read many by gather_all")
        return self.slots.setdefault(name, self.count)

    def read_all(self, name: str) -> None:
        """Note that all children of a relation are read.

        Raises: TraceError, when the function stands alone and the relation has a name, or when it
            reads others as well.
        """
        if self.alone:
            if name != CHILDREN:
                self._check_named("gather_all", name)
            return
        if self.every not in (None, name) or self.slots or self.arity is not None:
            raise self._one_way("gather_all", name)
        self.every = name

    def _check_named(self, where: str, name: str) -> None:
        if self.alone:
            raise TraceError.at(
                where,
                f"the relation {name!r} at {user_line()}, of a function that stands alone",
                "relations have names in a vrt.Model",
                "make the function an attribute of a vrt.Model, and compile that",
            )

    def _one_way(self, where: str, name: str) -> TraceError:
        others = [*self.slots, *([self.every] if self.every else [])]
        return TraceError.at(
            where,
            f"{name!r} at {user_line()}, beside {', '.join(others) or 'slots'}",
            "one gather_all and nothing else in a function of a model",
            "put gather_all into a vertex function of its own, which scatters the sum",
        )
