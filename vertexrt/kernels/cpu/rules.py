"""Update rules as compiled loops over ranges of flat arrays: one for each rule, called by address.

A loop works on pieces of a store (see `kernels.store_update`), a row of a piece at a time.

    values                   float32 or float64 [total], contiguous
    gradients                [trained], of the same layout, without the frozen parameters at its end
    state                    [slots, trained], likewise
    pieces, spans, listed    what to work on
    scale                    factor of every gradient: below 1 when the global norm is clipped
    s                        float64, the scalars of `StoreUpdate`

Scalars are rounded once to the dtype of `values`: a float64 scalar would make the whole loop run in
float64. A rule is one loop that stores all its results, so that memory is passed once; it leaves
gradients at zero, since to clear them before the next step adds to them would be a pass of its own.

A rule is not known when the end of a step is compiled, so its loop is called by address.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from vertexrt.ir.expressions import translate
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cpu.arithmetic import Arithmetic
from vertexrt.kernels.cpu.kernels import REALS
from vertexrt.native.code import Code, Register, arguments_of, module_of
from vertexrt.native.foreign import Foreign
from vertexrt.native.load import LoadedCode, load

ARGUMENTS = "*values *gradients *state total *pieces count *spans groups *listed"


def text_of(rule: UpdateRule, real: str) -> str:
    """Return the module of a rule's loop for `float` or `double`."""
    arguments, scale = arguments_of(ARGUMENTS), Register("double", "%scale")
    values, gradients, state, total, pieces, count, spans, groups, listed = arguments
    scalars = Register("ptr", "%scalars")
    code = Code("vrt_rule", [*arguments, scale, scalars], real)
    math = Arithmetic(code)
    slots = [slot.name for slot in rule.state]

    def rounded(value: Register) -> Register:
        return value if real == "double" else code.op(real, f"fptrunc {value} to {real}")

    given = [rounded(code.load("double", scalars, k)) for k in range(len(rule.scalars) + 2)]
    decay, shrink, *own = given
    factors = {"scale": rounded(scale), "decay": decay, "shrink": shrink}
    names = {f"s{k}": value for k, value in enumerate(own)}
    with code.loop(0, count) as piece:
        at = code.mul(piece, 2)
        start, width = (code.load("i64", pieces, code.add(at, k)) for k in range(2))
        span = code.mul(code.mul(piece, groups), 2)
        first, end = (code.load("i64", spans, code.add(span, k)) for k in range(2))
        with code.loop(first, end) as entry:
            begin = code.add(start, code.mul(code.load("i64", listed, entry), width))
            p, d = (code.at(array, begin, real) for array in (values, gradients))
            kept = [
                code.at(state, code.add(code.mul(total, k), begin), real) for k in range(len(slots))
            ]
            with code.loop(0, width, independent=True) as i:
                known = names | {"p": code.load(real, p, i, independent=True)} | factors
                known["d"] = code.load(real, d, i, independent=True)
                known["g"] = translate("scale * d + decay * p", known, math)
                known["value"] = translate("shrink * p", known, math)
                for slot, array in zip(slots, kept, strict=True):
                    known[slot] = code.load(real, array, i, independent=True)
                for name, expression in rule.lines:
                    known[name] = translate(expression, known, math)
                for slot, array in zip(slots, kept, strict=True):
                    code.store(known[slot], array, i, independent=True)
                code.store(known["value"], p, i, independent=True)
                code.store(code.const(0.0), d, i, independent=True)
    return module_of([code])


@functools.cache
def code_of(rule: UpdateRule, dtype: np.dtype[Any]) -> LoadedCode:
    """Compile the loop of a rule, `vrt_rule`, or find it in the cache."""
    return load(text_of(rule, REALS[dtype]), ["vrt_rule"], {})


_RULE = Foreign("void", "ptr ptr ptr i64 ptr i64 ptr i64 ptr double ptr")


def run_rule(address: int, store: Any, cut: Any, scale: float, s: Any) -> None:
    """Call a loop by its address.

    Args:
        store: values, gradients and state; cut: pieces, spans, listed.
    """
    values, gradients, state = store
    pieces, spans, listed = cut
    _RULE(
        address, values, gradients, state, state.shape[1], pieces, len(pieces), spans,
        spans.shape[1], listed, scale, s,
    )  # fmt: skip
