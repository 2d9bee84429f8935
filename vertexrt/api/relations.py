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
        every: names of the relations of which all children are read.
    """

    alone: bool
    arity: int | None
    slots: dict[str, int] = field(default_factory=dict)
    every: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Count the slots."""
        return (self.arity or 0) + len(self.slots)

    @property
    def names(self) -> tuple[str, ...]:
        """Name the relation of each slot, in order, then those of which all children are read."""
        return (*map(str, range(self.arity or 0)), *self.slots, *self.every)

    def slot(self, name: str) -> int:
        """Return the slot of a relation of one child.

        Raises: TraceError, when the function stands alone, reads all children of this relation,
            or has no slot left.
        """
        self._check_named("gather", name)
        if name in self.every:
            raise _both_ways(name)
        if name not in self.slots and self.count == MOST_SLOTS:
            raise TraceError.at(
                "gather",
                f"{name!r} is one relation more, at {user_line()}",
                f"at most {MOST_SLOTS}",
                "read many by gather_all",
            )
        return self.slots.setdefault(name, self.count)

    def one_child(self, name: object) -> str | None:
        """Name the slot that a number or a gathered relation is; None for any other relation.

        Numbers are not looked at.
        """
        if isinstance(name, str) and not name.isdigit():
            return name if name in self.slots else None
        return str(int(name)) if isinstance(name, str) else str(name)

    def read_all(self, name: object) -> int:
        """Return the number of a relation of which all children are read.

        Raises: TraceError, when the function stands alone and the relation has a name, or when it
            reads this relation by slot; and for what is no name.
        """
        if self.alone:
            if name != CHILDREN:
                self._check_named("gather_all", name)
            return 0
        if not isinstance(name, str):
            raise TraceError.at(
                "gather_all",
                f"{name!r} at {user_line()}",
                "the name of a relation",
                "read one child by gather(slot)",
            )
        if name in self.slots:
            raise _both_ways(name)
        if name not in self.every:
            self.every.append(name)
        return self.every.index(name)

    def _check_named(self, where: str, name: object) -> None:
        if self.alone:
            raise TraceError.at(
                where,
                f"the relation {name!r} at {user_line()}, of a function that stands alone",
                "relations have names in a vrt.Model",
                "make the function an attribute of a vrt.Model, and compile that",
            )


def _both_ways(name: str) -> TraceError:
    return TraceError.at(
        "gather",
        f"{name!r} at {user_line()}, by gather and by gather_all",
        "one child of a relation, or all of them",
        "give the one child a relation of its own; for what its edge carries, gather it first",
    )
