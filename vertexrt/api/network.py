"""What `vrt.compile` returns: a vertex function ready to train and to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import cache, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.api.arguments import (
    check_batch,
    check_draw,
    check_dropout,
    check_graphs,
    check_known,
    check_loss,
    check_mapping,
    check_optimizer,
    check_option,
    check_pulled,
    check_pushes,
    check_scale,
    names_of,
    read_vertices,
    shared,
)
from vertexrt.api.forward_passes import ForwardPass, ForwardPasses
from vertexrt.api.gradients import AccumulatedGradients, given_gradients
from vertexrt.api.init import LARGEST_SEED
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.api.parameters import NameDifferences, Parameters
from vertexrt.api.plan import Plan, with_tables
from vertexrt.engine.executor import Executor, Request, loss_scale, step_seed
from vertexrt.engine.explain import explain_batch, explain_function
from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.engine.results import Gradients, PassResults
from vertexrt.engine.trace import Timeline, recording
from vertexrt.engine.variant import Use
from vertexrt.errors import (
    CheckpointError,
    MissingAttributeError,
    PullError,
    UsageError,
    nearest,
)
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import edge_pulls_of, pulls_of
from vertexrt.ir.program import Program
from vertexrt.parallel.group import ProcessGroup

Array = np.ndarray[Any, Any]
ARRAYS = ("numpy", "device", "torch")
ELSEWHERE = {  # what to write in place of what other libraries have, and earlier versions had
    "forward": "net(batch), or net.record(batch) where gradients are to come",
    "submit": "net(batch), whose arrays are waited for when they are read",
    "backward": "run = net.record(batch), then run.backward()",
    "keeps": "run = net.record(batch): a run is kept as long as it lives",
    "on_device": "net(batch, arrays='device'), and the same with record, plan and step",
    "outputs": "loss = net.step(batch, optimizer, outputs=[...]), then loss.outputs",
    "steps_under_way": "net.sync(), which waits for all steps",
    "set_parameters": "net.load_state({'parameters': values})",
    "random_state": "net.state()['random']",
    "set_random_state": "net.load_state({'random': state})",
    "state_dict": "net.state()",
    "load_state_dict": "net.load_state(state)",
    "train": "net.record(batch), in which dropout drops, or net.step(batch, optimizer)",
    "eval": "net(batch), in which dropout does not drop",
    **dict.fromkeys(("to", "cuda", "cpu"), "vrt.compile(function, device=..., dtype=...)"),
}


P = ParamSpec("P")
R = TypeVar("R")


def _in_turn(
    method: Callable[Concatenate[Network, P], R],
) -> Callable[Concatenate[Network, P], R]:
    """Let one thread at a time into a network; 0.3 us."""

    def guarded(self: Network, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._executor.lock:
            return method(self, *args, **kwargs)

    update_wrapper(guarded, method)
    return guarded


class Network:
    """A compiled vertex function. Made by `vrt.compile`.

    `net(batch)` evaluates it, `net.record(batch)` does so where gradients are to come, `net.plan`
    prepares a batch for many requests, `net.step` trains. All take `arrays`, the kind of arrays
    that come back: "numpy"; "device", which on a GPU are CuPy's, and NumPy's elsewhere; "torch",
    tensors of the device. Those of a GPU are not waited for: what is called comes after what
    CuPy's current stream has, and before what that gets afterwards. Real pulls may lie there, too:
    `batch.with_pulls({"x": array})`.

    Threads may share it: each call has it to itself, and others wait.
    A forked child has a network of its own, as it was; on a GPU it has none (`spawn` works).
    On the host, whatever exception ends a step, KeyboardInterrupt at any time too, parameters, the
    state of the optimizer and the random state are those before the step or after it.

    Attributes:
        parameters: by name, as of now; setting one changes the network.
        gradients: of parameters by name, summed over the backward passes of records.
    """

    def __init__(self, executor: Executor, seed: int, reduction: str) -> None:
        self._executor, self._model = executor, executor.model
        self._reduction = reduction
        self._draws = seed, np.zeros(1, np.int64)  # of all, and how many there were
        self._gradients: AccumulatedGradients | None = None
        self._passes = ForwardPasses(executor)
        program = executor.model.function
        self._pushes = tuple(dict.fromkeys(n["name"] for n in program.nodes if n.op == "push"))
        self._draws_always = bool(program.find("uniform"))  # in inference as well
        self._reals = program.real_pulls
        self._uses: dict[tuple[tuple[str, ...], bool], Use] = {}  # by outputs, with dropout
        self._steps: dict[tuple[str, ...], Use] = {}  # by what is kept
        self._use_of_record = cache(_use_of_record)

    def __repr__(self) -> str:
        engine, store = self._model.engine, self._model.store
        count = sum(math.prod(shape) for shape in store.shapes.values())
        how = f"engine={engine!r}, threads={self._model.threads}, {store.dtype}"
        what = f"{self.program.name} on {self.device}, {how}"
        return f"Network({what}, {count:,} parameters, pushes {', '.join(self.pushes)})"

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            """Say what there is in place of a name. Raises: an AttributeError."""
            if name.startswith("_"):
                raise AttributeError(name)
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            raise MissingAttributeError.at(
                "network",
                f"there is no net.{name}",
                "an attribute of a Network",
                f"write {ELSEWHERE[name]}"
                if name in ELSEWHERE
                else f"correct the name.{nearest(name, known)}",
            )

    @property
    def executor(self) -> Executor:
        """What prepares and runs batches on the device; to look at and to measure, not to use."""
        return self._executor

    @property
    def program(self) -> Program:
        """F as traced, with stacked products."""
        return self._model.function

    @property
    def device(self) -> str:
        """Name of the backend that runs it."""
        return self._model.backend.name

    @property
    def reduction(self) -> str:
        """How `step` reduces the loss, see `vrt.compile`."""
        return self._reduction

    @property
    def pushes(self) -> tuple[str, ...]:
        """Names of what F pushes."""
        return self._pushes

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Refuse copies, and with them pickling: it holds compiled code and a device."""
        action = "compile the function again and copy the state: other.load_state(net.state())"
        got = "a network is to be copied or pickled"
        raise UsageError.at("network", got, "arrays, which can be", action)

    def __call__(
        self,
        batch: GraphBatch,
        *,
        outputs: Collection[str] | None = None,
        vertices: npt.ArrayLike | None = None,
        seed: int | None = None,
        dropout: bool = False,
        arrays: str = "numpy",
    ) -> Outputs:
        """Evaluate F on a batch.

        On a GPU the next batch can be asked for, and others prepared, while this one runs. Results
        are of the parameters as they are now. On a CPU they are there at once.

        Args:
            outputs: names of pushes; all by default.
            vertices: whole numbers [n], the vertices whose pushes are returned, in that order, such
                as `batch.roots`; all by default.
            seed: of what is drawn, from 0 to 2**32 - 1; by default the next of the network's.
            dropout: let dropout drop.
            arrays: "numpy", "device" or "torch", see the class.
        Returns: name -> [V, *shape], in the user's vertex order, or [n, *shape]. On a GPU reading
            one of NumPy's waits.
        Raises: UsageError, for an unknown name; PullError, when pulled values do not fit.
            DeviceError of a launch that failed comes at the reading, or with one of the next calls.
        """
        with self._executor.lock:
            way, convert = self._arrays("call", arrays)
            call = self._call("call", batch, outputs, vertices, dropout, seed)
            found = self._passes.evaluate(call, way)
            return found if convert is None else Outputs(_converted(found, convert))

    @_in_turn
    def record(
        self,
        batch: GraphBatch,
        *,
        outputs: Collection[str] | None = None,
        pulls: Collection[str] | None = None,
        seed: int | None = None,
        dropout: bool = True,
        arrays: str = "numpy",
    ) -> Record:
        """Evaluate F on a batch, and keep what the way back needs.

        Args:
            outputs: names of the pushes that can get gradients; all by default.
            pulls: real pulls whose gradients are wanted; all of the batch by default.
            seed, dropout, arrays: of a call; arrays also of the gradients.
        Returns: `run.outputs`, and `run.backward` for the gradients.
        Raises: as a call does.
        """
        check_draw("record", seed)
        check_dropout("record", dropout)
        check_batch("record", batch)
        way, convert = self._arrays("record", arrays)
        names = self._wanted("record", outputs)
        reals = self._reals if pulls is None else check_pulled(pulls, self._reals)
        missing = reals.difference(pulls_of(batch), edge_pulls_of(batch))
        if missing and pulls is not None:
            got = f"the batch has no pull {', '.join(sorted(missing))}"
            raise PullError.at("record", got, "those whose gradients are asked for", "add them")
        use = self._use_of_record(names, reals - missing, dropout)
        call = Request(use, batch, names, self._take() if seed is None else seed)
        made, found = self._passes.begin(call, way)
        pushed = found if convert is None else Outputs(_converted(found, convert))
        return Record(self, made, pushed, arrays == "numpy", convert)

    @_in_turn
    def plan(
        self,
        batch: GraphBatch,
        *,
        outputs: Collection[str] | None = None,
        vertices: npt.ArrayLike | None = None,
        dropout: bool = False,
        arrays: str = "numpy",
    ) -> Plan:
        """Prepare a batch to be evaluated again and again, with other pulls.

        Args:
            outputs, vertices, dropout, arrays: of a call.
        Returns: a plan, which is called with pulls as the network is with a batch.
        Raises: as a call does.
        """
        convert = self._arrays("plan", arrays)[1]
        call = self._call("plan", batch, outputs, vertices, dropout, seed=0)  # of the tuner's
        call, tuner = call._replace(stays=arrays != "numpy"), self._model.tuner
        while tuner is not None and tuner.times(call.use.backward, batch):
            self._passes.evaluate(call, self._passes.on_host).settle()
        batch = with_tables(batch, {})
        runs = self._model.prepare(call.use, batch, merge=False)
        launch = self._executor.plan(runs, call)

        def seed_of(given: int | None) -> int:
            return self._seed(given, dropout)

        return Plan(self._executor, batch, runs, launch, tuple(call.outputs), seed_of, convert)

    def step(
        self,
        batch: GraphBatch,
        optimizer: Optimizer,
        *,
        outputs: Collection[str] = (),
        vertices: npt.ArrayLike | None = None,
        group: ProcessGroup | None = None,
        arrays: str = "numpy",
    ) -> Loss:
        """Train on a batch: forward, backward, update.

        Args:
            batch: graphs with the pulled values that F reads.
            optimizer: updates the parameters.
            outputs: pushes to keep: `loss.outputs` has them.
            vertices: whole numbers [n], the vertices whose pushes are kept, in that order, such as
                `batch.roots`; all by default.
            group: of processes, all of which pass the whole batch: see `vrt.parallel.init`.
            arrays: of the pushes, see the class. On a GPU a step is waited for where NumPy's are
                asked for, or processes share it; those of a step that is refused have no meaning.
        Returns: the loss of this step, reduced as `vrt.compile` was told: a number that waits when
            it is read. On a GPU the step is not waited for; at most two are under way.
        Raises: NumericError, when the loss, a gradient, or a number that the update would write to
            a parameter or to the optimizer's state is not finite: it names the first op and vertex
            that made it, or the element of the update, and nothing has changed; on a GPU the next
            call raises it, or reading the loss, and steps launched since have changed nothing
            either. An optimizer with an `update` of its own is called with finite gradients only,
            and what it has written is looked at: see `Optimizer`. PullError, when pulled values do
            not fit; ParallelError and UsageError, when another process is lost, or has another
            batch.
        """
        with self._executor.lock:
            asks = getattr(type(optimizer), "update", None) is Optimizer.update  # not its own
            if not asks:
                check_optimizer("step", optimizer)
            if type(batch) is not GraphBatch:
                check_batch("step", batch)
            names = () if type(outputs) is tuple and not outputs else names_of("step", outputs)
            use = self._steps.get(names) or self._use_of_steps(names)
            chosen = None if vertices is None else read_vertices("step", vertices, batch)
            if self._passes.here is not None:
                self._passes.make_room()
            seed, count = self._draws
            drawn = step_seed(seed, int(count[0]))
            here, several = arrays != "numpy", None if group is None else shared(group)
            way, convert = self._arrays("step", arrays) if here else (None, None)
            how = chosen, here, optimizer, asks, self._reduction, count, several
            loss = self._executor.step(Request(use, batch, names, drawn, *how))
            if way is not None:
                found = {n: way.array(x, x.shape) for n, x in loss.outputs.items()}
                loss.outputs = Outputs(_converted(found, convert))
            return loss

    @_in_turn
    def warm(
        self,
        batch: GraphBatch,
        optimizer: Optimizer | None = None,
        *,
        outputs: Collection[str] | None = None,
        graphs: int | None = None,
    ) -> None:
        """Compile what the kinds of vertices of a batch need; run nothing.

        Args:
            optimizer, outputs: of the steps to come; without an optimizer, of evaluations.
            graphs: of a minibatch, by which `engine="auto"` chooses; None for those of `batch`.
        Raises: PullError, when pulled values do not fit; UsageError.
        """
        check_batch("warm", batch)
        check_graphs("warm", graphs)
        if optimizer is None:
            names = self._wanted("warm", outputs)
            return self._model.meet(Use(frozenset(names)), batch, batch[:graphs])
        check_optimizer("warm", optimizer)
        asks = getattr(type(optimizer), "update", None) is Optimizer.update
        rule = optimizer._request(self._model.store).rule_in_step if asks else None
        use = self._use_of_steps(names_of("warm", outputs or ()))
        return self._model.meet(use._replace(rule=rule), batch, batch[:graphs])

    @_in_turn
    def sync(self) -> None:
        """Wait for all steps.

        Raises: NumericError, as `step` does.
        """
        self._executor.wait()

    @property
    def parameters(self) -> Parameters:
        """The parameters by name: see `Parameters`.

        Reading one copies it, and on a GPU waits for the steps that are under way.
        """
        return Parameters(self._model.store, self._executor.lock)

    @property
    def gradients(self) -> AccumulatedGradients:
        """Gradients of parameters by name, summed over `run.backward` since `zero_grad`: live.

        `optimizer.step(net)` updates by them. `step` neither reads nor changes them.
        """
        with self._executor.lock:
            if self._gradients is None:
                self._gradients = AccumulatedGradients(self._model.store)
            return self._gradients

    @_in_turn
    def zero_grad(self) -> None:
        """Set `gradients` to zero, to begin another sum."""
        if self._gradients is not None:
            self._gradients.zero()

    @_in_turn
    def state(self) -> dict[str, dict[str, Any]]:
        """Return what changes in training, copies, for `load_state`.

        Returns: "parameters", arrays by name; "random", what continues the random draws: the
            "seed", and the number of "draws" so far.
        """
        seed, count = self._draws
        random = {"seed": seed, "draws": int(count[0])}
        parameters = {name: value.copy() for name, value in self.parameters.items()}
        return {"parameters": parameters, "random": random}

    @_in_turn
    def load_state(
        self, state: Mapping[str, Mapping[str, Any]], *, strict: bool = True
    ) -> NameDifferences:
        """Continue from a state that `state` returned, or from one of its two parts.

        Args:
            state: "parameters", "random", or both. A random state of an earlier version has "step"
                in place of "draws".
            strict: names must be those of all parameters; else parameters without a value stay as
                they are, and values without a parameter are left out.
        Returns: which names are missing and unexpected; none, if `strict`.
        Raises: CheckpointError, when names differ and `strict`, shapes differ, numbers are not real
            and finite, or the random state is not one; nothing is changed then.
        """
        check_mapping("load_state", state, CheckpointError)
        if not state or not {"parameters", "random"}.issuperset(state):
            got = f"a state of {', '.join(sorted(map(repr, state))) or 'nothing'}"
            expected = "'parameters', 'random', or both"
            action = "pass what net.state() returned, or {'parameters': values}"
            raise CheckpointError.at("load_state", got, expected, action)
        draws = self._draws
        if "random" in state:
            check_mapping("load_state", state["random"], CheckpointError)
            fields = JsonRecord(dict(state["random"]), "random state")
            seed = fields.whole("seed", 0, LARGEST_SEED)
            name = "step" if "step" in state["random"] else "draws"
            draws = seed, np.array([fields.whole(name, 0, LARGEST_COUNT)], np.int64)
            fields.end()
        names = NameDifferences((), ())
        if "parameters" in state:
            names = self.parameters.replace(state["parameters"], strict, self.program.name)
        self._draws = draws
        return names

    @_in_turn
    def explain(self, *, kernels: str = "") -> str:
        """Print F and dF, kinds met, placement, fused groups; kernels as `ir` or `llvm`, too."""
        return explain_function(self._executor, kernels)

    @_in_turn
    def explain_batch(self, batch: GraphBatch) -> str:
        """Print what a batch costs: levels, rows per task, FLOPs, peak bytes, kernel calls."""
        check_batch("explain_batch", batch)
        return explain_batch(self._executor, batch)

    def trace(self, timeline: Timeline | None = None) -> AbstractContextManager[Timeline]:
        """Record processors inside a `with`; UsageError, if the engine is not `persistent`."""
        return recording(self._model, timeline)

    def _call(
        self,
        where: str,
        batch: GraphBatch,
        outputs: Collection[str] | None,
        vertices: npt.ArrayLike | None,
        dropout: bool,
        seed: int | None = None,
    ) -> Request:
        """Return an evaluation that is to be done. Raises: UsageError."""
        if seed is not None:
            check_draw(where, seed)
        if dropout is not False:
            check_dropout(where, dropout)
        if type(batch) is not GraphBatch:
            check_batch(where, batch)
        names = self._pushes if outputs is None else names_of(where, outputs)
        use = self._uses.get((names, dropout))
        if use is None:
            use = Use(frozenset(self._wanted(where, names)), dropout=dropout or None)
            self._uses[names, dropout] = use
        chosen = None if vertices is None else read_vertices(where, vertices, batch)
        return Request(use, batch, names, self._seed(seed, dropout), chosen)

    def _wanted(self, where: str, outputs: Collection[str] | None) -> tuple[str, ...]:
        """Return the pushes that are named, all by default; there is one. Raises: UsageError."""
        names = self._pushes if outputs is None else names_of(where, outputs)
        check_pushes(where, names, self._pushes, self.program.name)
        return names

    def _use_of_steps(self, names: tuple[str, ...]) -> Use:
        """Return what a step is that keeps pushes. Raises: UsageError."""
        use = self._steps.get(names)
        if use is None:
            check_known(names, self._pushes, self.program.name)
            check_loss("step", self.program.name, self._pushes)
            use = self._steps[names] = Use(frozenset(names) | {"loss"}, loss=True)
        return use

    def _seed(self, given: int | None, drops: bool) -> int:
        """Return the seed of an evaluation: where it draws, the next of the network's."""
        if given is not None:
            return given
        return self._take() if self._draws_always or drops else 0

    def _take(self) -> int:
        """Return the seed of the next draw, which this is then."""
        seed, count = self._draws
        found = step_seed(seed, int(count[0]))
        count[0] += 1
        return found

    def _arrays(self, where: str, arrays: str) -> tuple[PassResults, Callable[[Any], Any] | None]:
        """Return how passes run that give arrays of a kind, and what converts these.

        Raises: UsageError.
        """
        if arrays == "numpy":
            return self._passes.on_host, None
        fits = isinstance(arrays, str) and arrays in ARRAYS
        check_option(where, "arrays", arrays, fits, "'numpy', 'device' or 'torch'")
        return self._passes.on_device, None if arrays == "device" else _torch(where).from_dlpack


class Record:
    """A forward pass that is kept for its way back. Made by `net.record(batch)`.

    Any number may be alive, whatever else has run. The memory of one is freed with it, or used
    again once it was gone back through.

    Attributes:
        outputs: the pushes by name, [V, *shape], in the user's vertex order.
    """

    def __init__(
        self,
        net: Network,
        made: ForwardPass,
        outputs: Outputs,
        on_host: bool,
        convert: Callable[[Any], Any] | None,
    ) -> None:
        self.outputs = outputs
        self._net, self._made, self._on_host, self._convert = net, made, on_host, convert

    def __repr__(self) -> str:
        done = ", gone back through" if self.done else ""
        return f"Record({self._net.program.name}, outputs: {', '.join(self.outputs)}{done})"

    @property
    def done(self) -> bool:
        """Tell whether it was gone back through, which can be done once."""
        return self._made.done

    def backward(
        self,
        d_outputs: Mapping[str, Any] | None = None,
        *,
        scale: float = 1.0,
        accumulate: bool = True,
        sparse: bool = False,
    ) -> Gradients:
        """Go back through the pass, once.

        Args:
            d_outputs: gradients of pushes by name, [V, *shape] in the user's vertex order; pushes
                left out have none. By default it starts from the push `loss`, reduced as
                `vrt.compile` was told: what `step` goes down along.
            scale: factor of `d_outputs`: 1 / n where the loss is the mean over n batches.
            accumulate: add to `net.gradients`, where the record's arrays are NumPy's; others leave
                them as they are, so that nothing is waited for.
            sparse: of tables, which are only looked up in, return the rows that were looked up.
        Returns: gradients of this pass alone, arrays as the record's: of parameters, and of real
            pulled values in the shape of their arrays. Where vertices on a GPU share rows of a
            table that it keeps there, the order of their sum is not fixed.
        Raises: UsageError, when it was gone back through, or parameters have been updated or set
            since; PullError, when a shape is wrong.
        """
        with self._net.executor.lock:
            found = self._back(d_outputs, scale, sparse)
            if accumulate and self._on_host:
                self._net.gradients.add()
        if self._convert is None:
            return found
        return Gradients(
            _converted(found.parameters, self._convert),
            _converted(found.pulled, self._convert),
            {n: (self._convert(at), self._convert(x)) for n, (at, x) in found.rows.items()},
        )

    def _back(self, d_outputs: Mapping[str, Any] | None, scale: float, sparse: bool) -> Gradients:
        if d_outputs is not None:
            check_mapping("backward", d_outputs, UsageError)
        check_scale(scale)
        net, made = self._net, self._made
        passes, model, program = net._passes, net.executor.model, net.program
        if made.done:
            got = "a record that was gone back through"
            raise UsageError.at("backward", got, "one, once", "call net.record(batch) again")
        passes.check(made)
        batch, runs, use = made.batch, made.runs, made.use
        if d_outputs is None:
            check_loss("backward", program.name, net.pushes)
            d_loss = loss_scale(net.reduction, batch, runs)
            d_outputs = {"loss": np.full(batch.num_vertices, d_loss)}
        unknown = names_of("backward", sorted(set(d_outputs) - use.seeds, key=str))
        check_known(unknown, net.pushes, program.name)
        shapes = {n: (batch.num_vertices, *runs[0].variant.pushes.shapes[n]) for n in use.seeds}
        read = None if self._on_host else made.results.array
        given = given_gradients(d_outputs, shapes, model.store.dtype, read)
        return passes.go_back(made, given, scale, sparse)


def _converted(arrays: Mapping[str, Any], convert: Callable[[Any], Any] | None) -> dict[str, Any]:
    return {name: x if convert is None else convert(x) for name, x in arrays.items()}


def _torch(where: str) -> Any:
    """Return PyTorch. Raises: UsageError, where it is not installed."""
    try:
        import torch  # takes a second, and not everybody has it
    except ImportError:
        got = "arrays='torch', and PyTorch is not installed"
        raise UsageError.at(where, got, "it to be there", "pip install vertexrt[torch]") from None
    return torch


def _use_of_record(names: tuple[str, ...], pulls: frozenset[str], dropout: bool) -> Use:
    starts = frozenset(names)
    return Use(starts, seeds=starts, pulls=pulls, dropout=None if dropout else False)
