"""What every optimizer shares: options, clipping, the update, and the state that continues a run.

A step is: clip the gradients by their global norm (Pascanu et al., ICML 2013), add weight decay,
apply the rule. Clipping sees the plain gradients of everything, dense parameters and touched rows.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from vertexrt.engine.parameters import FloatArray, ParameterStore
from vertexrt.engine.update import Outcome, Rule, Update, apply_update
from vertexrt.errors import CheckpointError, NumericError, UsageError, message

STEPS = "steps"  # name of the step count in an optimizer's state
NO_MOMENTS: FloatArray = np.zeros((0, 0))


class Optimizer:
    """Update the parameters of one network.

    Numbers that are not finite never reach a parameter or the state: a step that would write one is
    refused, and changes nothing. A class may have an `update` of its own, which runs on the host: a
    step calls it with finite gradients only. What it writes stays; if that is not finite, in the
    dense part or in rows that the step touched, the step raises NumericError at once.

    Attributes:
        weight_decay: at least 0; added to the gradient as weight_decay * value (AdamW: see there).
        clip_norm: largest global norm of the gradients, or None.
        steps: updates done so far.
    """

    rule: Rule
    moment_names: tuple[str, ...]
    squares: tuple[str, ...] = ()  # those of the moments that are never negative

    def __init__(self, lr: float, weight_decay: float, clip_norm: float | None) -> None:
        self.lr = lr
        self.weight_decay = self._checked("weight_decay", weight_decay, weight_decay >= 0.0, ">= 0")
        if clip_norm is not None:
            clip_norm = self._checked("clip_norm", clip_norm, clip_norm > 0.0, "> 0, or None")
        self.clip_norm = clip_norm
        self.steps = 0
        self._store: ParameterStore | None = None
        self._moments: FloatArray = NO_MOMENTS  # [*, total] of the store's layout
        self._reach = 0.0  # of the moments: see `Update`
        self._loaded: dict[str, npt.NDArray[Any]] = {}  # a state that no store has taken yet

    @property
    def lr(self) -> float:
        """Learning rate, at least 0; may be set between steps."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = self._checked("lr", value, value >= 0.0, ">= 0")

    def update(self, store: ParameterStore) -> None:
        """Move the parameters of a store by its gradients.

        Raises: NumericError, when a gradient, their norm if they are to be clipped, or a number
            that would be written to a parameter or a moment is not finite; CheckpointError, when a
            loaded state does not fit the store; UsageError, when the optimizer holds moments of
            another store, or has a rule that nothing computes. Nothing is changed then.
        """
        request = self.request(store)
        outcome = apply_update(store, request)
        if not outcome.done:
            from vertexrt.engine.refused import refused_update

            raise NumericError(refused_update(store, request, outcome.norm))
        self.settle(outcome)

    def request(self, store: ParameterStore) -> Update:
        """Return what the next update is to do with a store; the engine may do it in a step.

        Raises: as `update`.
        """
        if store is not self._store:
            self._bind(store)
        return Update(
            self.rule,
            self._moments,
            self.clip_norm,
            self._scalars(),
            self._reach,
            type(self).__name__,
            self.moment_names,
        )

    def settle(self, outcome: Outcome) -> None:
        """Count an update that has been done."""
        self.steps += 1
        self._reach = outcome.reach

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What continues a run: "steps" (int64), and each moment as "MOMENT/PARAMETER".

        The moments are live views in their parameter's shape, to read only, so that a state does
        not depend on the store's layout. Before the first update there are none, unless a state was
        loaded.
        """
        found: dict[str, npt.NDArray[Any]] = {STEPS: np.array(self.steps, np.int64)}
        found.update(self._loaded)
        if self._store is not None:
            self._store.refresh()
            for moment, flat in zip(self.moment_names, self._moments, strict=True):
                for name, view in self._store.views(flat).items():
                    view.flags.writeable = False
                    found[f"{moment}/{name}"] = view
        return found

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue from the state of an optimizer of the same class.

        The arrays are copied. Names and shapes are checked at once when the optimizer has done an
        update, else at its first one. Learning rate and other options stay as they are.

        Raises: CheckpointError, when the state is not one of this optimizer and its network;
            nothing is changed then.
        """
        if STEPS not in state or int(state[STEPS]) < 0:
            raise self._misfit("no count of steps", f"'{STEPS}' beside the moments")
        steps = int(state[STEPS])
        loaded = {name: np.array(array) for name, array in state.items() if name != STEPS}
        moments = {name.partition("/")[0] for name in loaded}
        if moments != set(self.moment_names) and (loaded or steps):
            raise self._misfit(
                "moments " + (", ".join(sorted(moments)) or "of no name"),
                ", ".join(self.moment_names) or "none",
            )
        if self._store is not None:
            self._store.refresh()
            self._fill(self._store, self._moments, loaded)
        else:
            self._loaded = loaded
        self.steps = steps

    def describe(self) -> dict[str, Any]:
        """Return the class and the options by name, as JSON can hold them."""
        return {
            "class": type(self).__name__,
            "lr": self.lr,
            **self._options(),
            "weight_decay": self.weight_decay,
            "clip_norm": self.clip_norm,
        }

    def _scalars(self) -> tuple[float, ...]:
        """Return what the rule's kernel takes after `scale`."""
        raise NotImplementedError

    def _options(self) -> dict[str, Any]:
        return {}

    def _bind(self, store: ParameterStore) -> None:
        if len(self._moments):
            raise UsageError(
                self._text(
                    "the parameters of a second network",
                    "those of the network that its moments belong to",
                    "make one optimizer for each network",
                )
            )
        if self.rule not in get_args(Rule):
            raise UsageError(
                self._text(
                    f"the rule {self.rule!r}",
                    "one of " + ", ".join(get_args(Rule)),
                    "give the class an `update` of its own",
                )
            )
        eps, least = self._options().get("eps", 1.0), float(np.finfo(store.dtype).tiny)
        if eps < least:
            raise UsageError(
                self._text(f"eps={eps}", f"at least {least:.3g} in {store.dtype}", "set it")
            )
        moments = np.zeros((len(self.moment_names), store.values.size), store.dtype)
        if self._loaded:
            self._fill(store, moments, self._loaded)
        self._store, self._moments, self._loaded = store, moments, {}

    def _fill(
        self,
        store: ParameterStore,
        moments: FloatArray,
        loaded: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Copy a loaded state into arrays of the store's layout; check everything first."""
        views = {
            f"{moment}/{name}": view
            for moment, flat in zip(self.moment_names, moments, strict=True)
            for name, view in store.views(flat).items()
        }
        if loaded and loaded.keys() != views.keys():
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
            with np.errstate(over="ignore"):
                fits = np.isfinite(array.astype(store.dtype))
            if key.partition("/")[0] in self.squares:
                fits &= array >= 0.0
            if not fits.all():
                at = np.argwhere(~fits)[0].tolist()
                raise self._misfit(
                    f"{array[tuple(at)]} in '{key}' at {at}",
                    "numbers that an optimizer can have made",
                )
        self._reach = math.inf
        for key, view in views.items():
            view[...] = loaded.get(key, 0.0)

    def _checked(self, option: str, value: float, fits: bool, expected: str) -> float:
        if not (fits and math.isfinite(value)):
            raise UsageError(
                message(type(self).__name__, f"{option}={value}", f"{option} {expected}", "set it")
            )
        return float(value)

    def _misfit(self, got: str, expected: str) -> CheckpointError:
        return CheckpointError(
            message(
                f"{type(self).__name__}.load_state",
                f"the state holds {got}",
                f"expected: {expected}",
                "load the state of the same optimizer and network",
            )
        )

    def _text(self, got: str, expected: str, action: str) -> str:
        return message(f"{type(self).__name__}.update", got, expected, action)
