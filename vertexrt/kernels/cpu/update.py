"""The update of a step on a CPU: a compiled loop for each rule, over ranges of flat arrays.

A loop works on ranges of a store (see `kernels.store_update`).

    values                   float32 or float64 [total], contiguous
    gradients                [trained], of the same layout, without the frozen parameters at its end
    state                    [slots, trained], likewise
    ranges                   what to work on
    scale                    factor of every gradient: below 1 when the global norm is clipped
    scalars, s               float64, the scalars of `StoreUpdate`

Scalars are rounded once to the dtype of `values`: a float64 scalar would make the whole loop run in
float64. A rule is one loop that stores all its results, so that memory is passed once; it leaves
gradients at zero, since to clear them before the next step adds to them would be a pass of its own.

A rule is not known when the end of a step is compiled, so its loop is called by address.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.ir.expressions import translate
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cpu.arithmetic import Arithmetic
from vertexrt.kernels.store_update import (
    FOUND_DONE,
    FOUND_NORM,
    FOUND_TRIED,
    LANES,
    StoreUpdate,
    factor,
    within,
)
from vertexrt.native.code import Code, module_of
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import Foreign
from vertexrt.native.load import LoadedCode, load
from vertexrt.native.scope import stored_as

FloatArray = npt.NDArray[np.floating[Any]]

ARGUMENTS = "*values *gradients *state total i64*ranges count double:scale double*scalars"


def text_of(rule: UpdateRule, real: str) -> str:
    """Return the module of a rule's loop for `float` or `double`."""
    code = Code("vrt_rule", ARGUMENTS, real)
    values, gradients, state, total, ranges, count, scale, scalars = code.arguments
    arithmetic = Arithmetic(code)
    given = [code.convert(scalars[k], real) for k in range(len(rule.scalars) + 2)]
    decay, shrink, *own = given
    factors = {"scale": code.convert(scale, real), "decay": decay, "shrink": shrink}
    names = {f"s{k}": value for k, value in enumerate(own)}
    with code.loop(0, count) as number:
        begin, end = ranges[number * 2], ranges[number * 2 + 1]
        p, d = values + begin, gradients + begin
        kept = {slot.name: state + (total * k + begin) for k, slot in enumerate(rule.state)}
        with code.loop(0, end - begin, independent=True) as i:
            known = names | {"p": p[i]} | factors
            known["d"] = d[i]
            known["g"] = translate("scale * d + decay * p", known, arithmetic)
            known["value"] = translate("shrink * p", known, arithmetic)
            for slot, array in kept.items():
                known[slot] = array[i]
            for name, expression in rule.lines:
                known[name] = translate(expression, known, arithmetic)
            for slot, array in kept.items():
                array[i] = known[slot]
            p[i] = known["value"]
            d[i] = code.const(0.0)
    return module_of([code])


@functools.cache
def code_of(rule: UpdateRule, dtype: np.dtype[Any]) -> LoadedCode:
    """Compile the loop of a rule, `vrt_rule`, or find it in the cache."""
    return load(text_of(rule, stored_as(dtype)), ["vrt_rule"], {})


_RULE = Foreign("void", "ptr ptr ptr i64 ptr i64 double ptr")


def run_rule(address: int, store: Any, ranges: Any, scale: float, s: Any) -> None:
    """Call a loop by its address.

    Args:
        store: values, gradients and state.
    """
    values, gradients, state = store
    _RULE(address, values, gradients, state, state.shape[1], ranges, len(ranges), scale, s)


@compiled
def norm_of(gradients: Any, ranges: Any) -> float:
    """Return the norm of all ranges.

    Squares are summed up in float64: element j of a range goes to partial sum j % LANES, and the
    partial sums are added in order.
    """
    partial = np.zeros(LANES)
    for begin, end in ranges:
        whole = begin + (end - begin) // LANES * LANES
        for block in range(begin, whole, LANES):
            g = gradients[block : block + LANES]
            for j in range(LANES):
                x = np.float64(g[j])
                partial[j] += x * x
        for j in range(end - whole):
            x = np.float64(gradients[whole + j])
            partial[j] += x * x
    total = 0.0
    for j in range(LANES):
        total += partial[j]
    return math.sqrt(total)


def is_finite(rule: int, store: Any, begin: int, end: int, scale: float, s: Any) -> bool:
    """Tell whether all that a rule would write to a range is finite, by running it on a copy."""
    values, gradients, state = store
    p, d = values[begin:end].copy(), gradients[begin:end].copy()
    m = np.empty((len(state), end - begin), values.dtype)
    for k in range(len(state)):
        m[k] = state[k, begin:end]
    whole = np.zeros((1, 2), np.int64)
    whole[0, 1] = end - begin
    run_rule(rule, (p, d, m), whole, scale, s)
    largest = np.finfo(p.dtype).max
    finite = within(p, largest)
    for k in range(len(m)):
        finite &= within(m[k], largest)
    return finite


def check(
    rule: int, store: Any, ranges: Any, scale: float, s: Any, limit: float, found: Any
) -> bool:
    """Tell whether all that a rule would write to a store is finite; write none of it.

    Args:
        rule: address of its loop; scale: factor of every gradient; s: scalars of `StoreUpdate`.
        store: values [total], gradients [trained], state [slots, trained].
        limit: of `StoreUpdate`: ranges within it need not be tried; below 0, all are.
        found: of `StoreUpdate`; says when a range was tried.
    """
    values, gradients, _ = store
    decays = s[0] > 0.0
    for r in range(len(ranges) - 1, -1, -1):  # the first are in the cache then
        begin, end = ranges[r]
        if (
            limit >= 0.0
            and within(gradients[begin:end], limit)
            and not (decays and not within(values[begin:end], limit))
        ):
            continue
        found[FOUND_TRIED] = 1.0
        if not is_finite(rule, store, begin, end, scale, s):
            return False
    return True


@compiled
def _apply_update(
    rule: int, bounds: Any, groups: Any, store: Any, ranges: Any, counts: Any, found: Any
) -> None:
    """Do an update and count it, in one call; see `apply_update` and `check`.

    Args:
        bounds: clip_norm and limit of `StoreUpdate`; groups: its scalars and parts.
    """
    updates, versions, draws = counts
    clip_norm, limit = bounds
    scalars, parts = groups
    scale, checked = 1.0, False
    if clip_norm > 0.0:
        norm = norm_of(store[1], ranges)
        found[FOUND_NORM] = norm
        if not math.isfinite(norm):
            return
        scale = factor(norm, clip_norm)
        # A norm within the limit says that all gradients are, as they are clipped.
        checked = min(norm, clip_norm) <= limit
    for k in range(len(scalars)):
        own = ranges[parts[k] : parts[k + 1]]
        fine = checked and scalars[k, 0] == 0.0
        if not (fine or check(rule, store, own, scale, scalars[k], limit, found)):
            return
    found[FOUND_DONE] = 1.0
    for k in range(len(scalars)):
        run_rule(rule, store, ranges[parts[k] : parts[k + 1]], scale, scalars[k])
    updates[0] += 1
    versions[0] += 1
    draws[0] += 1


def apply_update(update: StoreUpdate) -> None:
    """Do an update: nothing changes unless the norm and all that would be written are finite."""
    e = update
    rule, store = code_of(e.rule, e.values.dtype)["vrt_rule"], (e.values, e.gradients, e.moments)
    bounds, groups = (e.clip_norm, e.limit), (e.scalars, e.parts)
    _apply_update(rule, bounds, groups, store, e.ranges, e.counts, e.found)
