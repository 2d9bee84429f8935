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
        """Name the relation of each slot, in order, then the one of which all children are read."""
        every = () if self.every is None else (self.every,)
        return (*map(str, range(self.arity or 0)), *self.slots, *every)

    def slot(self, name: str) -> int:
        """Return the slot of a relation of one child.

        Raises: TraceError, when the function stands alone, reads all children of this relation,
            or has no slot left.
        """
        self._check_named("gather", name)
        if name == self.every:
            raise _both_ways(name)
        if name not in self.slots and self.count == MOST_SLOTS:
            got = f"{name!r} is one relation more, at {user_line()}"
            raise TraceError.at("gather", got, f"at most {MOST_SLOTS}", "read many by gather_all")
        return self.slots.setdefault(name, self.count)

    def read_all(self, name: str) -> None:
        """Note that all children of a relation are read.

        Raises: TraceError, when the function stands alone and the relation has a name, or when it
            reads this relation by slot, or all children of another one.
        """
        if self.alone:
            if name != CHILDREN:
                self._check_named("gather_all", name)
            return
        if name in self.slots:
            raise _both_ways(name)
        if self.every not in (None, name):
            raise TraceError.at(
                "gather_all",
                f"{name!r} at {user_line()}, beside {self.every!r}",
                "all children of one relation in a function, and one child of each other",
                "give the other a vertex function of its own, which scatters the sum",
            )
        self.every = name

    def _check_named(self, where: str, name: str) -> None:
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
        "give the one child a relation of its own",
    )
