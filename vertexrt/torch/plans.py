"""How passes run, on the host and on a GPU: what of them is found once, and what each does.

What of a pass does not depend on addresses is found once where its run is kept (`PassPlan`): a pass
like one before looks at the shapes of what it is given, allocates what it returns, and launches.

On a GPU pushes and gradients are PyTorch's tensors, in the order of its stream. What PyTorch
allocates and launches by itself costs a host less than arrays of CuPy that are lent to it, and its
memory comes from one pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vertexrt.api.forward_passes import ForwardPass, ForwardPasses
from vertexrt.engine.batched import NO_ROWS, Destination, Part, RowCopies, RowPlace, Run, pushed
from vertexrt.engine.results import (
    LaunchesHere,
    LossAndGradients,
    PushPlaces,
    PushRows,
    WayBack,
    pulled_rows,
    table_of,
)
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import edge_pulls_of, pulls_of, with_values
from vertexrt.graph.device_rows import ALIGNED, DeviceRows
from vertexrt.graph.pulls import parts_of, rows_unchecked
from vertexrt.ir.program import Pull

Array = np.ndarray[Any, Any]
DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}
PLANS, MOST_PLANS = "plans", 8  # of a kept run: under which name, and how many
MOST_HELD = 1 << 16  # bytes of the real pulls that are no tensors, for a pass that is prepared


class WantedRows:
    """Rows of a push that are wanted, those of some vertices.

    Args:
        vertices: int64 [n], whose; row_of: int32 [V], the row of each vertex, where each has one.
        ordered: they may come in an order that is given with the pass.
    """

    def __init__(self, vertices: Array, row_of: Array | None = None, ordered: bool = False) -> None:
        self.vertices, self.row_of, self.ordered = vertices, row_of, ordered
        self._here: Tensor | None = None

    def here(self, device: torch.device, order: Tensor | None) -> Tensor:
        """Return the vertices on a device, where they are copied to once, in the given order."""
        found = self._here
        if found is None or found.device != device:
            found = self._here = torch.from_numpy(self.vertices).to(device)
        return found if order is None or not self.ordered else found.index_select(0, order)


class Cotangent(NamedTuple):
    """The gradient of a push.

    Attributes:
        rows: [n, *shape]; row_of: int32 [V], which of them each vertex has; None for its own.
    """

    rows: Tensor
    row_of: Array | None


class PulledTerm(NamedTuple):
    """A part of the gradient of a pull.

    Attributes:
        first, size: element of the arena where its rows begin, and elements of one.
        at: rows there, whole numbers; to: rows of the pull that they are added to.
    """

    first: int
    size: int
    at: Any
    to: Any


class PulledPlaces(NamedTuple):
    """Where the gradients of pulls are.

    Attributes:
        places: of each pull the shape of what the batch gives, and what adds up to its gradient;
            nothing, where it is copied, since each of its rows is somewhere, once.
        copied: of those that are copied.
        rows: int32, lists of rows, one after the other: those of seeds, then those of `copied`.
    """

    places: tuple[tuple[tuple[int, ...], Sequence[PulledTerm] | None], ...]
    copied: tuple[RowPlace, ...]
    rows: Array

    @staticmethod
    def of(
        batch: GraphBatch, run: Run, pulls: Sequence[str], of_seeds: Sequence[Array] = ()
    ) -> PulledPlaces:
        """Find those of pulls, by their names.

        Args:
            of_seeds: lists of rows that come first.
        """
        lists, places, copied = list(of_seeds), [], []
        end = sum(map(len, lists))
        for name in pulls:
            own = run.variant.program.pulls_from(name)
            table, index = table_of(batch, own[0])
            key = "pulled", name, len(table)
            terms, whole = run.once(key, [index], partial(_terms_of, batch, run, own))
            if whole is not None:
                copied.append(RowPlace(whole.first, whole.size, end, len(whole.at)))
                lists.append(whole.at)
                end += len(whole.at)
            places.append((tuple(table.shape), terms if whole is None else None))
        rows = lists[0] if lists else NO_ROWS
        if len(lists) > 1:
            rows = run.once(("rows of a way back",), lists, partial(np.concatenate, lists))
        return PulledPlaces(tuple(places), tuple(copied), rows)

    def room(self, like: Tensor) -> tuple[list[Tensor], RowCopies]:
        """Make room for the gradients; say what a launch copies there."""
        found, to = [], []
        for shape, terms in self.places:
            tensor = like.new_empty(shape) if terms is None else like.new_zeros(shape)
            found.append(tensor)
            if terms is None:
                to.append(tensor.data_ptr())
        return found, RowCopies(self.copied, to, (0,) * len(to))

    def add(self, arena: Tensor, totals: Sequence[Tensor]) -> None:
        """Add to the gradients what is no copy, after a launch."""
        for (_, terms), total in zip(self.places, totals, strict=True):
            for first, size, at, to in terms or ():
                count = (len(arena) - first) // size
                rows = arena.as_strided((count, size), (size, 1), first)
                rows = rows.index_select(0, _here(at, arena.device))
                total.index_add_(0, _here(to, arena.device), rows.view(len(at), *total.shape[1:]))


def _here(numbers: Array, device: torch.device) -> Tensor:
    """Copy whole numbers to a device; in the order of its stream, so that nothing is waited for."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)


def _terms_of(
    batch: GraphBatch, run: Run, pulls: Sequence[Pull]
) -> tuple[list[PulledTerm], PulledTerm | None]:
    """Return what adds up to the gradient of a pull: terms, or one that has each row once, in their
    order.
    """
    tensors, (table, index) = run.variant.table, table_of(batch, pulls[0])
    terms, none = [], len(run.layout.plan.base)
    for pull in pulls:
        number = tensors.numbers.get(("pull_grad", pull.name), none)
        if number >= none:  # none of its vertices has it, perhaps those of kinds that came later
            continue
        place = int(run.layout.plan.base[number]), tensors.specs[number].size
        whole = _whole_of(run, pulls, index, len(table))
        if whole is not None:
            return [], PulledTerm(*place, whole, None)
        to, at = pulled_rows(batch, run, pull)
        if len(to):
            terms.append(PulledTerm(*place, at, to))
    return terms, None


def _whole_of(run: Run, pulls: Sequence[Pull], index: Array | None, count: int) -> Array | None:
    """Return the row that each of so many rows of a pull has, if each has one; else None."""
    if (
        len(run.inputs.structure.functions)
        or pulls[0].of_edges
        or (index is not None and len(pulls) > 1)
    ):
        return None
    if index is None:
        return run.row_of  # that of its vertex
    if len(index) != count or index.min(initial=0) < 0:
        return None
    ordered = np.full(count, -1, np.int32)
    ordered[index] = run.row_of
    return None if (ordered < 0).any() else ordered


def rows_of(tensor: Tensor) -> DeviceRows:
    """Return a tensor as the engine takes it, or a copy that kernels can read: in C order, at an
    aligned address.
    """
    found = tensor.contiguous()
    if found.data_ptr() % ALIGNED:
        found = found.clone()
    return DeviceRows.at(found.data_ptr(), found, found.shape, DTYPES[found.dtype])


class PassPlan:
    """Passes that ask for the same of batches of one form.

    Args:
        run: of such a batch, or of the first share of it; batch: one, with all its pulls.
        outputs: the pushes that are wanted; rows: of them, None for those of all vertices.
        pulls: names of those that are tensors.
        lend: gives the engine a tensor that is a real pull.
    """

    def __init__(
        self,
        run: Run,
        batch: GraphBatch,
        outputs: Sequence[str],
        rows: Sequence[WantedRows | None],
        pulls: Sequence[str],
        lend: Callable[[Tensor], Any],
    ) -> None:
        self._lend = lend
        vertices = [None if each is None else each.vertices for each in rows]
        self.wanted = list(map(PushRows, outputs, vertices))
        self.ordered = [each is not None and each.ordered for each in rows]
        self.dtype = run.inputs.no_reals.dtype
        reader = run.variant.reader
        self._sources = []  # of each tensor its number among the run's real pulls, place and shape
        self._others = []  # what batches themselves give: if edges have it, its name, what it is
        self.floats: list[Any] = list(run.inputs.floats)
        shapes: dict[str, Any] = {}  # of the tensors, which may go
        for name in pulls:
            table, index = parts_of(pulls_of(batch)[name])
            rows_there: Any = DeviceRows.at(0, None, table.shape, table.dtype)
            shapes[name] = rows_there if index is None else rows_unchecked(rows_there, index)
        for number, k in enumerate(reader.reals):
            pull = reader.pulls[k]
            if not pull.of_edges and pull.source in shapes:
                shape = tuple(table_of(batch, pull)[0].shape)
                self._sources.append((number, pulls.index(pull.source), shape))
                self.floats[number] = None
            elif reader.is_used[k]:
                held = (edge_pulls_of if pull.of_edges else pulls_of)(batch).get(pull.source)
                self._others.append((pull.of_edges, pull.source, held))
        self.batch = with_values(batch, shapes, {}, batch.form)
        self.run = run.bare()
        self.places: PushPlaces | None = None
        self.backs: dict[tuple[str, ...], tuple[tuple[int, ...], PulledPlaces]] = {}

    @property
    def holds(self) -> int:
        """How many bytes of real pulls it holds."""
        return sum([given.nbytes for given in self.floats if given is not None])

    def takes(self, graphs: GraphBatch, given: Sequence[Tensor]) -> bool:
        """Tell whether a batch of the form, with tensors in place of some pulls, is one of these.

        Where it is not, it is prepared as the first one, which copies what kernels cannot read, or
        says what is wrong.
        """
        for _, place, shape in self._sources:
            tensor = given[place]
            if tensor.shape != shape or DTYPES.get(tensor.dtype) != self.dtype:
                return False
            if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
                return False
        for of_edges, name, value in self._others:
            if (edge_pulls_of if of_edges else pulls_of)(graphs).get(name) is not value:
                return False
        return True

    def reals(self, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the real pulls of a run, some of them tensors."""
        found = self.floats.copy()
        for number, place, _ in self._sources:
            found[number] = self._lend(given[place].detach())
        return tuple(found)


class HostPasses:
    """How passes run on the host, and where what they give back lies.

    Attributes:
        executor: launches them; device: PyTorch's; results: how the engine runs a pass.
    """

    def __init__(self, executor: Any, passes: ForwardPasses) -> None:
        self.executor, self.passes = executor, passes
        self.results: Any = passes.on_host
        self.device = torch.device("cpu")

    @staticmethod
    def lend(tensor: Tensor) -> Any:
        """Return a tensor as the engine takes it."""
        found = tensor.numpy().reshape(-1)
        found.flags.writeable = False  # compiled code is by type
        return found

    def forward(
        self,
        plan: PassPlan,
        runs: list[Run] | None,
        reals: tuple[Any, ...],
        order: Tensor | None,
        seed: int,
        keep: bool,
    ) -> tuple[ForwardPass | None, list[Tensor]]:
        """Evaluate F; return what keeps the pass, if it is to be kept, and the pushes.

        Args:
            runs: where the batch was prepared; None for that of the plan. reals: its real pulls.
            order: int64 on the device, which of the rows that are ordered comes where.
        """
        self.passes.make_room()
        wanted, runs = plan.wanted, runs or [plan.run.with_floats(plan.batch, reals)]
        if order is not None:
            numbers = order.numpy()
            wanted = [
                push._replace(vertices=cast("Array", push.vertices)[numbers]) if ordered else push
                for push, ordered in zip(wanted, plan.ordered, strict=True)
            ]
        use = runs[0].variant.use
        nothing = self.passes.no_seeds(use)
        arenas = self.executor.launch(runs, [run.forward(seed, nothing) for run in runs])
        found = [torch.from_numpy(pushed(runs, arenas, *push)) for push in wanted]
        if not keep:
            return None, found
        return self.passes.note(ForwardPass(plan.batch, runs, use, seed, self.results)), found

    def back(
        self, plan: PassPlan, made: ForwardPass, seeds: Mapping[str, Cotangent | None], sparse: bool
    ) -> tuple[Any, Mapping[str, tuple[Tensor, ...]], Mapping[str, Tensor]]:
        """Go back through a pass.

        Args:
            seeds: of pushes, in the order of their names; None for zeros.
        Returns: gradients of parameters, a tensor in the store's layout or arrays by name; of
            tables, if they are sparse, the rows that were looked up and their gradients; of pulls.
        """
        shapes = plan.run.variant.pushes.shapes
        given: dict[str, Array] = {}
        for name, d in seeds.items():
            if d is None:
                given[name] = np.zeros((plan.batch.num_vertices, *shapes[name]), plan.dtype)
            else:
                own = d.rows.detach().numpy()
                given[name] = own if d.row_of is None else own.take(d.row_of, axis=0)
        found = self.passes.go_back(made, given, 1.0, sparse)
        rows = {name: tuple(map(torch.from_numpy, each)) for name, each in found.rows.items()}
        pulled = {name: torch.from_numpy(each) for name, each in found.pulled.items()}
        return found.parameters, rows, pulled


class DevicePasses(HostPasses):
    """On a GPU: results are tensors there."""

    lend = staticmethod(rows_of)

    def __init__(self, executor: LaunchesHere, passes: ForwardPasses) -> None:
        super().__init__(executor, passes)
        self.results = self
        self._gradients = tensor_of(executor.gradients_here())
        self._arena: tuple[Any, Tensor] = None, self._gradients
        self.device = self._gradients.device
        self._on_gpu = self.device.type == "cuda"
        self._zeros = [rows_of(self._gradients.new_zeros(0))]

    def forward(
        self,
        plan: PassPlan,
        runs: list[Run] | None,
        reals: tuple[Any, ...],
        order: Tensor | None,
        seed: int,
        keep: bool,
    ) -> tuple[ForwardPass | None, list[Tensor]]:
        """Evaluate F; see `HostPasses`."""
        self.passes.make_room()
        run, use = plan.run, plan.run.variant.use
        if plan.places is None:
            plan.places = PushPlaces.of(run, plan.wanted)
        shapes, rows, places = plan.places
        found = [self._gradients.new_empty(shape) for shape in shapes]
        at = 0 if order is None else order.data_ptr()
        orders = [at if ordered else 0 for ordered in plan.ordered]
        copies = RowCopies(places, [tensor.data_ptr() for tensor in found], orders)
        to = Destination(copies=copies, rows=rows)
        nothing = self.passes.no_seeds(use)
        self._launch(run, Part(run.layout.forward, 1.0, seed, nothing, (), to, reals))
        if not keep:
            return None, found
        return self.passes.note(
            ForwardPass(plan.batch, [run], use, seed, self.results, reals)
        ), found

    def back(
        self,
        plan: PassPlan,
        made: ForwardPass,
        seeds: Mapping[str, Cotangent | None],
        sparse: bool,
    ) -> tuple[Any, Mapping[str, tuple[Tensor, ...]], Mapping[str, Tensor]]:
        """Go back through a pass; see `HostPasses`."""
        run, pulls = plan.run, sorted(made.use.pulls)
        shapes, rows, listed = run.variant.pushes.shapes, [], []
        for name, d in seeds.items():
            if d is None:
                rows.append(self._zero_rows(len(run.row_of) * math.prod(shapes[name])))
            else:
                rows.append(rows_of(d.rows.detach().resolve_neg()))
            if d is not None and d.row_of is not None:
                listed.append(name)
        key = tuple(listed)
        if key not in plan.backs:
            lists: list[Array] = []
            starts = dict.fromkeys(seeds, -1)
            for name in listed:
                starts[name] = sum(map(len, lists))
                row_of = cast("Cotangent", seeds[name]).row_of
                lists.append(
                    run.once(("seed", name), [row_of], partial(np.take, row_of, run.order))
                )
            places = PulledPlaces.of(plan.batch, run, pulls, lists)
            plan.backs[key] = tuple(starts.values()) if lists else (), places
        starts_of, places = plan.backs[key]
        self.passes.restore(made)
        given: tuple[Any, ...] = tuple(rows)
        part = Part(run.layout.backward, 1.0, made.seed, given, starts_of, reals=made.reals)
        return self._gradients_of(run, part, places, pulls, sparse)

    def loss(self, way: WayBack) -> LossAndGradients:
        """Evaluate the loss and go back from it, in one launch; all is in memory of its own."""
        (run,) = way.runs
        loss = self._gradients.new_empty(())
        part = Part(slice(None), way.scale, way.seed, to=Destination(loss=loss.data_ptr()))
        if run.variant.use.backward:
            places = PulledPlaces.of(way.batch, run, way.pulls)
            found = self._gradients_of(run, part, places, way.pulls, way.sparse)
            return LossAndGradients(loss, *found)
        self._launch(run, part)
        return LossAndGradients(loss, None, {}, {})

    def _gradients_of(
        self, run: Run, part: Part, places: PulledPlaces, pulls: Sequence[str], sparse: bool
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """Run launches that go back; return the last three fields of `LossAndGradients`.

        Tables of which rows are wanted stay in the executor's own array, since these are few of its
        rows.
        """
        model, flat, rows = self.executor.model, self._gradients, {}
        touched = model.touched(run) if sparse else {}
        if not touched:
            flat = torch.empty_like(flat)
        at = {n: _here(numbers.astype(np.int64), self.device) for n, numbers in touched.items()}
        pulled, copies = places.room(flat)
        gradients = 0 if touched else flat.data_ptr()
        to = Destination(gradients, part.to.loss, None, copies, places.rows)
        arena = self._launch(run, part._replace(to=to))
        for name, numbers in at.items():
            start, shape = int(model.store.offsets[name]), model.store.shapes[name]
            whole = flat[start : start + math.prod(shape)].view(shape)
            rows[name] = numbers, whole.index_select(0, numbers)
        if touched:
            flat = flat[: model.store.dense_size].clone()
        places.add(arena, pulled)
        return flat, rows, dict(zip(pulls, pulled, strict=True))

    def _zero_rows(self, size: int) -> DeviceRows:
        """Return zeros that passes only read; filling them anew takes an op.

        Those before are held: launches on whatever stream may read them.
        """
        found = self._zeros[-1]
        if found.shape[0] < size:
            most = max(size, 2 * found.shape[0])
            self._zeros.append(rows_of(self._gradients.new_zeros(most)))
        return self._zeros[-1]

    def _launch(self, run: Run, part: Part) -> Tensor:
        """Run launches on PyTorch's current stream; return the arena."""
        stream = None
        if self._on_gpu:
            # `torch.cuda.current_stream` makes an object of it, which takes ten times as long.
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        arena = self.executor.launch_between(run, part, stream)
        if self._arena[0] is not arena:
            self._arena = arena, tensor_of(arena)
        return self._arena[1]


def tensor_of(array: Any) -> Tensor:
    """Return an array of the host or of a GPU as a tensor with the same memory."""
    if isinstance(array, Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    found: Tensor = torch.utils.dlpack.from_dlpack(array)
    return found
