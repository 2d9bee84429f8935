"""What every optimizer shares: options, groups, clipping, the update, and the state of a run.

A step is: clip the gradients one by one, and by their global norm (Pascanu et al., ICML 2013), add
weight decay, apply the rule. Clipping sees the plain gradients of everything that is updated, dense
parameters and touched rows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import numpy as np
import numpy.typing as npt

from vertexrt.api.parameters import AccumulatedGradients, Trained
from vertexrt.checks import is_real
from vertexrt.engine.executor import UNCOUNTED, update_by_gradients
from vertexrt.engine.parameters import FloatArray, ParameterStore
from vertexrt.engine.update import Outcome, Update, UpdateGroup, apply_update, refused_update
from vertexrt.errors import CheckpointError, NumericError, UsageError, nearest
from vertexrt.instead import instead
from vertexrt.ir.updates import ABOVE_ZERO, NOT_NEGATIVE, OPTIMIZERS, OptimizerRow, Option, rule_of
from vertexrt.native.at_once import write_at_once

STEPS = "steps"  # name of the step count in an optimizer's state
LARGEST_COUNT = 2**53  # of steps or draws: as a float64, which kernels take, it is still exact
Array = npt.NDArray[Any]
Rate = float | Callable[[int], float]  # or of the number of updates so far: `vrt.schedules`

# Options of all optimizers, before and after those of their rows.
RATE = Option("lr", NOT_NEGATIVE)
SHARED = (
    Option("weight_decay", NOT_NEGATIVE),
    Option("clip_norm", ABOVE_ZERO, optional=True),
    Option("clip_value", ABOVE_ZERO, optional=True),
)
# Options of groups; None is for True and False.
OF_GROUPS = {"lr": NOT_NEGATIVE, "weight_decay": NOT_NEGATIVE, "frozen": None}


def checked(title: str, option: Option, value: Any) -> Any:
    """Return the value of an option: a number, None where it may be that, numbers for its parts.

    Raises: UsageError with the name of the class.
    """
    name, numbers = option.name, option.range
    if option.parts:
        if not isinstance(value, (tuple, list)) or len(value) != len(option.parts):
            raise UsageError.at(
                title, f"{name}={value!r}", f"{len(option.parts)} numbers", "set all"
            )
        return tuple(
            checked(title, Option(f"{name}[{k}]", numbers), v) for k, v in enumerate(value)
        )
    if value is None and option.optional:
        return None
    if not (is_real(value) and numbers.holds(value)):
        raise UsageError.at(
            title,
            f"{name}={value!r}",
            f"{name} {numbers.text}" + (", or None" if option.optional else ""),
            "set it" if isinstance(value, (int, float)) else "set it to a number",
        )
    return float(value)


def rate_at(title: str, name: str, rate: Rate, steps: int) -> float:
    """Return a rate, a number or a function, after so many updates.

    Raises: UsageError, for what is out of its range.
    """
    if not callable(rate):
        return rate
    return float(checked(title, Option(f"{name}({steps})", NOT_NEGATIVE), rate(steps)))


class GroupOptions(TypedDict, total=False):
    """What a group may have of its own; the rest is the optimizer's.

    Attributes:
        lr: learning rate, a function of the updates so far or a number. Where the optimizer's rate
            changes, a number changes in proportion: it is the rate of the group when that of the
            optimizer is what it is now; if that is a function, its `peak`, or without one its rate
            of the first update.
        weight_decay: as the optimizer's.
        frozen: the parameters rest, and do not count in `clip_norm`.
    """

    lr: Rate
    weight_decay: float
    frozen: bool


Groups = Mapping[str, GroupOptions]  # by pattern of names: `*` is any text, `?` any character


def _no_groups(
    title: str, got: str, expected: str = "options by pattern of names", close: str = ""
) -> UsageError:
    action = 'write groups={"embedding": {"lr": 1e-4}, "*.b": {"weight_decay": 0.0}}'
    return UsageError.at(title, got, expected, action + close)


class Optimizer:
    """Update the parameters of one network.

    Numbers that are not finite never reach a parameter or the state: a step that would write one is
    refused, and changes nothing. A class may have an `update` of its own, which runs on the host: a
    step calls it with finite gradients only. It writes to a copy of the parameters, which takes
    their place when `update` returns, unless what it wrote is not finite, in the dense part or in
    rows that the step touched: the step raises NumericError then.

    Attributes:
        row: of the table of optimizers; None for a class with an `update` of its own.
        weight_decay: at least 0; added to the gradient as weight_decay * value, or decoupled.
        clip_norm: largest global norm of the gradients, or None; clip_value: largest size of one.
    """

    row: ClassVar[OptimizerRow | None] = None

    def __init__(
        self,
        lr: Rate,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        groups: Groups | None = None,
        **options: Any,
    ) -> None:
        if type(self) is Optimizer:
            titles = [f"vrt.{row.title}" for row in OPTIMIZERS]
            raise UsageError.at(
                self._place,
                "the base class",
                f"{', '.join(titles[:-1])} or {titles[-1]}",
                "take one",
            )
        self._count = np.zeros(1, np.int64)
        self._store: ParameterStore | None = None
        self.lr = lr
        for name, value in options.items():
            setattr(self, name, value)
        self.weight_decay = weight_decay
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.groups = groups
        self._rule = rule_of(self.row, self._numbers()) if self.row else None
        self._slots = self._rule.state if self._rule else ()
        self._moments: FloatArray = np.zeros((0, 0))  # [*, trained_size] of the store's layout
        self._reach: tuple[float, ...] = ()  # of the moments: see `Update`
        self._loaded: dict[str, Array] | None = None  # a state no store has taken yet

    if not TYPE_CHECKING:  # type checkers know what there is
        __getattr__ = instead("optimizer")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option, now or between steps, or what a class of a user's has of its own.

        Raises: UsageError, for an option out of its range, one that no update reads, and one that
            says what is kept for each parameter, which is decided when the optimizer is made.
        """
        if name.startswith("_"):
            return super().__setattr__(name, value)
        title, row = type(self).__name__, self.row
        options = {option.name: option for option in self._options}
        if name == "lr" and (isinstance(value, Mapping) or hasattr(value, "parameters")):
            raise UsageError.at(
                title,
                f"lr is a {type(value).__name__}",
                "a rate: an optimizer takes no parameters",
                f"write vrt.{title}(lr=1e-3); net.step(batch, optimizer) updates those of net",
            )
        if name == "lr" and callable(value):
            rate_at(title, name, value, self.steps)
        elif name in options:
            value = checked(title, options[name], value)
            before = vars(self).get(name, value)
            kept = [slot.option for slot in row.state] if row else []
            if name in kept and (not before) != (not value):
                raise UsageError.at(
                    title,
                    f"{name}={value} after {before}",
                    "a moment from the first step or none",
                    "make another optimizer",
                )
        elif "row" in vars(type(self)) and name not in ("groups", "steps"):
            known = (*options, "groups")
            expected, close = f"one of {', '.join(known)}", nearest(name, known)
            raise UsageError.at(title, f"no option {name!r}", expected, f"correct it{close}")
        if row is None and name in ("clip_value", "groups") and value:
            raise UsageError.at(
                self._place,
                f"{name}, for an update of its own",
                "options that its update reads",
                "leave it out",
            )
        return super().__setattr__(name, value)

    @property
    def _options(self) -> tuple[Option, ...]:
        """What users set, but for groups."""
        return (RATE, *(self.row.options if self.row else ()), *SHARED)

    @property
    def _place(self) -> str:
        return f"{type(self).__name__}.update"

    @property
    def moment_names(self) -> tuple[str, ...]:
        """Names of what is kept for each element of a parameter."""
        return tuple(slot.name for slot in self._slots)

    @property
    def steps(self) -> int:
        """Updates done so far."""
        return int(self._count[0])

    @steps.setter
    def steps(self, count: int) -> None:
        self._count[0] = count

    @property
    def lr(self) -> float:
        """Learning rate of the next update, at least 0.

        A number, or a function of the number of updates so far, may be set between steps.
        """
        return rate_at(type(self).__name__, "lr", self._lr, self.steps)

    @lr.setter
    def lr(self, value: Rate) -> None:
        self._lr = value

    @property
    def groups(self) -> Mapping[str, Mapping[str, object]]:
        """Options of parameters by pattern of names; may be set as a whole between steps."""
        return MappingProxyType({name: MappingProxyType({**g}) for name, g in self._groups.items()})

    @groups.setter
    def groups(self, given: Groups | None) -> None:
        title, rate = type(self).__name__, self._lr
        peak: Any = getattr(rate, "peak", None) if callable(rate) else rate
        base = float(peak) if is_real(peak) else rate_at(title, "lr", rate, 0)
        found: dict[str, GroupOptions] = {}
        groups: Any = {} if given is None else given
        if not isinstance(groups, Mapping):
            raise _no_groups(title, f"groups is a {type(groups).__name__}")
        for pattern, own in groups.items():
            where, options = f"groups[{pattern!r:.60}]", GroupOptions()
            if not isinstance(pattern, str) or not isinstance(own, Mapping):
                raise _no_groups(title, f"{where} is {own!r:.60}")
            for name, value in own.items():
                if name not in OF_GROUPS:
                    expected = "one of " + ", ".join(OF_GROUPS)
                    close = nearest(name, OF_GROUPS)
                    raise _no_groups(title, f"an option {name!r} in {where}", expected, close)
                numbers, changes = OF_GROUPS[name], name == "lr" and callable(value)
                expected = f"{name} {numbers.text}" if numbers else "True or False"
                fits = isinstance(value, bool)
                if numbers:
                    fits = changes or (is_real(value) and numbers.holds(value))
                if not fits:
                    raise _no_groups(title, f"{where} has {name}={value!r:.60}", expected)
                if changes:
                    rate_at(title, f"{where} lr", value, 0)
                elif name == "lr" and base == 0.0:
                    raise UsageError.at(
                        title,
                        f"{where} has a rate beside lr=0.0",
                        "lr > 0, which it keeps its ratio to",
                        "give the optimizer a rate, and freeze the others by frozen",
                    )
                kept = float(value) if numbers and not changes else value
                options[name] = kept  # type: ignore[literal-required]
            found[pattern] = options
        parts = [] if self._store is None else self._divided(found, self._store.trained)
        self._groups, self._base, self._parts = found, base, parts

    def _divided(
        self, groups: Groups, names: Sequence[str]
    ) -> list[tuple[list[str], GroupOptions]]:
        """Return parameters that have options in common, and these.

        Raises: UsageError, when a pattern matches no name.
        """
        for pattern in groups:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UsageError.at(
                    type(self).__name__,
                    f"no trained parameter is called {pattern!r}",
                    f"the names are {', '.join(names) or 'none'}",
                    f"correct the pattern in groups.{nearest(pattern, names)}",
                )
        parts: list[tuple[list[str], GroupOptions]] = []
        for name in names if groups else ():
            own = GroupOptions()
            for pattern, options in groups.items():
                if fnmatchcase(name, pattern):
                    own.update(options)
            alike = next((part for part, other in parts if other == own), None)
            if alike is None:
                parts.append(([name], own))
            else:
                alike.append(name)
        return parts

    def __repr__(self) -> str:
        options = {k: v for k, v in self.describe().items() if k != "class"}
        shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"{type(self).__name__}({shown}; {self.steps} steps done)"

    def step(self, net: Trained | None = None) -> None:
        """Update the parameters of a network by `net.gradients`, the sum of its backward passes.

        The sum stays, as PyTorch's does: `net.zero_grad()` begins another. Where there was one pass
        from the same loss, parameters become what `net.step` makes them. On a GPU it waits, and
        the gradients have been on the host: `net.step` is faster.

        Raises: UsageError, when `net` is no network, or no pass has been gone back through since
            `zero_grad`; else as `net.step`. Nothing is changed then.
        """
        gradients = getattr(net, "gradients", None)
        if net is None or not isinstance(gradients, AccumulatedGradients):
            raise UsageError.at(
                f"{type(self).__name__}.step",
                "no network" if net is None else f"a {type(net).__name__}",
                "a network, what vrt.compile returned",
                "write net.step(batch, optimizer), or after run.backward() optimizer.step(net)",
            )
        with net.executor.lock:
            gradients.hand_over()
            built_in = type(self).update is Optimizer.update
            update_by_gradients(net.executor, self, built_in)

    def update(self, store: ParameterStore) -> None:
        """Move the parameters of a store by its gradients.

        `net.step(batch, optimizer)` and `optimizer.step(net)` call it where a class has its own.

        Raises: NumericError, when a gradient, their norm if they are to be clipped, or a number
            that would be written to a parameter or a moment is not finite; CheckpointError, when a
            loaded state does not fit the store; UsageError for what is no store, when the optimizer
            holds moments of another one, or has a rule that nothing computes. Nothing is changed
            then.
        """
        if not isinstance(store, ParameterStore):
            raise UsageError.at(
                self._place,
                f"a {type(store).__name__}",
                "the parameters of a network, which net.step(batch, optimizer) hands over",
                "call net.step(batch, optimizer), or optimizer.step(net) after run.backward",
            )
        asked = self._next_update(store)
        outcome = apply_update(store, asked)
        if not outcome.done:
            raise NumericError(refused_update(store, asked, outcome.norm))
        self._settle(outcome)

    def _next_update(self, store: ParameterStore, draws: Array = UNCOUNTED) -> Update:
        """Return what the next update is to do with a store; the engine may do it in a step.

        Until it is settled, nothing is known of the moments, since a signal may come before that.

        Args:
            draws: of `Request`.
        Raises: as `update`.
        """
        home = store if store is self._store else store.home
        if home is not self._store:
            self._bind(home)
        row, rule, count, moments = self.row, self._rule, self._count, self._moments
        if store is not home:
            count, moments = store.to_write(count), store.to_write(moments)
        steps = int(count[0])
        options = self._numbers(steps)
        reach, lr = self._reach, options["lr"]
        vars(self)["_reach"] = (math.inf,) * len(moments)  # no option
        assert row, "`_bind` refuses it"
        assert rule
        found = []
        for names, own in (((), GroupOptions()), *self._parts):  # the first is the optimizer's
            if own.get("frozen"):
                continue
            rate, decay = own.get("lr", lr), own.get("weight_decay", self.weight_decay)
            if callable(rate):
                rate = rate_at(type(self).__name__, "groups lr", rate, steps)
            elif "lr" in own:
                rate *= lr / self._base
            decays = (0.0, 1.0 - rate * decay) if row.decoupled else (decay, 1.0)
            found.append(UpdateGroup(tuple(names), rate, *decays))
        whole, *groups = found
        if self._parts:  # all may be frozen, so there is one of no parameters
            groups.insert(0, whole._replace(decay=0.0, shrink=1.0))
        return Update(
            rule=rule,
            moments=moments,
            clip_norm=self.clip_norm,
            options=options,
            whole=whole,
            reach=reach,
            counts=(count, store.versions if store is home else UNCOUNTED, draws),
            optimizer=type(self).__name__,
            clip_value=self.clip_value,
            groups=tuple(groups),
        )

    def _settle(self, outcome: Outcome) -> None:
        """Note how an update has ended that was done."""
        vars(self)["_reach"] = outcome.reach or (math.inf,) * len(self._moments)

    def state(self) -> dict[str, Array]:
        """Return what continues a run: "steps" (int64), and each moment as "MOMENT/PARAMETER".

        The moments are live views in their parameter's shape, to read only, so that a state does
        not depend on the store's layout. Before the first update there are none, unless a state was
        loaded.
        """
        found: dict[str, Array] = {STEPS: np.array(self.steps, np.int64)}
        found.update(self._loaded or {})
        if self._store is not None:
            self._store.refresh()
            found.update(self._views(self._store, self._moments))
        for view in found.values():
            view.flags.writeable = False
        return found

    def _views(self, store: ParameterStore, moments: FloatArray) -> dict[str, Array]:
        """Return what a state holds, of moments in a store's layout."""
        return {
            f"{moment}/{name}": view
            for moment, flat in zip(self.moment_names, moments, strict=True)
            for name, view in store.views(flat).items()
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from the state of an optimizer of the same class.

        The arrays are copied. Numbers are checked at once; names and shapes too when the optimizer
        has done an update, else at its first one. Learning rate and other options stay as they are.

        Raises: CheckpointError, when the state is not one of this optimizer and its network;
            nothing is changed then.
        """
        if STEPS not in state:
            raise self._misfit("no count of steps", f"'{STEPS}' and the moments")
        count = np.asarray(state[STEPS])
        if count.shape or count.dtype.kind not in "iu" or not 0 <= count <= LARGEST_COUNT:
            raise self._misfit(
                f"'{STEPS}' of shape {count.shape}, {count.dtype}",
                f"one whole number from 0 to {LARGEST_COUNT}",
            )
        steps = int(count)
        loaded = {name: np.array(array) for name, array in state.items() if name != STEPS}
        moments = {name.partition("/")[0] for name in loaded}
        if loaded and moments != set(self.moment_names):
            got, known = ", ".join(sorted(moments)), ", ".join(self.moment_names)
            raise self._misfit(f"moments {got or 'of no name'}", known or "none")
        for key, array in loaded.items():
            self._check_numbers(key, array, array.dtype)
        if self._store is not None:
            self._store.refresh()
            made = self._made(self._store, loaded, steps)
            self._reach = (math.inf,) * len(made)
            write_at_once([(self._moments, made), (self._count, np.array([steps]))])
            return
        self._loaded = loaded
        self.steps = steps

    def describe(self) -> dict[str, Any]:
        """Return class and options by name, as JSON can hold them, with the rates of now."""
        found: dict[str, Any] = {"class": type(self).__name__}
        for option in self._options:
            value = getattr(self, option.name)
            if value is not None or option.name != "clip_value":
                found[option.name] = list(value) if option.parts else value
        groups = {pattern: own.copy() for pattern, own in self._groups.items()}
        for own in groups.values():
            if "lr" in own:
                own["lr"] = rate_at(found["class"], "groups lr", own["lr"], self.steps)
        return {**found, "groups": groups} if groups else found

    def _numbers(self, steps: int = 0) -> dict[str, float]:
        """Return rate, number of the step and options, by their names in expressions."""
        assert self.row is not None
        rate = self._lr
        if callable(rate):
            rate = rate_at(type(self).__name__, "lr", rate, steps)
        found = {"lr": rate, "t": steps + 1}
        for option in self.row.options:
            value = getattr(self, option.name)
            if option.parts:
                found.update(zip(option.parts, value, strict=True))
            else:
                found[option.name] = value
        return found

    def _bind(self, store: ParameterStore) -> None:
        if self._store is not None and len(self._moments):
            raise UsageError.at(
                self._place,
                "the parameters of a second network",
                "those of the network that its moments belong to",
                "make one optimizer for each network",
            )
        if self.row is None:
            raise UsageError.at(
                self._place,
                f"the class {type(self).__name__}, which has no row",
                "a class with an `update` of its own, or of an optimizer of vrt",
                "write def update(self, store)",
            )
        least = float(np.finfo(store.dtype).tiny)
        for option in self.row.options:
            value = getattr(self, option.name)
            if option.range is ABOVE_ZERO and value < least:
                raise UsageError.at(
                    self._place,
                    f"{option.name}={value}",
                    f"at least {least:.3g} in {store.dtype}",
                    "set it",
                )
        parts = self._divided(self._groups, store.trained)
        moments = self._made(store, self._loaded or {}, self.steps)
        self._reach = (0.0 if self._loaded is None else math.inf,) * len(moments)
        self._moments, self._parts = moments, parts
        self._store = store  # from now on it has these moments
        self._loaded = None

    def _made(self, store: ParameterStore, loaded: Mapping[str, Array], steps: int) -> FloatArray:
        """Return moments in a store's layout, as loaded, else as at the start; all is checked."""
        moments = np.zeros((len(self.moment_names), store.trained_size), store.dtype)
        views = self._views(store, moments)
        if loaded or steps:  # of no step the moments are those of a start
            if loaded.keys() != views.keys():
                odd = min(loaded.keys() ^ views.keys())
                raise self._misfit(
                    f"'{odd}'" if odd in loaded else f"no '{odd}'",
                    "one array for each moment and parameter",
                )
            for key, array in loaded.items():
                if array.shape != views[key].shape or array.dtype.kind != "f":
                    raise self._misfit(
                        f"'{key}' with shape {array.shape}, {array.dtype}",
                        f"shape {views[key].shape}, float",
                    )
                self._check_numbers(key, array, store.dtype)
        for key, array in loaded.items():
            views[key][...] = array
        return moments

    def _check_numbers(self, key: str, array: Array, dtype: np.dtype[Any]) -> None:
        """Refuse floats that are not finite in a dtype, and negative sums of squares."""
        fits = np.zeros(array.shape, np.bool_)
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                fits = np.isfinite(array.astype(dtype))
            if key.partition("/")[0] in [slot.name for slot in self._slots if slot.squares]:
                fits &= array >= 0.0
        if not fits.all():
            at = np.argwhere(~fits)[0].tolist()
            raise self._misfit(
                f"{array[tuple(at)]} in '{key}' at {at}",
                "finite floats, and no negative sums of squares",
            )

    def _misfit(self, got: str, expected: str) -> CheckpointError:
        return CheckpointError.at(
            f"{type(self).__name__}.load_state",
            f"the state holds {got}",
            f"expected: {expected}",
            "load the state of the same optimizer and network",
        )
