"""One way through a network: what is asked of it, one function of autograd, and its ops.

`evaluate` is called by modules. Where no compiler looks, `Pass` evaluates a network and goes back
through it; of a loss it makes the gradients in the same launch, and only multiplies them later.

In a graph of `torch.compile` two ops do so, forward and backward, with fakes; elsewhere calling an
op of Python takes PyTorch longer than a small network runs. The forward op returns the pushes and,
with gradients to come, a token of the pass that it keeps. Where that is gone when the backward op
runs (it was gone back through already, or a compiler made the op anew), the pass is repeated: the
seed of what is drawn is an input. Both take parameters in the binding's order; pulls; the tensors
of a batch, which are those of `BatchTensors` and the seed, int64 [1]; and a `Call` as text, since
ops know no records.
"""

from __future__ import annotations

import ast
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from vertexrt.api.forward_passes import ForwardPass
from vertexrt.engine.executor import Request
from vertexrt.engine.layouts import Recent
from vertexrt.engine.results import LossAndGradients
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.batch import edge_pulls_of, pulls_of, with_values
from vertexrt.graph.digest import form_with
from vertexrt.graph.pulls import with_rows
from vertexrt.torch.binding import BoundNetwork, bound_networks
from vertexrt.torch.plans import (
    MOST_HELD,
    MOST_PLANS,
    PLANS,
    Cotangent,
    PassPlan,
    WantedRows,
    rows_of,
    tensor_of,
)

Array = np.ndarray[Any, Any]
Function = TypeVar("Function", bound=Callable[..., Any])
FIRST = "gradients by backward() and torch.autograd.grad"
in_transform = torch._C._are_functorch_transforms_active
is_batch = torch._C._functorch.is_legacy_batchedtensor  # of `is_grads_batched`, as a tensor


class _Held(np.ndarray[Any, Any]):
    """The memory of a token: an int64 tensor of one number, which stands for an object, since ops
    take and return tensors alone. The object lives as long as that memory does, whatever has a view
    of it: a saved tensor of autograd, or a graph that was compiled.
    """

    thing: object


_numbers = itertools.count(1)
_tokens: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()


def _token_of(thing: object) -> Tensor:
    number = next(_numbers)
    held = np.array([number]).view(_Held)
    held.thing = thing
    _tokens[number] = held
    return torch.from_numpy(held)


def _taken(token: Tensor) -> Any:
    """Return what a token stands for; None, where that is gone, or was of another process."""
    held = _tokens.get(int(token))
    return None if held is None else held.thing


class BatchTensors(NamedTuple):
    """A batch as tensors, for `torch.compile` and for pooling over graphs.

    Attributes:
        token: int64 [1], stands for the GraphBatch.
        graph_of: int64 [V], the graph of each vertex.
        roots: int64, the vertices that have no parent, rising.
    """

    token: Tensor
    graph_of: Tensor
    roots: Tensor

    @staticmethod
    def of(batch: object) -> BatchTensors:
        """Return the tensors of a `GraphBatch`.

        Raises: UsageError, when it is none.
        """
        graphs = graphs_in(batch)
        graph_of, roots = (torch.from_numpy(each) for each in (graphs.graph_of, graphs.roots))
        return BatchTensors(_token_of(graphs), graph_of.long(), roots.long())

    @property
    def graphs(self) -> GraphBatch:
        """The batch that the token stands for.

        Raises: UsageError, when it is gone.
        """
        found = _taken(self.token)
        if not isinstance(found, GraphBatch):
            got = "the token of a batch that is gone, or of another process"
            action = "keep the BatchTensors; between processes pass a GraphBatch"
            raise UsageError.at("torch", got, "one that is alive", action)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the batch itself: tokens mean nothing elsewhere."""
        return BatchTensors.of, (self.graphs,)


def graphs_in(batch: object) -> GraphBatch:
    """Return the graphs of a batch of either kind. Raises: UsageError, when it is none."""
    if isinstance(batch, GraphBatch):
        return batch
    if isinstance(batch, BatchTensors):
        return batch.graphs
    got = f"the batch is a {type(batch).__name__}"
    action = "build one: vrt.GraphBatch.from_graphs([...])"
    raise UsageError.at("torch", got, "a GraphBatch, or a BatchTensors of it", action)


class Call(NamedTuple):
    """What is asked of a network, by which passes that ask for the same know each other.

    Attributes:
        number: of the binding.
        pulls: names of those that are tensors; outputs: names of pushes.
        wanted: names of the pulls that get a gradient.
        keep: for the way back; drop: let dropout drop.
        sparse: gradients of tables are rows and their numbers.
        reduction: of the loss, whose gradients are made at once; "" for outputs.
    """

    number: int
    pulls: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    keep: bool
    drop: bool
    sparse: bool = False
    reduction: str = ""

    def text(self) -> str:
        """Write it as text."""
        return repr(tuple(self))

    @staticmethod
    @lru_cache
    def of(text: str) -> Call:
        """Read it from text; those of the last calls are kept."""
        return Call(*ast.literal_eval(text))


@lru_cache
def use_of(call: Call, draws: bool) -> Use:
    """Return what a pass is for; where F draws nothing, that of a loss is `Network.step`'s."""
    names, pulls = frozenset(call.outputs), frozenset(call.wanted)
    if not call.keep:
        return Use(names, dropout=call.drop or None)
    if call.reduction:
        drops = None if call.drop or not draws else False
        return Use(names, loss=True, pulls=pulls, dropout=drops)
    return Use(names, seeds=names, pulls=pulls, dropout=call.drop)


class Kept(NamedTuple):
    """What keeps a pass: as long as `made` lives, it may be gone back through.

    Attributes:
        plan: how it runs.
    """

    made: ForwardPass
    plan: PassPlan


class AskedPass(NamedTuple):
    """A pass that is asked for.

    Attributes:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
        rows: of the outputs; None for those of all vertices in their order.
        order: int64 on the network's device, which of the rows that are ordered comes where.
    """

    bound: BoundNetwork
    call: Call
    graphs: GraphBatch
    seed: int
    rows: tuple[WantedRows | None, ...]
    order: Tensor | None = None

    def evaluate(
        self, pulls: Sequence[Tensor]
    ) -> tuple[Kept | LossAndGradients | None, list[Tensor]]:
        """Evaluate the network, whose parameters are held: see `BoundNetwork.holding`.

        Returns: what is kept for the way back, if the call says so; the outputs.
        """
        bound, call, graphs, seed, rows, order = self
        use, way = use_of(call, bound.draws), bound.way
        if call.reduction:
            asked = Request(use, self._with_pulls(pulls), call.outputs, seed)
            made = way.passes.loss(asked, call.reduction, call.sparse, way.results.loss)
            return made if call.keep else None, [tensor_of(made.loss)]
        run = way.executor.model.kept_run(use, graphs.form)
        key, runs = (call[1:], rows), None  # networks of equal programs share runs
        plans = None if run is None or run.kept is None else run.kept.get(PLANS)
        plan: PassPlan | None = None if plans is None else plans.find(key)
        if plan is not None and plan.takes(graphs, pulls):
            reals = plan.reals(pulls)
        else:
            batch = self._with_pulls(pulls)
            runs = way.executor.model.prepare(use, batch)
            reals = runs[0].inputs.floats
            plan = PassPlan(runs[0], batch, call.outputs, rows, call.pulls, way.lend)
            kept = runs[0].kept
            if kept is not None and batch.form is graphs.form and plan.holds <= MOST_HELD:
                kept.setdefault(PLANS, Recent(MOST_PLANS, MOST_PLANS)).keep(key, plan)
        one, found = way.forward(plan, runs, reals, order, seed, call.keep)
        return None if one is None else Kept(one, plan), found

    def _with_pulls(self, given: Sequence[Tensor]) -> GraphBatch:
        """Return a batch with pulls from tensors; of one that it has as a table, these are rows."""
        names, graphs, bound = self.call.pulls, self.graphs, self.bound
        if not names:
            return graphs
        found: dict[str, Any] = {}
        before, tables = pulls_of(graphs), True
        for name, tensor in zip(names, given, strict=True):
            table, rows = before.get(name), tensor.detach()
            values: Any
            if not rows.is_floating_point():
                values = rows.numpy().astype(np.int32, copy=False)
            elif bound.network.device == "cuda":
                values = rows_of(rows)
            else:
                values = rows.numpy().astype(bound.store.dtype, copy=False)
            tables = tables and isinstance(table, Rows)
            found[name] = with_rows(table, values) if isinstance(table, Rows) else values
        if tables and form_with(graphs.form, before, found) is graphs.form:  # the rest was checked
            return with_values(graphs, {**before, **found}, edge_pulls_of(graphs), graphs.form)
        return graphs.with_pulls(found)

    def gradients(
        self,
        d_outputs: Sequence[Tensor | None],
        given: Sequence[Tensor],
        kept: Kept | None,
    ) -> list[Tensor | None]:
        """Go back through a pass that is kept, or that is repeated.

        Args:
            given: parameters, then pulls.
        Returns: the gradients of all parameters and of all pulls, None where there is none.
        """
        bound, call = self.bound, self.call
        count, way = len(bound.names), bound.way
        with bound.holding(given[:count]):
            if kept is not None:
                way.passes.check(kept.made)
            if kept is None or kept.made.done:
                kept = cast("Kept", self.evaluate(given[count:])[0])
            seeds = self._cotangents(d_outputs)
            dense, rows, pulled = way.back(kept.plan, kept.made, seeds, call.sparse)
        return [*bound.parts_of(dense, rows), *map(pulled.get, call.pulls)]

    def _cotangents(self, d_outputs: Sequence[Tensor | None]) -> dict[str, Cotangent | None]:
        """Return the gradient of each push that was asked for, in the order of names, given those
        of the outputs that were made of them; None where there is none.
        """
        outputs = self.call.outputs
        terms: dict[str, list[tuple[Tensor, WantedRows | None]]] = {
            n: [] for n in sorted({*outputs})
        }
        for name, d, rows in zip(outputs, d_outputs, self.rows, strict=True):
            if d is not None:
                terms[name].append((d, rows))
        found: dict[str, Cotangent | None] = {}
        for name, own in terms.items():
            if not own:
                found[name] = None
                continue
            d, rows = own[0]
            if len(own) == 1 and (rows is None or rows.row_of is not None):
                found[name] = Cotangent(d, None if rows is None else rows.row_of)
                continue
            shape = self.graphs.num_vertices, *self.bound.push_shapes[name]
            total = d.new_zeros(shape)
            for d, rows in own:
                if rows is None:
                    total += d
                else:
                    total.index_add_(0, rows.here(d.device, self.order), d.reshape(-1, *shape[1:]))
            found[name] = Cotangent(total, None)
        return found


class FirstOrder(torch.autograd.Function):
    """A function that no transform takes, whose backward is the last."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Apply it. Raises: UsageError, inside of a transform."""
        if in_transform():
            raise _refuse_transform()
        return super().apply(*args)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Refuse forward mode. Raises: UsageError."""
        action = "use torch.autograd.functional.jacobian"
        raise UsageError.at("torch", "forward mode of autograd", FIRST, action)


def _refuse_transform() -> UsageError:
    got = "a network inside of a transform of torch.func, such as vmap, grad and jacrev"
    return UsageError.at("torch", got, FIRST, "loop over examples, or use is_grads_batched=True")


def _refuse_twice(ctx: Any, *d_gradients: Any) -> Any:
    """Refuse the derivative of a gradient. Raises: UsageError."""
    got, expected = "trying to differentiate twice", "networks have no second derivatives"
    action = "use gradients as numbers: leave create_graph out"
    raise UsageError.at("torch", got, expected, action)


class Pass(FirstOrder):
    """A pass and its way back."""

    @staticmethod
    def forward(ctx: Any, asked: AskedPass, *given: Tensor) -> tuple[Tensor, ...]:
        """Evaluate a network.

        Args:
            given: parameters, then pulls.
        """
        count = len(asked.bound.names)
        with asked.bound.holding(given[:count]):
            kept, found = asked.evaluate(given[count:])
        if kept is not None:
            ctx.asked, ctx.kept, saved = asked, kept, given
            if isinstance(kept, LossAndGradients):
                ctx.kept = {name: tensor_of(at) for name, (at, _) in kept.rows.items()}
                values = [values for _, values in kept.rows.values()]
                pulled = [kept.pulled[name] for name in asked.call.wanted]
                saved = tuple(map(tensor_of, (kept.flat, *values, *pulled)))
            ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor | None) -> tuple[Any, ...]:
        """Return the gradient of each argument of `forward`."""
        if in_transform():
            raise _refuse_transform()
        for d in d_outputs:
            if d is not None and is_batch(d):
                return _each_of_batch(ctx, d_outputs)
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # their derivatives are asked for, and refused, later
            later = torch.empty(0, requires_grad=True)
            return None, *WayBackOf.apply(ctx, later, *d_outputs, *saved)
        return None, *_gradients_of(ctx, d_outputs, saved)


class WayBackOf(FirstOrder):
    """The way back of a pass as a function of all that it depends on, which has no derivative."""

    @staticmethod
    def forward(ctx: Any, of: Any, later: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
        """Go back.

        Args:
            of: the pass; later: wants a gradient.
            given: gradients of the outputs of the pass, then what it has saved.
        """
        count = len(of.asked.call.outputs)
        return tuple(_gradients_of(of, given[:count], given[count:]))

    backward = staticmethod(_refuse_twice)


def _gradients_of(
    ctx: Any, d_outputs: Sequence[Tensor | None], saved: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Return the gradients of all parameters and of all pulls, None where there is none.

    Those of a loss are there: their product with its gradient is new memory, so the pass may be
    gone back through again while autograd keeps it.
    """
    asked: AskedPass = ctx.asked
    bound, call = asked.bound, asked.call
    if not call.reduction:
        return asked.gradients(d_outputs, saved, ctx.kept)
    (d_loss,) = d_outputs
    if d_loss is None:
        return (None,) * (len(bound.names) + len(call.pulls))
    flat, *others = [each * d_loss for each in saved]
    rows = {name: (at, others.pop(0)) for name, at in ctx.kept.items()}
    pulled = dict(zip(call.wanted, others, strict=True))
    return [*bound.parts_of(flat, rows), *map(pulled.get, call.pulls)]


def _each_of_batch(ctx: Any, d_outputs: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Go back for each of a batch of gradients, which `is_grads_batched=True` gives at once."""
    outer = torch._C._vmapmode_decrement_nesting()
    try:
        given = [
            None if d is None else torch._remove_batch_dim(d, outer + 1, 1, 0) for d in d_outputs
        ]
        count = max(len(d) for d in given if d is not None)
        found = [
            Pass.backward(ctx, *[None if d is None else d[k % len(d)] for d in given])
            for k in range(count)
        ]
    finally:
        level = torch._C._vmapmode_increment_nesting()
    return tuple(
        [
            None if x[0] is None else torch._add_batch_dim(torch.stack(x), 0, level)
            for x in zip(*found, strict=True)
        ]
    )


def evaluate(
    bound: BoundNetwork,
    parameters: Sequence[Tensor],
    batch: GraphBatch | BatchTensors,
    pulls: Mapping[str, Tensor],
    outputs: tuple[str, ...],
    *,
    training: bool,
    sparse: bool = False,
    reduction: str = "",
    rows: tuple[WantedRows | None, ...] | None = None,
    order: Tensor | None = None,
) -> Sequence[Tensor]:
    """Evaluate a bound network; gradients go to the parameters and to real pulls.

    Args:
        pulls: tensors, by name.
        training: dropout drops.
        sparse, reduction: of `Call`; rows, order: of `AskedPass`; by default of all vertices. All
            but `reduction` are for calls outside of compilers.
    Returns: the outputs, and what else comes after them.
    Raises: UsageError and PullError, where the batch, pulls or parameters do not fit.
    """
    compiling = torch.compiler.is_compiling()
    graphs = None if compiling else graphs_in(batch)
    device, dtype, grad = bound.device, bound.dtype, torch.is_grad_enabled()
    given, wanted = [], []
    for name, pull in pulls.items():
        pull = pull.resolve_neg()  # kernels see the numbers alone
        if pull.dtype != dtype or pull.device != device:  # `to` takes longer to find it out
            # Whole numbers, which decide how a batch runs, are read on the host.
            pull = pull.to(device, dtype) if pull.is_floating_point() else pull.cpu()
        given.append(pull)
        if grad and pull.requires_grad:
            wanted.append(name)
    keep = bound.wants(parameters) or bool(wanted)
    drop = training and bound.draws
    asks = tuple(pulls), outputs, tuple(wanted), keep, drop
    if graphs is not None:
        seed = int(torch.randint(2**32, (1,))) if drop else 0
        call = Call(bound.number, *asks, sparse, reduction)
        asked = AskedPass(bound, call, graphs, seed, rows or (None,) * len(outputs), order)
        found: tuple[Tensor, ...] = Pass.apply(asked, *parameters, *given)
        return found
    tensors = batch if isinstance(batch, BatchTensors) else BatchTensors.of(batch)
    drawn = torch.randint(2**32, (1,)) if drop else torch.zeros(1, dtype=torch.int64)
    of_batch = [tensors.token, tensors.graph_of, drawn]
    by_op: list[Tensor] = forward(parameters, given, of_batch, Call(bound.number, *asks).text())
    return by_op


def outside_graphs(function: Function) -> Function:
    """Let a compiler leave a function outside of its graphs: it reads structures of the host."""
    apart = _disable_dynamo(function)  # which imports the compiler when it is called

    @wraps(function)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (apart if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return cast("Function", choose)


def _asked(call: Call, of_batch: Sequence[Tensor]) -> AskedPass:
    """Return what inputs of an op ask for."""
    token, graph_of, seed = of_batch
    graphs = BatchTensors(token, graph_of, graph_of).graphs
    nothing = (None,) * len(call.outputs)
    return AskedPass(bound_networks[call.number], call, graphs, int(seed), nothing)


@torch.library.custom_op("vertexrt::forward", mutates_args=())
def forward(
    parameters: Sequence[Tensor], pulls: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    """Evaluate a network on a batch.

    Returns: the pushes [V, ...], and if the pass is kept, its token.
    """
    asked = _asked(Call.of(call), of_batch)
    with asked.bound.holding(parameters):
        kept, found = asked.evaluate(pulls)
    return found if kept is None else [*found, _token_of(kept)]


@forward.register_fake
def _fake_forward(
    parameters: Sequence[Tensor], pulls: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    asked = Call.of(call)
    mine, (token, graph_of, _) = bound_networks[asked.number], of_batch
    shapes = [(graph_of.shape[0], *mine.push_shapes[name]) for name in asked.outputs]
    like = graph_of.new_empty(0, dtype=mine.dtype, device=mine.device)
    tensors = [like.new_empty(shape) for shape in shapes]
    return [*tensors, torch.empty_like(token)] if asked.keep else tensors


@torch.library.custom_op("vertexrt::backward", mutates_args=())
def backward(
    d_outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    pulls: Sequence[Tensor],
    of_batch: Sequence[Tensor],
    call: str,
) -> list[Tensor]:
    """Go back through a pass of the forward op.

    Args:
        d_outputs: gradients of the pushes; the last of `of_batch` is the token of the pass.
    Returns: gradients of the trained parameters, and of the wanted pulls.
    """
    *of_forward, made = of_batch
    asked = _asked(Call.of(call), of_forward)
    found = asked.gradients(d_outputs, [*parameters, *pulls], _taken(made))
    # What an op returns may not share memory; gradients may be parts of one tensor.
    return [
        x.clone() if x.untyped_storage().nbytes() != x.nbytes else x for x in found if x is not None
    ]


@backward.register_fake
def _fake_backward(
    d_outputs: Sequence[Tensor],
    parameters: Sequence[Tensor],
    pulls: Sequence[Tensor],
    of_batch: Sequence[Tensor],
    call: str,
) -> list[Tensor]:
    asked = Call.of(call)
    mine = bound_networks[asked.number]
    like = [x for name, x in zip(mine.names, parameters, strict=True) if name in mine.trained]
    like += [x for name, x in zip(asked.pulls, pulls, strict=True) if name in asked.wanted]
    return [torch.empty_like(x, dtype=mine.dtype) for x in like]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Note for the way back what the forward op was given, and its pass."""
    parameters, pulls, of_batch, ctx.call = inputs
    if Call.of(ctx.call).keep:
        ctx.sizes = len(parameters), len(pulls)
        ctx.save_for_backward(*parameters, *pulls, *of_batch, output[-1])


def _go_back(ctx: Any, d_outputs: list[Tensor]) -> tuple[Any, ...]:
    """Return the gradient of each input of the forward op."""
    asked, saved = Call.of(ctx.call), ctx.saved_tensors
    count, end = ctx.sizes[0], sum(ctx.sizes)
    parameters, pulls, of_batch = list(saved[:count]), list(saved[count:end]), list(saved[end:])
    found = iter(backward(d_outputs[:-1], parameters, pulls, of_batch, ctx.call))
    mine = bound_networks[asked.number]
    of_parameters = [next(found) if name in mine.trained else None for name in mine.names]
    of_pulls = [next(found) if name in asked.wanted else None for name in asked.pulls]
    return of_parameters, of_pulls, [None] * (len(of_batch) - 1), None


forward.register_autograd(_go_back, setup_context=_keep_inputs)
backward.register_autograd(_refuse_twice)
