"""One way through a network: what is asked of it, one function of autograd, and its ops.

`evaluate` is called by modules. A `Pass` evaluates a network and goes back through it; of a loss it
makes the gradients in the same launch, and only multiplies them later. Where no compiler looks, a
function of autograd does both.

In a graph of `torch.compile` two ops do so, forward and backward, with fakes; elsewhere calling an
op of Python takes PyTorch longer than a small network runs. The forward op returns the pushes and,
with gradients to come, a token of the pass that it keeps. Where that is gone when the backward op
runs (it was gone back through already, or a compiler made the op anew), the pass is repeated: the
seed of what is drawn is an input. Both take parameters in the binding's order, then pulls; the
tensors of a batch, which are those of `BatchTensors` and the seed, int64 [1]; and a `Call` as text,
since ops know no records.
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
from torch.autograd import forward_ad

from vertexrt.api.network import ForwardPass
from vertexrt.engine.batched import Run
from vertexrt.engine.executor import loss_scale
from vertexrt.engine.results import PushRows, WayBack
from vertexrt.engine.variant import Use
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.pulls import with_rows
from vertexrt.torch.binding import BoundNetwork, bound_networks
from vertexrt.torch.tensors import Feeds, device_rows, readable

Array = np.ndarray[Any, Any]
Function = TypeVar("Function", bound=Callable[..., Any])
MOST_HELD = 1 << 16  # bytes of the real pulls that are no tensors, of a run that is kept with them
FIRST = "gradients by backward() and torch.autograd.grad"
NO_EXPORT = (
    "networks, whose operations follow the structure of the input, have no such form",
    "give the weights of a layer to torch.nn's by load_state_dict, or write `vertexrt export`",
)
NOT_IN_GRAPHS = (
    "[torch] a layer of vertexrt in a graph of PyTorch's; a call outside of it; leave fullgraph "
    "out, and give the weights of a layer that is exported to torch.nn's by load_state_dict."
)
in_transform = torch._C._are_functorch_transforms_active
is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # since PyTorch 2.7
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


class _TensorsOfBatch(NamedTuple):
    token: Tensor
    graph_of: Tensor
    roots: Tensor


class BatchTensors(_TensorsOfBatch):
    """A batch as tensors, for `torch.compile` and for pooling over graphs.

    It is a tuple. It may be rebuilt of its tensors or of copies of them, given one by one or by an
    iterator, as training loops do that move the tensors of any tuple to a device.

    Attributes:
        token: int64 [1], stands for the GraphBatch.
        graph_of: int64 [V], the graph of each vertex.
        roots: int64, the vertices that have no parent, rising.
    """

    held: _Held | None

    def __new__(cls, *tensors: Any) -> BatchTensors:
        """Make the tuple of three tensors, or of an iterator over them."""
        given = iter(tensors if len(tensors) > 1 else tensors[0])
        token, held = next(given), None
        if type(token) is Tensor and not torch.compiler.is_compiling():
            # Which a copy of its memory does not hold; an iterator may be the last that does.
            held = _tokens.get(int(token))
        made = super().__new__(cls, token, *given)
        made.held = held
        return made

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
    _refuse_symbol(batch)
    got = f"the batch is a {type(batch).__name__}"
    action = "build one: vrt.GraphBatch.from_graphs([...])"
    raise UsageError.at("torch", got, "a GraphBatch, or a BatchTensors of it", action)


def check_tensor(given: object) -> None:
    """Refuse what holds no numbers: other types, and the symbols of PyTorch. Raises: UsageError."""
    _refuse_symbol(given)
    if not isinstance(given, Tensor):
        got = f"a {type(given).__name__}"
        raise UsageError.at("torch", got, "a tensor", "write torch.as_tensor(array)")


def _refuse_symbol(given: object) -> None:
    if type(given).__module__.startswith(("torch.fx", "torch._subclasses")):
        raise UsageError.at("torch", f"a {type(given).__name__}, no tensor", *NO_EXPORT)


class Call(NamedTuple):
    """What is asked of a network, by which passes that ask for the same know each other.

    Attributes:
        number: of the binding.
        pulls: names of those that are tensors; outputs: names of pushes.
        wanted: names of the pulls that get a gradient.
        keep: for the way back.
        drop: let dropout drop; None, where F draws nothing.
        sparse: gradients of tables are rows and their numbers.
        reduction: of the loss, whose gradients are made at once; "" for outputs.
    """

    number: int
    pulls: tuple[str, ...]
    outputs: tuple[str, ...]
    wanted: tuple[str, ...]
    keep: bool
    drop: bool | None
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

    def gets_gradients(self) -> list[bool]:
        """Tell of each parameter, then of each pull, whether it gets one."""
        bound = bound_networks[self.number]
        pulls = [name in self.wanted for name in self.pulls]
        return [name in bound.trained for name in bound.names] + pulls


@lru_cache
def use_of(call: Call) -> Use:
    """Return what a pass is for; where F draws nothing, that of a loss is `Network.step`'s."""
    names, pulls = frozenset(call.outputs), frozenset(call.wanted)
    if not call.keep:
        return Use(names, dropout=call.drop or None)
    if call.reduction:
        drops = False if call.drop is False else None
        return Use(names, loss=True, pulls=pulls, dropout=drops)
    return Use(names, d_pushes=names, pulls=pulls, dropout=bool(call.drop))


class WantedRows:
    """Rows of a push that are wanted, those of some vertices.

    Args:
        vertices: int64 [n], whose; None for all, in their order.
        row_of: int32 [V], the row of each vertex, where each has one and they are in another order.
        shape: of the result; None for [n, *shape].
    """

    def __init__(
        self,
        vertices: Array | None = None,
        row_of: Array | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.vertices, self.row_of, self.shape = vertices, row_of, shape
        self._here: Tensor | None = None

    def here(self, device: torch.device) -> Tensor:
        """Return the vertices on a device, where they are copied to once."""
        if self._here is None or self._here.device != device:
            assert self.vertices is not None, "those of all are no list"
            self._here = torch.from_numpy(self.vertices).to(device)
        return self._here


ALL = WantedRows()


class Pass:
    """A pass that is asked for; if it is to be kept, what was made, as long as this lives.

    Args:
        bound: the network; call: what is asked of it; graphs: the batch.
        seed: of what is drawn.
        rows: of the outputs.
    """

    def __init__(
        self,
        bound: BoundNetwork,
        call: Call,
        graphs: GraphBatch,
        seed: int,
        rows: Sequence[WantedRows],
    ) -> None:
        self.bound, self.call, self.graphs = bound, call, graphs
        self._seed, self._rows = seed, rows
        self._made: ForwardPass | None = None
        self._looked_up: dict[str, Tensor] = {}  # with a loss, rows of tables

    @staticmethod
    def of(call: str, of_batch: Sequence[Tensor]) -> Pass:
        """Return what inputs of an op ask for."""
        (token, graph_of, seed), asked = of_batch, Call.of(call)
        graphs = BatchTensors(token, graph_of, graph_of).graphs
        rows = (ALL,) * len(asked.outputs)
        return Pass(bound_networks[asked.number], asked, graphs, int(seed), rows)

    def evaluate(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Evaluate the network.

        Args:
            given: parameters, then pulls.
        Returns: the outputs; of a loss with gradients to come, then these.
        """
        bound, call, count = self.bound, self.call, len(self.bound.names)
        passes, use, results = bound.passes, use_of(call), bound.results
        with bound.holding(given[:count]):
            batch, runs, reals = self._prepare(use, given[count:])
            passes.make_room()
            if call.reduction:
                scale, wanted = loss_scale(call.reduction, batch, runs), sorted(use.pulls)
                way = WayBack(batch, runs, self._seed, {}, scale, wanted, call.sparse)
                loss, flat, tables, pulled = results.gradients(way, reals)
                if not call.keep:
                    return [loss]
                self._looked_up = {name: at for name, (at, _) in tables.items()}
                values = [values for _, values in tables.values()]
                return [loss, flat, *values, *[pulled[name] for name in call.wanted]]
            d_pushes, parts, pushes = (passes.zero,) * len(use.d_pushes), [], []
            for run in runs:
                parts.append(run.forward(self._seed, d_pushes)._replace(reals=reals))
            for name, rows in zip(call.outputs, self._rows, strict=True):
                pushes.append(PushRows(name, rows.vertices))
            found = results.forward(runs, parts, pushes)
            if call.keep:
                self._made = passes.note(ForwardPass(batch, runs, use, self._seed, reals))
        for k, rows in enumerate(self._rows):
            if rows.shape is not None:
                found[k] = found[k].view(rows.shape)
        return found

    def _prepare(
        self, use: Use, pulls: Sequence[Tensor]
    ) -> tuple[GraphBatch, list[Run], tuple[Any, ...] | None]:
        """Return the batch, its runs, and the real pulls that these are called with, if any."""
        bound, graphs, names = self.bound, self.graphs, self.call.pulls
        key = "feeds", names
        kept = bound.model.kept_run(use, graphs.form)
        feeds: Feeds | None = None if kept is None or kept.kept is None else kept.kept.get(key)
        if kept is not None and feeds is not None:
            run = feeds.run_of(kept, graphs, pulls, bound.results.lend)
            if run is not None:
                return feeds.batch, [run], run.inputs.floats
        batch, found = graphs, {}
        for name, tensor in zip(names, pulls, strict=True):
            own, rows = graphs.pulls.get(name), tensor.detach()
            there = bound.results.on_gpu and rows.is_floating_point()
            values: Any = device_rows(rows) if there else readable(rows).numpy()
            found[name] = with_rows(own, values) if isinstance(own, Rows) else values
        if names:
            batch = graphs.with_pulls(found)
        runs = bound.model.prepare(use, batch)
        if runs[0].kept is not None and batch.form is graphs.form:
            feeds = Feeds(runs[0], graphs, batch, names)
            run = feeds.run_of(runs[0], graphs, pulls, bound.results.lend)
            if run is not None and feeds.holds <= MOST_HELD:
                runs[0].kept[key] = feeds
                return feeds.batch, [run], run.inputs.floats
        return batch, runs, None

    def gradients(
        self, d_outputs: Sequence[Tensor | None], saved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Go back through the pass, or through it once more.

        Those of a loss are there: their product with its gradient is new memory, so the pass may be
        gone back through again while autograd keeps it.

        Args:
            saved: parameters and pulls; of a loss, what came after it.
        Returns: the gradients of all parameters and of all pulls, None where there is none.
        """
        bound, call = self.bound, self.call
        if call.reduction:
            (d_loss,) = d_outputs
            if d_loss is None:
                return [None] * (len(bound.names) + len(call.pulls))
            flat, *others = [each * d_loss for each in saved]
            rows: Mapping[str, Any] = {n: (at, others.pop(0)) for n, at in self._looked_up.items()}
            pulled: Mapping[str, Any] = dict(zip(call.wanted, others, strict=True))
        else:
            passes = bound.passes
            with bound.holding(saved[: len(bound.names)]):
                if self._made is not None:
                    passes.check(self._made)
                if self._made is None or self._made.done:
                    self.evaluate(saved)
                made = cast("ForwardPass", self._made)
                d_pushes, wanted = self._cotangents(d_outputs), sorted(made.use.pulls)
                passes.restore(made)
                way = WayBack(made.batch, made.runs, made.seed, d_pushes, 1.0, wanted, call.sparse)
                _, flat, rows, pulled = bound.results.gradients(way, made.reals)
        return [*bound.parts_of(flat, rows), *map(pulled.get, call.pulls)]

    def _cotangents(
        self, d_outputs: Sequence[Tensor | None]
    ) -> dict[str, tuple[Tensor, Array | None]]:
        """Return the gradient of each push that was asked for, in the order of names, and the row
        of each vertex in it, given those of the outputs that were made of it.
        """
        found: dict[str, tuple[Tensor, Array | None]] = {}
        bound, terms = self.bound, [*zip(self.call.outputs, d_outputs, self._rows, strict=True)]
        for name in sorted({*self.call.outputs}):
            own, shape = [], bound.push_shapes[name]
            for of, d, rows in terms:
                if of == name and d is not None:
                    own.append((d.detach().resolve_neg().reshape(-1, *shape), rows))
            row_of = None
            if len(own) == 1 and (own[0][1].vertices is None or own[0][1].row_of is not None):
                total, row_of = own[0][0], own[0][1].row_of
            else:
                shape = self.graphs.num_vertices, *shape
                total = torch.zeros(shape, dtype=bound.dtype, device=bound.device)
                for d, rows in own:
                    if rows.vertices is None:
                        total += d
                    else:
                        total.index_add_(0, rows.here(d.device), d)
            found[name] = total, row_of
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


class Evaluate(FirstOrder):
    """A pass and its way back."""

    @staticmethod
    def forward(ctx: Any, asked: Pass, *given: Tensor) -> tuple[Tensor, ...]:
        """Evaluate a network, given its parameters, then pulls."""
        found, count = asked.evaluate(given), len(asked.call.outputs)
        if asked.call.keep:
            ctx.asked, ctx.given = asked, [each for each in given if each.requires_grad]
            ctx.save_for_backward(*(found[count:] or given))
            ctx.set_materialize_grads(False)
        return tuple(found[:count])

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
            later = torch.zeros((), requires_grad=True)
            for each in ctx.given:  # whatever they are asked of
                later = later + each.sum()
            return None, *WayBackOf.apply(ctx.asked, later, *d_outputs, *saved)
        return None, *ctx.asked.gradients(d_outputs, saved)


class WayBackOf(FirstOrder):
    """The way back of a pass as a function of all that it depends on, which has no derivative."""

    @staticmethod
    def forward(ctx: Any, asked: Pass, later: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
        """Go back.

        Args:
            later: wants a gradient.
            given: gradients of the outputs of the pass, then what it has saved.
        """
        count = len(asked.call.outputs)
        return tuple(asked.gradients(given[:count], given[count:]))

    backward = staticmethod(_refuse_twice)


def _each_of_batch(ctx: Any, d_outputs: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Go back for each of a batch of gradients, which `is_grads_batched=True` gives at once."""
    outer = torch._C._vmapmode_decrement_nesting()
    try:
        given = [
            None if d is None else torch._remove_batch_dim(d, outer + 1, 1, 0) for d in d_outputs
        ]
        count = max(len(d) for d in given if d is not None)
        found = [
            Evaluate.backward(ctx, *[None if d is None else d[k % len(d)] for d in given])
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
    rows: Sequence[WantedRows] = (),
) -> Sequence[Tensor]:
    """Evaluate a bound network; gradients go to the parameters and to real pulls.

    Args:
        pulls: tensors, by name.
        training: dropout drops.
        sparse, reduction: of `Call`; rows: of `Pass`, by default of all vertices. Inside of
            compilers there is `reduction` alone.
    Returns: the outputs, and what else comes after them.
    Raises: UsageError and PullError, where the batch, pulls or parameters do not fit; UsageError in
        an export or a trace of PyTorch's.
    """
    compiling = torch.compiler.is_compiling()
    # Dynamo takes every call for one of an export, in some versions.
    by_python = not torch.compiler.is_dynamo_compiling()
    if by_python and (is_exporting() or (not compiling and torch._C._is_tracing())):
        raise UsageError.at("torch", "a network in torch.export or torch.jit.trace", *NO_EXPORT)
    graphs = None if compiling else graphs_in(batch)
    device, dtype, grad = bound.device, bound.dtype, torch.is_grad_enabled()
    given, wanted = [*parameters], []
    for name, pull in pulls.items():
        if type(pull) is not Tensor:
            check_tensor(pull)
        pull = pull.resolve_neg()  # kernels see the numbers alone
        if pull.dtype != dtype or pull.device != device:  # `to` takes longer to find it out
            # Whole numbers, which decide how a batch runs, are read on the host.
            pull = pull.to(device, dtype) if pull.is_floating_point() else pull.cpu()
        given.append(pull)
        if grad and pull.requires_grad:
            wanted.append(name)
    keep = bound.wants(parameters) or bool(wanted)
    drop = training if bound.draws else None
    asks = bound.number, tuple(pulls), outputs, tuple(wanted), keep, drop
    if graphs is not None:
        seed = int(torch.randint(2**32, (1,))) if drop else 0
        call = Call(*asks, sparse, reduction)
        asked = Pass(bound, call, graphs, seed, rows or (ALL,) * len(outputs))
        if keep or in_transform() or forward_ad._current_level >= 0:  # the last two are refused
            found: Sequence[Tensor] = Evaluate.apply(asked, *given)
            return found
        return asked.evaluate(given)  # no function of autograd, which takes 10 us
    tensors = batch if isinstance(batch, BatchTensors) else BatchTensors.of(batch)
    drawn = torch.randint(2**32, (1,)) if drop else torch.zeros(1, dtype=torch.int64)
    by_op: list[Tensor] = forward(
        given, [tensors.token, tensors.graph_of, drawn], Call(*asks).text()
    )
    return by_op


def outside_graphs(function: Function) -> Function:
    """Let a compiler leave a function outside of its graphs: it reads structures of the host."""
    apart = _disable_dynamo(function)  # which imports the compiler when it is called

    @wraps(function)
    def choose(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=NOT_IN_GRAPHS)
        return (apart if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return cast("Function", choose)


@torch.library.custom_op("vertexrt::forward", mutates_args=())
def forward(given: Sequence[Tensor], of_batch: Sequence[Tensor], call: str) -> list[Tensor]:
    """Evaluate a network on a batch.

    Returns: the pushes [V, ...], and if the pass is kept, its token.
    """
    asked = Pass.of(call, of_batch)
    found = asked.evaluate(given)
    return [*found, _token_of(asked)] if asked.call.keep else found


@forward.register_fake
def _fake_forward(given: Sequence[Tensor], of_batch: Sequence[Tensor], call: str) -> list[Tensor]:
    asked = Call.of(call)
    mine, (token, graph_of, _) = bound_networks[asked.number], of_batch
    shapes = [(graph_of.shape[0], *mine.push_shapes[name]) for name in asked.outputs]
    found = [graph_of.new_empty(s, dtype=mine.dtype, device=mine.device) for s in shapes]
    return [*found, torch.empty_like(token)] if asked.keep else found


@torch.library.custom_op("vertexrt::backward", mutates_args=())
def backward(
    d_outputs: Sequence[Tensor], given: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    """Go back through a pass of the forward op.

    Args:
        d_outputs: gradients of the pushes; the last of `of_batch` is the token of the pass.
    Returns: gradients of the trained parameters, and of the wanted pulls.
    """
    *of_forward, made = of_batch
    asked = _taken(made) or Pass.of(call, of_forward)
    # What an op returns may not share memory; gradients may be parts of one tensor.
    return [
        x.clone() if x.untyped_storage().nbytes() != x.nbytes else x
        for x in asked.gradients(d_outputs, given)
        if x is not None
    ]


@backward.register_fake
def _fake_backward(
    d_outputs: Sequence[Tensor], given: Sequence[Tensor], of_batch: Sequence[Tensor], call: str
) -> list[Tensor]:
    asked = Call.of(call)
    dtype, each = bound_networks[asked.number].dtype, asked.gets_gradients()
    return [torch.empty_like(x, dtype=dtype) for x, has in zip(given, each, strict=True) if has]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Note for the way back what the forward op was given, and its pass."""
    given, of_batch, ctx.call = inputs
    if Call.of(ctx.call).keep:
        ctx.count = len(given)
        ctx.save_for_backward(*given, *of_batch, output[-1])


def _go_back(ctx: Any, d_outputs: list[Tensor]) -> tuple[Any, ...]:
    """Return the gradient of each input of the forward op."""
    given, of_batch = list(ctx.saved_tensors[: ctx.count]), list(ctx.saved_tensors[ctx.count :])
    found = iter(backward(d_outputs[:-1], given, of_batch, ctx.call))
    each = [next(found) if has else None for has in Call.of(ctx.call).gets_gradients()]
    return each, [None] * (len(of_batch) - 1), None


forward.register_autograd(_go_back, setup_context=_keep_inputs)
backward.register_autograd(_refuse_twice)
