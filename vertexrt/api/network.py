"""What `vrt.compile` returns, and what that makes: networks, records of passes, plans.

A record is a pass whose way back is still to come. A plan is a batch that is prepared once and
evaluated with other pulled values: its runs are those of `net(batch)`, pinned: they have their
memory to themselves, and each request reads other pulls into them. Kinds depend on which vertices
have a whole number, so these stay, and what depends on the numbers is left out: equal vertices are
not merged.
"""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.api.arguments import (
    check_batch,
    check_draw,
    check_known,
    check_loss,
    check_mapping,
    check_optimizer,
    check_option,
    check_pulled,
    check_pushes,
    names_of,
    read_vertices,
    real_array,
    shared,
)
from vertexrt.api.init import LARGEST_SEED
from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT, Optimizer
from vertexrt.api.parameters import AccumulatedGradients, NameDifferences, Parameters
from vertexrt.checks import is_real, is_whole
from vertexrt.engine.batched import Run
from vertexrt.engine.executor import Arenas, Executor, Request, loss_scale, step_seed
from vertexrt.engine.explain import explain_batch, explain_function
from vertexrt.engine.inputs import read_inputs, vertex_name
from vertexrt.engine.kinds import find_kinds
from vertexrt.engine.layouts import is_within, read_numbers
from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.engine.results import Gradients, PassResults, WayBack
from vertexrt.engine.trace import Timeline, recording
from vertexrt.engine.variant import Use, draws_numbers
from vertexrt.errors import (
    CheckpointError,
    PullError,
    UsageError,
    message,
    nearest,
)
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.batch import source_of, take_unread, with_values
from vertexrt.graph.device_rows import DeviceRows, on_device
from vertexrt.graph.digest import BatchForm
from vertexrt.graph.owned import INT32
from vertexrt.graph.pulls import check_pulls, held_table, parts_of_pull, rows_unchecked
from vertexrt.instead import instead
from vertexrt.ir.program import Program, read_by
from vertexrt.parallel.group import ProcessGroup

Array = np.ndarray[Any, Any]
Converter = Callable[[Any], Any]  # of an array of the device
ARRAYS = ("numpy", "device", "torch")


@dataclass(eq=False, slots=True, weakref_slot=True)
class ForwardPass:
    """A forward pass: what its backward pass takes.

    Attributes:
        seed: of its random draws.
        reals: of `Part`.
        version: of the parameters.
        arenas: what it computed, where that is set aside.
        done: it was gone back through, which overwrites what it computed.
    """

    batch: GraphBatch
    runs: list[Run]
    use: Use
    seed: int
    reals: tuple[Any, ...] | None = None
    version: int = 0
    arenas: Arenas | None = None
    done: bool = False


class ForwardPasses:
    """The forward passes of a network that can be gone back through, and whose memory is where.

    A run computes in its executor's arenas. When the next run comes, the arenas of a pass that
    somebody still holds are set aside, and new ones are taken; they are freed with the pass. So a
    pass that is gone back through at once costs nothing, and any number of them may be alive.
    Whoever calls has the network's lock.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        # What stands for the gradient of a push on the way forward, which reads none.
        self.zero = np.zeros(1, executor.model.store.dtype)
        self.here: weakref.ref[ForwardPass] | None = None  # whose values the arenas have

    def note(self, made: ForwardPass) -> ForwardPass:
        """Note a pass that the executor's arenas have now; return it."""
        made.version = self._executor.model.store.versions.item()
        self.here = weakref.ref(made)
        return made

    def make_room(self) -> None:
        """Let another run have the arenas: those of a pass that may still be wanted are kept."""
        made = None if self.here is None else self.here()
        if made is not None:
            made.arenas = self._executor.arenas  # before they are exchanged: a signal may come
            self._executor.use_arenas()
        self.here = None

    def check(self, made: ForwardPass) -> None:
        """Refuse a pass of other parameters. Raises: UsageError."""
        if made.version != self._executor.model.store.versions.item():
            raise UsageError.at(
                "backward",
                "the parameters have changed since that forward pass",
                "gradients of what was computed",
                "call backward before optimizer.step, net.step and net.parameters[name] = array",
            )

    def restore(self, made: ForwardPass) -> None:
        """Let the executor have the arenas of a pass, which its backward pass then overwrites."""
        made.done = True
        if self.here is None or self.here() is not made:
            self.make_room()
            self._executor.use_arenas(made.arenas)
        self.here = made.arenas = None


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
        self._may_draw = draws_numbers(program)  # in a step
        self._reals = program.real_pulls
        # By outputs, and whether dropout drops; of steps by what is kept, and None.
        self._uses: dict[tuple[tuple[str, ...], bool | None], Use] = {}

    def __repr__(self) -> str:
        engine, store = self._model.engine, self._model.store
        count = sum(math.prod(shape) for shape in store.shapes.values())
        how = f"engine={engine!r}, threads={self._model.threads}, {store.dtype}"
        what = f"{self.program.name} on {self.device}, {how}"
        return f"Network({what}, {count:,} parameters, pushes {', '.join(self.pushes)})"

    if not TYPE_CHECKING:  # type checkers know what there is
        __getattr__ = instead("net")

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
            call, convert = self._call("call", batch, outputs, vertices, dropout, arrays, seed)
            return _converted(self._evaluate(call), convert)

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
        with self._executor.lock:
            call, convert = self._call("record", batch, outputs, None, dropout, arrays, seed)
            wanted = self._reals if pulls is None else check_pulled(pulls, self._reals)
            missing = wanted.difference(batch.pulls, batch.edge_pulls)
            if missing and pulls is not None:
                got = f"the batch has no pull {', '.join(sorted(missing))}"
                raise PullError.at("record", got, "those whose gradients are asked for", "add them")
            starts = frozenset(call.outputs)
            drops = None if dropout else False
            use = Use(starts, d_pushes=starts, pulls=wanted - missing, dropout=drops)
            call = call._replace(use=use, seed=self._seed(seed, True))
            self._passes.make_room()
            runs = self._model.prepare(use, batch)
            found = self._push(call, runs)
            made = self._passes.note(ForwardPass(batch, runs, use, call.seed))
            return Record(self, made, _converted(found, convert), call.stays, convert)

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
        with self._executor.lock:
            call, convert = self._call("plan", batch, outputs, vertices, dropout, arrays)
            tuner = self._model.tuner
            while tuner is not None and tuner.times(call.use.backward, batch):
                self._evaluate(call._replace(stays=False)).settle()
            return Plan(self, call, convert)

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
            built_in = getattr(type(optimizer), "update", None) is Optimizer.update  # not its own
            if not built_in:
                check_optimizer("step", optimizer)
            if type(batch) is not GraphBatch:
                check_batch("step", batch)
            names = () if type(outputs) is tuple and not outputs else names_of("step", outputs)
            use = self._uses.get((names, None)) or self._use_of_steps(names)
            chosen = None if vertices is None else read_vertices("step", vertices, batch)
            if self._passes.here is not None:
                self._passes.make_room()
            seed, count = self._draws
            may_draw = self._may_draw or group is not None  # whose processes compare seeds
            drawn = step_seed(seed, int(count[0])) if may_draw else 0
            stays = type(arrays) is not str or arrays != "numpy"
            convert = _converter("step", arrays) if stays else None
            call = Request(
                use,
                batch,
                names,
                drawn,
                vertices=chosen,
                stays=stays,
                optimizer=optimizer,
                built_in=built_in,
                reduction=self._reduction,
                draws=count,
                group=None if group is None else shared(group),
            )
            loss = self._executor.step(call)
            if stays:
                like = self._results(stays).array
                found = {name: like(x, x.shape) for name, x in loss.outputs.items()}
                loss.outputs = _converted(found, convert)
            return loss

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
        if graphs is not None and not (is_whole(graphs) and graphs > 0):
            raise UsageError.at(
                "warm", f"graphs is {graphs!r}", "a whole number above 0", "leave graphs out"
            )
        with self._executor.lock:
            if optimizer is None:
                call, _ = self._call("warm", batch, outputs, None, False, "numpy")
                return self._model.meet(call.use, batch, batch[:graphs])
            check_batch("warm", batch)
            check_optimizer("warm", optimizer)
            built_in = getattr(type(optimizer), "update", None) is Optimizer.update
            rule = optimizer._next_update(self._model.store).rule_in_step if built_in else None
            use = self._use_of_steps(names_of("warm", outputs or ()))
            return self._model.meet(use._replace(rule=rule), batch, batch[:graphs])

    def sync(self) -> None:
        """Wait for all steps.

        Raises: NumericError, as `step` does.
        """
        with self._executor.lock:
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

    def zero_grad(self) -> None:
        """Set `gradients` to zero, to begin another sum."""
        with self._executor.lock:
            if self._gradients is not None:
                self._gradients.zero()

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what changes in training, copies, for `load_state`.

        Returns: "parameters", arrays by name; "random", what continues the random draws: the
            "seed", and the number of "draws" so far.
        """
        with self._executor.lock:
            seed, count = self._draws
            random = {"seed": seed, "draws": int(count[0])}
            parameters = {name: value.copy() for name, value in self.parameters.items()}
            return {"parameters": parameters, "random": random}

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
        with self._executor.lock:
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
                values, own = state["parameters"], self.parameters
                names = NameDifferences.between(values, own, strict, self.program.name)
                own.update({n: x for n, x in values.items() if n not in names.unexpected})
            self._draws = draws
            return names

    def explain(self, *, kernels: str = "") -> str:
        """Print F and dF, kinds met, placement, fused groups; kernels as `ir` or `llvm`, too."""
        with self._executor.lock:
            return explain_function(self._executor, kernels)

    def explain_batch(self, batch: GraphBatch) -> str:
        """Print what a batch costs: levels, rows per task, FLOPs, peak bytes, kernel calls."""
        check_batch("explain_batch", batch)
        with self._executor.lock:
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
        arrays: str,
        seed: int | None = None,
    ) -> tuple[Request, Converter | None]:
        """Return an evaluation that is to be done, and what converts its arrays.

        Raises: UsageError.
        """
        if seed is not None:
            check_draw(where, seed)
        if dropout is not False:
            check_option(where, "dropout", dropout, isinstance(dropout, bool), "True or False")
        if type(batch) is not GraphBatch:
            check_batch(where, batch)
        stays = type(arrays) is not str or arrays != "numpy"
        convert = _converter(where, arrays) if stays else None
        names = self._pushes if outputs is None else names_of(where, outputs)
        use = self._uses.get((names, dropout))
        if use is None:
            check_pushes(where, names, self._pushes, self.program.name)
            use = self._uses[names, dropout] = Use(frozenset(names), dropout=dropout or None)
        chosen = None if vertices is None else read_vertices(where, vertices, batch)
        drawn = self._seed(seed, dropout) if where == "call" else 0
        return Request(use, batch, names, drawn, chosen, stays), convert

    def _use_of_steps(self, names: tuple[str, ...]) -> Use:
        """Return what a step is that keeps pushes. Raises: UsageError."""
        check_known(names, self._pushes, self.program.name)
        check_loss("step", self.program.name, self._pushes)
        program = self.program
        read = read_by(program, self._pushes) - program.frozen
        untrained = sorted(read - read_by(program, {"loss"}))
        if untrained and all(how is not None for _, how in self._uses):  # the first step
            got = f"'loss' does not depend on {', '.join(untrained)}"
            action = "add to the loss what is to train it, or give it trainable=False"
            expected = "parameters that 'loss' depends on: a step trains no others"
            warnings.warn(message("step", got, expected, action), stacklevel=3)
        use = self._uses[names, None] = Use(frozenset(names) | {"loss"}, loss=True)
        return use

    def _evaluate(self, call: Request) -> Outputs:
        """Evaluate F on a batch, without a way back."""
        executor, model = self._executor, self._model
        if self._passes.here is not None:
            self._passes.make_room()
        start = time.perf_counter()
        runs = model.prepare(call.use, call.batch, executor.on_host or call.stays)
        prepared = time.perf_counter()
        found = self._push(call, runs)
        if model.tuner is not None and (executor.on_host or not call.stays):
            model.time_runs(call.use, call.batch, runs, start, prepared, found.settle)
        return found

    def _push(self, call: Request, runs: Sequence[Run]) -> Outputs:
        zeros, parts = (self._passes.zero,) * len(call.use.d_pushes), []
        for run in runs:
            parts.append(run.forward(call.seed, zeros))
        return self._executor.push(runs, parts, call.outputs, call.vertices, call.stays)

    def _seed(self, given: int | None, drops: bool) -> int:
        """Return the seed of an evaluation: where it draws, the next of the network's."""
        if given is not None or not (drops or self._draws_always):
            return given or 0
        seed, count = self._draws
        found = step_seed(seed, int(count[0]))
        count[0] += 1
        return found

    def _results(self, stays: bool) -> PassResults:
        """Return what makes arrays: on the host those of NumPy, whatever was asked for."""
        return PassResults(self._executor, stays and not self._executor.on_host)


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
        stays: bool,
        convert: Converter | None,
    ) -> None:
        self.outputs = outputs
        self._net, self._made, self._stays, self._convert = net, made, stays, convert

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
        net, convert = self._net, self._convert
        with net.executor.lock:
            if d_outputs is not None:
                check_mapping("backward", d_outputs, UsageError)
            if not is_real(scale):
                raise UsageError.at(
                    "backward",
                    f"scale={scale!r:.60}",
                    "expected a finite number",
                    "pass 1 / n for the mean over n batches",
                )
            made = self._made
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
            if unknown := sorted(set(d_outputs) - use.d_pushes, key=str):
                check_known(names_of("backward", unknown), net.pushes, program.name)
                raise UsageError.at(
                    "backward",
                    f"a gradient of {unknown}",
                    f"the record was asked for {sorted(use.d_pushes)}",
                    "name it in net.record(batch, outputs=...)",
                )
            results, given = net._results(self._stays), {}
            for name in sorted(use.d_pushes):
                shape = batch.num_vertices, *runs[0].variant.pushes.shapes[name]
                each = d_outputs.get(name)
                array: Any = None
                wrong = ""
                if each is None:
                    array = results.array(None, shape)
                elif not self._stays:
                    array, wrong = real_array(each, shape, model.store.dtype)
                else:
                    try:
                        # A tensor of PyTorch that has a graph is lent to others without it.
                        lent = each.detach() if hasattr(each, "detach") else each
                        array = results.array(lent, shape)
                    except (TypeError, ValueError, OverflowError) as error:
                        wrong = f"is a {type(each).__name__}: {error}"
                if array is not None and array.shape != shape:
                    array, wrong = None, f"has shape {list(array.shape)}"
                if array is None:
                    raise PullError.at(
                        "backward",
                        f"the gradient of {name!r} {wrong}",
                        f"real numbers of shape {list(shape)}, one row a vertex",
                        "pass the gradient of what net.record returned",
                    )
                given[name] = array
            passes.restore(made)
            pulls = sorted(use.pulls)
            way = WayBack(batch, runs, made.seed, given, scale, pulls, sparse)
            found = results.backward(way)
            if accumulate and not self._stays:
                net.gradients.add()
        if convert is None:
            return found
        return Gradients(
            dict(_converted(found.parameters, convert)),
            dict(_converted(found.pulled, convert)),
            {name: (convert(at), convert(x)) for name, (at, x) in found.rows.items()},
        )


class Plan:
    """The structure of a batch, ready to run with other pulls. Made by `Network.plan`.

    Graphs are read, scheduled and laid out once, and the memory of the run is the plan's own; on a
    GPU its indices and scripts are there already, and a request is one launch. So a plan stays
    right whatever else the network runs, and it computes with the parameters as they are at each
    request. Identical vertices are not merged, since which are identical depends on the pulls. Its
    memory is freed with it.

    Attributes:
        pulls: what a request may give, shapes by name.
        outputs: names of the pushes that it returns.
    """

    def __init__(self, net: Network, call: Request, convert: Converter | None) -> None:
        model, batch = net.executor.model, with_tables(call.batch, {})
        self._runs = runs = model.prepare(call.use, batch, merge=False)
        self._launch = net.executor.plan(runs, call)
        self._net, self._batch, self._convert = net, batch, convert
        self._drops, self.outputs = bool(call.use.dropout), tuple(call.outputs)
        self._dtype, self._reader = model.store.dtype, runs[0].variant.reader
        of_vertices, of_edges = batch.pulls, batch.edge_pulls
        both = (*of_vertices.items(), *of_edges.items())
        self._tables = {name: parts_of_pull(value)[0] for name, value in both}  # as planned
        self._floats = runs[0].inputs.floats
        self._integers = len(runs[0].inputs.ints)
        self._read: dict[str, list[int]] = {}  # places in `Reader.pulls` of what may be given
        for k, pull in enumerate(self._reader.pulls):
            given = of_edges if pull.of_edges else of_vertices
            if self._reader.is_used[k] and pull.source in given:
                self._read.setdefault(pull.source, []).append(k)
                if k < self._integers and not self._tables[pull.source].size:
                    self._tables[pull.source] = np.zeros(0, INT32)  # arrays of none have no dtype
        # Of whole numbers, which are copied, and one of none.
        self._rooms: dict[str, Array] = {
            name: np.append(table, INT32.type(-1))
            for name, table in self._tables.items()
            if table.dtype.kind == "i"
        }
        # Which row each column of the index of a run has is found by reading their numbers.
        rows = {name: np.arange(len(room) - 1, dtype=INT32) for name, room in self._rooms.items()}
        reader = replace(self._reader, bounds=np.full_like(self._reader.bounds, -1))
        numbered = with_tables(batch, rows)
        self._sources = []  # of each run the row that each column of its index has
        for run in runs:
            own = numbered
            if len(runs) > 1:
                own = take_unread(numbered, source_of(run.share.batch)[1])
            read = read_inputs(reader, own, self._dtype, False, run.inputs.structure)
            self._sources.append(read.index)
        self._given: tuple[str, ...] = ()  # by the last request
        self.pulls: dict[str, tuple[int, ...]] = {
            name: tuple(self._tables[name].shape) for name in self._read
        }

    def __repr__(self) -> str:
        pulls = ", ".join(f"{name} {list(shape)}" for name, shape in self.pulls.items()) or "none"
        where = f"{self._net.program.name} on {self._net.device}"
        return f"Plan({where}; pulls: {pulls}; outputs: {', '.join(self.outputs)})"

    def __call__(
        self, pulls: Mapping[str, Any] | None = None, *, seed: int | None = None
    ) -> Outputs:
        """Evaluate F with other pulled values.

        Args:
            pulls: by name, of vertices or edges, in the shapes of `pulls`; of `Rows`, its
                table. Those left out are as the batch had them. Whole numbers are -1 at the same
                vertices. Real ones may lie on a GPU, for a network that does.
            seed: of what is drawn, from 0 to 2**32 - 1; by default the next of the network's.
        Returns: name -> [V, *shape], or [n, *shape] of the vertices chosen: new arrays, of the kind
            that the plan was made for. Those of NumPy are waited for.
        Raises: PullError, when a pull is unknown or does not fit; the plan is as it was then.
        """
        if seed is not None:
            check_draw("plan", seed)
        given = {} if pulls is None else pulls
        if type(given) is not dict:
            check_mapping("plan", given, PullError)
        net = self._net
        with net.executor.lock:
            new = self._take(given) if given or self._given else ()
            found = self._launch(new, net._seed(seed, self._drops))
            return _converted(found, self._convert)

    def _take(self, pulls: Mapping[str, Any]) -> Sequence[int]:
        """Let runs read what is given; return the places of all that is not as it was."""
        tables = {}
        for name, given in pulls.items():
            if name in self._read:
                tables[name] = self._fitting(name, given)
            elif name not in self._tables:
                expected = f"the batch was planned with {', '.join(self._tables) or 'none'}"
                near = nearest(name, self._tables)
                action = f"name one of these, or plan a batch that has it.{near}"
                raise PullError.at("plan", f"a pull {name!r:.60}", expected, action)
        new: list[int] = []
        floats: list[Any] = list(self._floats)
        numbers = []  # places in `Reader.pulls`, and what their rows are
        # What is given now, or was last; a signal may come before all runs have what is given.
        self._given = tuple({**tables, **dict.fromkeys(self._given)})
        for name in self._given:
            places = self._read[name]
            table: Any = tables.get(name)
            new += places
            if name in self._rooms:
                room = self._rooms[name]  # what is checked is a copy
                room[:-1] = self._tables[name] if table is None else table
                numbers += [(k, room) for k in places]
            elif table is not None:
                if type(table) is not DeviceRows:
                    table = np.ascontiguousarray(table, self._dtype).reshape(-1)
                for k in places:
                    floats[k - self._integers] = table
        reader, indices = self._reader, []
        for run, sources in zip(self._runs, self._sources, strict=True) if numbers else ():
            now, fits, count = run.inputs.index, True, run.share.batch.num_vertices
            index = now.copy()
            for k, room in numbers:
                fits &= read_numbers(index[k], room, sources[k], count)
            if not (fits and is_within(index, reader.used, reader.bounds)):
                self._refuse_numbers(tables)
            indices.append(index)
        for run, index in zip(self._runs, indices, strict=False):
            run.inputs.index[:] = index
        for run in self._runs:
            run.inputs.floats = tuple(floats)
        self._given = tuple(tables)
        return new

    def _refuse_numbers(self, tables: Mapping[str, Any]) -> None:
        """Say which whole number does not fit, if one does not; it may be within bounds of some."""
        reader, batch = self._reader, self._batch
        for name in tables.keys() & self._rooms:
            self._checked(name, self._rooms[name][:-1])
        given = self._dtype, False
        then = read_inputs(reader, batch, *given)
        now = read_inputs(reader, with_tables(batch, tables), *given)
        count = batch.num_vertices
        for k, vertex in np.argwhere((now.ints[:, :count] < 0) != (then.ints[:, :count] < 0)):
            number, expected = now.index[k, vertex], "absent"
            if number < 0:
                number, expected = "absent", "present"
            raise PullError.at(
                "plan",
                f"{reader.pulls[k].source!r} of {vertex_name(batch, vertex)} is {number}",
                f"{expected}, as it was planned: which vertices have a number decides what runs",
                "plan a batch in which the same vertices have one",
            )
        find_kinds(self._runs[0].variant, batch, now)

    def _checked(self, name: str, given: Any) -> Any:
        """Return an array of the host for a pull. Raises: PullError."""
        of_edges = self._reader.pulls[self._read[name][0]].of_edges
        count, each = len(self._tables[name]), "edge" if of_edges else "vertex"
        return check_pulls({name: given}, count, "plan", each)[name]

    def _fitting(self, name: str, given: Any) -> Any:
        """Return the table that is given for a pull, as it was planned. Raises: PullError."""
        planned: Any = self._tables[name]
        lent, dtype = planned.dtype.kind == "f" and on_device(given), planned.dtype
        if lent:
            dtype = self._dtype
            table = DeviceRows.like(given, planned.shape, dtype) or DeviceRows.of(given)
        elif type(given) is np.ndarray and (given.shape, given.dtype) == (planned.shape, dtype):
            # What compiled code reads as it is.
            flags = given.flags
            table = given if flags.c_contiguous and flags.aligned else self._checked(name, given)
        else:
            table = self._checked(name, given)
        indexed = isinstance(table, Rows)
        has = held_table(table) if indexed else table
        if not indexed and has.shape == planned.shape == (0,):
            return planned  # whose dtype nobody has said
        same = has.dtype == dtype or (not lent and has.dtype.kind == dtype.kind)
        if indexed or not same or has.shape != planned.shape:
            raise PullError.at(
                "plan",
                f"pull {name!r} is {'Rows of ' if indexed else ''}{has.dtype} {list(has.shape)}",
                f"an array {dtype} {list(planned.shape)}, as it was planned",
                "give that, or plan a batch that has the other",
            )
        return has


def with_tables(batch: GraphBatch, tables: Mapping[str, Any]) -> GraphBatch:
    """Return a batch whose pulls all are `Rows` with an index, some of them of other tables.

    So shares of it have whole tables.
    """
    found = []
    for pulls in (batch.pulls, batch.edge_pulls):
        rows = {name: parts_of_pull(value) for name, value in pulls.items()}
        found.append({n: rows_unchecked(tables.get(n, own), at) for n, (own, at) in rows.items()})
    return with_values(batch, found[0], found[1], BatchForm())


def _converted(arrays: Mapping[str, Any], convert: Converter | None) -> Outputs:
    if convert is None:
        return arrays if isinstance(arrays, Outputs) else Outputs(arrays)
    return Outputs({name: convert(x) for name, x in arrays.items()})


def _converter(where: str, arrays: str) -> Converter | None:
    """Return what makes arrays of a kind of the device's. Raises: UsageError."""
    fits = isinstance(arrays, str) and arrays in ARRAYS
    check_option(where, "arrays", arrays, fits, "'numpy', 'device' or 'torch'")
    if arrays != "torch":
        return None
    try:
        from torch.utils.dlpack import from_dlpack  # takes a second, and not everybody has it
    except ImportError:
        got = "arrays='torch', and PyTorch is not installed"
        action = "pip install -e '.[torch]' in the checkout"
        raise UsageError.at(where, got, "it to be there", action) from None
    convert: Converter = from_dlpack
    return convert
