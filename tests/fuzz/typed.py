"""Draw networks of one to five vertex types, as plain data that prints as Python.

Types share names of pulls, labels and tables, and differ in size; parameters may be frozen, be used
twice, or belong to several types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, ...]
SIZES = (1, 2, 3, 3, 4, 5)
WIDE = (31, 32, 33, 64, 127, 128, 255, 256, 1023, 1024, 1025, 1200)
INTS = ("word", "tag")  # names that all types share, as indices of tables and as labels
REUSED = 0.3  # how often a parameter of a shape is one that there is already
CARRIED = "memory"  # what a network with carried states pulls and pushes


@dataclass(frozen=True, slots=True)
class Term:
    """What is added up in a vertex; see `TERMS`.

    Attributes:
        parameters: their names; pull, edge: names of pulls of the vertex or of the edges.
        relation: that is read; how: a reduction.
    """

    kind: str
    parameters: tuple[str, ...] = ()
    pull: str = ""
    relation: str = ""
    how: str = ""
    edge: str = ""


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a loss: kind, a matrix of logits ("" for the state), its pull, and a number."""

    kind: str
    matrix: str = ""
    pull: str = ""
    number: float = 0.0


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """A vertex function.

    Attributes:
        memory: it has a second field `c`; size: of both.
        relations: by name the types of children; `every`: those of which all are read.
        hard: pushes a value of `straight_through`; side: a table and a pull that no loss reads.
    """

    name: str
    size: int
    memory: bool
    relations: Mapping[str, tuple[str, ...]]
    every: frozenset[str]
    terms: tuple[Term, ...]
    losses: tuple[Loss, ...] = ()
    pushed: bool = True
    hard: bool = False
    side: tuple[str, str] | None = None
    carried: bool = False


@dataclass(frozen=True, slots=True)
class NetSpec:
    """A network.

    Attributes:
        parameters: by name, shape and whether it is trained.
        reals: shapes of real pulls by name; edges: of those of edges, None for an integer.
        reduction: of `vrt.compile`.
    """

    types: tuple[TypeSpec, ...]
    parameters: Mapping[str, tuple[Shape, bool]]
    reals: Mapping[str, Shape]
    edges: Mapping[str, Shape | None]
    reduction: str = "mean_graphs"

    def of(self, name: str) -> TypeSpec:
        """Return a type."""
        return next(t for t in self.types if t.name == name)

    def owners(self, kind: TypeSpec) -> list[str]:
        """Name the parameters of a type."""
        found = [p for term in kind.terms for p in term.parameters]
        found += [loss.matrix for loss in kind.losses if loss.matrix]
        found += [kind.side[0]] if kind.side else []
        return sorted(set(found))

    def names(self) -> dict[str, str]:
        """Return what the network calls each parameter: after the first type that has it."""
        found: dict[str, str] = {}
        for kind in self.types:
            for p in self.owners(kind):
                found.setdefault(p, f"{kind.name}.{p}")
        return found

    def lookups(self) -> Iterator[tuple[TypeSpec, str, str, str, bool]]:
        """Yield type, table, pull, relation ("" for a pull of vertices), and if it is a side."""
        for kind in self.types:
            for term in kind.terms:
                if term.kind == "embed":
                    yield kind, term.parameters[0], term.pull, "", False
                if term.kind == "kinds":
                    yield kind, term.parameters[0], term.edge, term.relation, False
            if kind.side:
                yield kind, *kind.side, "", True

    def tables(self) -> set[str]:
        """Name trained parameters that are only looked up in."""
        found = {p for _, p, _, _, _ in self.lookups()}
        for kind in self.types:
            found -= {loss.matrix for loss in kind.losses}
            for term in kind.terms:
                looked = term.parameters[:1] if term.kind in ("embed", "kinds") else ()
                found -= set(term.parameters[len(looked) :])
        return {p for p in found if self.parameters[p][1]}

    def reached(self, roots: set[str]) -> set[str]:
        """Name the types that a gradient comes to: some, and all whose states any type reads."""
        read = {s for kind in self.types for of in kind.relations.values() for s in of}
        return roots | read

    def ints(self, kind: TypeSpec) -> dict[str, int]:
        """Return the integers that a type pulls, and below which number they are."""
        found: dict[str, int] = {}

        def bound(name: str, below: int) -> None:
            found[name] = min(found.get(name, below), below)

        for owner, table, pull, relation, _ in self.lookups():
            if owner is kind and not relation:
                bound(pull, self.parameters[table][0][0])
        for loss in kind.losses:
            if loss.kind in ("ce", "margin"):
                bound(loss.pull, self.parameters[loss.matrix][0][0] if loss.matrix else kind.size)
        return found

    def edge_ints(self, name: str) -> int:
        """Return below which number an integer of edges is."""
        bounds = [
            self.parameters[table][0][0]
            for _, table, pull, relation, _ in self.lookups()
            if relation and pull == name
        ]
        return min(bounds)

    def reals_of(self, kind: TypeSpec) -> dict[str, Shape]:
        """Return the real pulls of a type."""
        found = [t.pull for t in kind.terms if t.kind in ("vector", "number", "carried")]
        found += [loss.pull for loss in kind.losses if loss.kind in ("square", "bce") and loss.pull]
        return {name: self.reals[name] for name in sorted(set(found))}

    def edges_of(self, kind: TypeSpec, relation: str) -> list[str]:
        """Name what the edges of a relation carry."""
        return sorted({t.edge for t in kind.terms if t.edge and t.relation == relation})

    def counts(self, kind: TypeSpec, numbers: Mapping[str, int]) -> bool:
        """Tell whether a vertex that pulls numbers has a loss."""
        labels = [loss.pull for loss in kind.losses if loss.kind in ("ce", "margin")]
        return len(labels) < len(kind.losses) or any(numbers[name] >= 0 for name in labels)

    def pushes(self) -> dict[str, set[str]]:
        """Return the pushes by name, and which types have them."""
        found: dict[str, set[str]] = {}
        for kind in self.types:
            for name, _ in pushes_of(self, kind):
                found.setdefault(name, set()).add(kind.name)
        return found


# As Python.


def term_text(spec: NetSpec, kind: TypeSpec, term: Term) -> str:
    """Write what a term adds; `x` is the sum so far."""
    first = f"self.{term.parameters[0]}" if term.parameters else ""
    matrices = term.parameters[term.kind in ("kinds", "attend") :]
    times = f"self.{matrices[0]} @ " if matrices else ""
    shape = spec.reals.get(term.pull, ())
    below = f"self.gather({term.relation!r}).h"
    every = f"self.gather_all({term.relation!r}).h"
    number = f"self.edge_index({term.edge!r}, relation={term.relation!r})"
    weight = f"self.edge({term.edge!r}, relation={term.relation!r})"
    share = f"vrt.softmax(vrt.dot({first}, {every}), axis='children')"
    return {
        "embed": f"vrt.embed({first}, self.pull({term.pull!r}))",
        "vector": f"{times}self.pull({term.pull!r}, {shape})",
        "carried": f"self.pull({term.pull!r}, {shape})",
        "number": f"{first} * self.pull({term.pull!r})",
        "bias": f"{first} * 1.0",
        "slot": f"{times}{below}",
        "product": f"{first} @ (x * {below})",
        "all": f"{times}vrt.{term.how}({every})",
        "each": f"vrt.{term.how}({times}{every})",
        "weighed": f"{times}vrt.sum({every} * {weight})",
        "kinds": f"vrt.{term.how}({times}{every} + vrt.embed({first}, {number}))",
        "attend": f"{times}vrt.sum({share} * {every})",
    }[term.kind]


def loss_text(spec: NetSpec, loss: Loss) -> str:
    """Write a part of a loss."""
    scores = f"self.{loss.matrix} @ h" if loss.matrix else "h"
    shape = spec.reals.get(loss.pull, ())
    target = f"self.pull({loss.pull!r}, {shape})" if loss.pull else repr(loss.number)
    smoothed = f", label_smoothing={loss.number}" if loss.number else ""
    return {
        "ce": f"vrt.losses.cross_entropy({scores}, self.pull({loss.pull!r}){smoothed})",
        "margin": f"vrt.losses.multi_margin_loss({scores}, self.pull({loss.pull!r}))",
        "square": f"vrt.losses.squared_error(h, {target})",
        "bce": f"vrt.losses.binary_cross_entropy_with_logits(h, {target})",
        "hinge": f"vrt.losses.hinge_loss(h, {target})",
        "sum": "vrt.sum(h) * 0.1",
    }[loss.kind]


def pushes_of(spec: NetSpec, kind: TypeSpec) -> list[tuple[str, str]]:
    """Return the pushes of a type, names and texts."""
    found = [(f"h{kind.size}", "h")] if kind.pushed else []
    found += [(f"hard{kind.size}", "vrt.straight_through(x, x > 0.0)")] if kind.hard else []
    if kind.side:
        table, pull = kind.side
        width = spec.parameters[table][0][1]
        found.append((f"side{width}", f"vrt.embed(self.{table}, self.pull({pull!r}))"))
    if kind.carried:
        found.append((CARRIED, "h"))
    if kind.losses:
        found.append(("loss", " + ".join(loss_text(spec, loss) for loss in kind.losses)))
    return found


def source(spec: NetSpec) -> str:
    """Write `def build(vrt)`, which makes the model with vertexrt or with `eager`."""
    lines = ["def build(vrt):"]
    for kind in spec.types:
        own = spec.owners(kind)
        state = {"h": kind.size, "c": kind.size} if kind.memory else {"h": kind.size}
        lines.append(f"    class {kind.name.title()}(vrt.VertexFunction):")
        lines.append(f"        def __init__(self{''.join(f', {p}' for p in own)}):")
        lines.append(f"            super().__init__(state={state!r})")
        lines += [f"            self.{p} = {p}" for p in own]
        lines += ["", "        def forward(self):"]
        body = [f"x = {term_text(spec, kind, kind.terms[0])}"]
        body += [f"x = x + {term_text(spec, kind, term)}" for term in kind.terms[1:]]
        if kind.memory:
            slots = [r for r in kind.relations if r not in kind.every]
            slot = next((r for r in slots if _has_c(spec, kind, r)), "")
            before = f" + 0.5 * self.gather({slot!r}).c" if slot else ""
            body += [f"c = vrt.tanh(x){before}", "h = vrt.sigmoid(x) * vrt.tanh(c)"]
            body.append("self.scatter(h=h, c=c)")
        else:
            body += ["h = vrt.tanh(x)", "self.scatter(h=h)"]
        body += [f"self.push({name!r}, {text})" for name, text in pushes_of(spec, kind)]
        lines += [*(f"            {line}" for line in body), ""]
    lines += ["    class Net(vrt.Model):", "        def __init__(self):"]
    for p, (shape, trained) in spec.parameters.items():
        frozen = "" if trained else ", trainable=False"
        lines.append(f"            {p} = vrt.Parameter({shape}{frozen})")
    for kind in spec.types:
        given = ", ".join(spec.owners(kind))
        lines.append(f"            self.{kind.name} = {kind.name.title()}({given})")
    for kind in spec.types:
        for relation, of in kind.relations.items():
            children = ", ".join(f"self.{name}" for name in of)
            lines.append(f"            self.{kind.name}.inputs[{relation!r}] = ({children},)")
    return "\n".join([*lines, "", "    return Net()", ""])


def _has_c(spec: NetSpec, kind: TypeSpec, relation: str) -> bool:
    children = [spec.of(name) for name in kind.relations[relation]]
    return all(child.memory and child.size == kind.size for child in children)


# Drawn.


class Draft:
    """A network while it is drawn.

    Args:
        wide: how often a size is one of `WIDE`.
    """

    def __init__(self, rng: np.random.Generator, wide: float) -> None:
        self.rng = rng
        self.parameters: dict[str, tuple[Shape, bool]] = {}
        self.edges: dict[str, Shape | None] = {"weight": (), "kind": None}
        self.wide = wide
        self.reals: dict[str, Shape] = {"x": (self.size(),), "r": ()}

    def chance(self, p: float) -> bool:
        """Draw a truth with probability p."""
        return bool(self.rng.random() < p)

    def size(self) -> int:
        """Draw a size of vectors."""
        return int(self.rng.choice(WIDE if self.chance(self.wide) else SIZES))

    def parameter(self, *shape: int) -> str:
        """Return a parameter of a shape: a new one, or one that there is."""
        same = [p for p, (known, _) in self.parameters.items() if known == shape]
        if same and self.chance(REUSED):
            return str(self.rng.choice(same))
        name = f"p{len(self.parameters)}"
        self.parameters[name] = shape, self.chance(0.85)
        return name

    def table(self, width: int) -> str:
        """Return a table of vectors."""
        tables = [p for p, (s, _) in self.parameters.items() if len(s) == 2 and s[1] == width]
        if tables and self.chance(REUSED):
            return str(self.rng.choice(tables))
        few = [2, 3, 4, 5, 6, 8, 20, 100] if width < 100 else [2, 3, 6]
        return self.parameter(int(self.rng.choice(few)), width)


def draw_network(rng: np.random.Generator, wide: float = 0.02) -> NetSpec:
    """Draw a network; wide: how often a vector is long."""
    d = Draft(rng, wide)
    count = int(rng.choice([1, 2, 3, 4, 5], p=[0.25, 0.35, 0.2, 0.1, 0.1]))
    names = [f"t{k}" for k in range(count)]
    shared = d.size() if d.chance(0.5) else 0
    states = {name: (shared or d.size(), d.chance(0.2)) for name in names}
    types = [_draw_type(d, name, states) for name in names]
    if not any(kind.losses for kind in types):
        k = int(rng.integers(count))
        types[k] = replace(types[k], losses=(_draw_loss(d, types[k].size),))
    if not any(kind.pushed for kind in types):
        types[-1] = replace(types[-1], pushed=True)
    reals = dict(d.reals)
    if d.chance(0.25):
        size, _ = states[names[0]]
        reals[CARRIED] = (size,)
        for k, kind in enumerate(types):
            if kind.size == size and (k == 0 or d.chance(0.5)):
                terms = (*kind.terms, Term("carried", pull=CARRIED))
                types[k] = replace(kind, terms=terms, carried=True)
    reduction = str(rng.choice([*["mean_graphs"] * 2, *["mean_vertices"] * 2, "sum"]))
    if reduction == "mean_vertices" and any(loss.kind == "sum" for t in types for loss in t.losses):
        reduction = "sum"  # whether a loss that is known to be 0 is one is not said
    return NetSpec(tuple(types), d.parameters, reals, d.edges, reduction)


def _draw_type(d: Draft, name: str, states: Mapping[str, tuple[int, bool]]) -> TypeSpec:
    size, memory = states[name]
    relations: dict[str, tuple[str, ...]] = {}
    every = set()
    terms = [_draw_leaf(d, size)]
    if d.chance(0.35):
        terms.append(_draw_leaf(d, size))
    for k in range(int(d.rng.choice([0, 1, 1, 2]))):
        relation = f"r{k}"
        child = name if d.chance(0.4) else str(d.rng.choice(list(states)))
        alike = [n for n in states if states[n] == states[child]]
        relations[relation] = tuple(n for n in alike if n == child or d.chance(0.3))
        if d.chance(0.5):
            every.add(relation)
            terms += _draw_every(d, size, relation, states[child][0])
        else:
            terms.append(_draw_slot(d, size, relation, states[child][0]))
    losses = tuple(_draw_loss(d, size) for _ in range(int(d.rng.choice([0, 1, 1, 2]))))
    side = None
    if d.chance(0.2):
        side = d.table(size), str(d.rng.choice(INTS))
    return TypeSpec(
        name,
        size,
        memory,
        relations,
        frozenset(every),
        tuple(terms),
        losses,
        d.chance(0.6),
        d.chance(0.1),
        side,
    )


def _draw_leaf(d: Draft, size: int) -> Term:
    kind = str(d.rng.choice(["embed", "embed", "embed", "vector", "number", "bias"]))
    if kind == "embed":
        return Term(kind, (d.table(size),), str(d.rng.choice(INTS)))
    if kind == "vector":
        (length,) = d.reals["x"]
        plain = length == size and d.chance(0.5)
        return Term(kind, () if plain else (d.parameter(size, length),), "x")
    return Term(kind, (d.parameter(size),), "r" if kind == "number" else "")


def _draw_slot(d: Draft, size: int, relation: str, below: int) -> Term:
    if below == size and d.chance(0.4):
        return Term("product", (d.parameter(size, size),), "", relation)
    plain = below == size and d.chance(0.3)
    return Term("slot", () if plain else (d.parameter(size, below),), "", relation)


def _draw_every(d: Draft, size: int, relation: str, below: int) -> list[Term]:
    kind = str(d.rng.choice(["all", "each", "weighed", "kinds", "attend"]))
    plain = below == size and d.chance(0.3)
    matrix = () if plain else (d.parameter(size, below),)
    how = str(d.rng.choice(["sum", "mean", "max"]))
    if kind == "kinds":
        return [Term(kind, (d.table(size), *matrix), "", relation, how, "kind")]
    if kind == "attend":
        key, mixes = d.parameter(below), matrix or (d.parameter(size, below),)
        return [Term(kind, (key, *mixes), "", relation)]
    return [Term(kind, matrix, "", relation, how, "weight" if kind == "weighed" else "")]


def _draw_loss(d: Draft, size: int) -> Loss:
    kind = str(d.rng.choice(["ce", "ce", "margin", "square", "bce", "hinge", "sum"]))
    if kind in ("ce", "margin"):
        bare = size > 1 and d.chance(0.3)
        matrix = "" if bare else d.parameter(int(d.rng.integers(2, 7)), size)
        smoothing = float(d.rng.choice([0.0, 0.1, 0.5])) if kind == "ce" else 0.0
        return Loss(kind, matrix, str(d.rng.choice(INTS)), smoothing)
    pulled = kind in ("square", "bce") and d.reals["x"] == (size,) and d.chance(0.5)
    return Loss(kind, "", "x" if pulled else "", 1.0 if kind in ("bce", "hinge") else 0.25)


# Smaller.


def smaller_networks(spec: NetSpec) -> Iterator[NetSpec]:
    """Yield networks with something left out."""
    for k, kind in enumerate(spec.types):
        if len(spec.types) > 1:
            yield _pruned(replace(spec, types=(*spec.types[:k], *spec.types[k + 1 :])))
        for less in _smaller_types(kind):
            yield _pruned(replace(spec, types=(*spec.types[:k], less, *spec.types[k + 1 :])))
    for p, (shape, trained) in spec.parameters.items():
        if not trained:
            yield replace(spec, parameters={**spec.parameters, p: (shape, True)})
    if spec.reduction != "mean_graphs":
        yield replace(spec, reduction="mean_graphs")


def _smaller_types(kind: TypeSpec) -> Iterator[TypeSpec]:
    for relation in kind.relations:
        left = {r: of for r, of in kind.relations.items() if r != relation}
        terms = tuple(t for t in kind.terms if t.relation != relation)
        if terms:
            yield replace(kind, relations=left, every=kind.every - {relation}, terms=terms)
    for k, term in enumerate(kind.terms):
        twice = sum(t.relation == term.relation for t in kind.terms) > 1
        if len(kind.terms) > 1 and (not term.relation or twice):
            yield replace(kind, terms=(*kind.terms[:k], *kind.terms[k + 1 :]))
    for k in range(len(kind.losses)):
        yield replace(kind, losses=(*kind.losses[:k], *kind.losses[k + 1 :]))
    for loss in kind.losses:
        if loss.kind == "ce" and loss.number:
            yield replace(kind, losses=(replace(loss, number=0.0),))
    for field, value in (("pushed", False), ("hard", False), ("side", None), ("memory", False)):
        if getattr(kind, field) != value:
            yield replace(kind, **{field: value})  # type: ignore[arg-type]
    if kind.carried:
        terms = tuple(t for t in kind.terms if t.kind != "carried")
        yield replace(kind, carried=False, terms=terms)


def _pruned(spec: NetSpec) -> NetSpec:
    """Leave out parameters that nothing has, and relations to types that are not there."""
    names = {kind.name for kind in spec.types}
    types = []
    for kind in spec.types:
        relations = {r: tuple(n for n in of if n in names) for r, of in kind.relations.items()}
        gone = {r for r, of in relations.items() if not of}
        terms = tuple(t for t in kind.terms if t.relation not in gone)
        left = {r: of for r, of in relations.items() if r not in gone}
        types.append(
            replace(kind, relations=left, every=kind.every - gone, terms=terms or (Term("bias"),))
        )
    spec = replace(spec, types=tuple(types))
    used = {p for kind in spec.types for p in spec.owners(kind)}
    return replace(spec, parameters={p: x for p, x in spec.parameters.items() if p in used})


def whole(spec: NetSpec) -> bool:
    """Tell whether a network can be compiled: each type has terms, and one has a loss."""
    lone = any(t.kind == "bias" and not t.parameters for kind in spec.types for t in kind.terms)
    return not lone and any(kind.losses for kind in spec.types)
