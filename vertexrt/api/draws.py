"""Random numbers in a vertex function, drawn by seed, step, vertex and element."""

from __future__ import annotations

import zlib
from typing import Any

from vertexrt.api.declaration import is_real
from vertexrt.api.elementwise import emit
from vertexrt.api.trace import current_builder
from vertexrt.errors import TraceError
from vertexrt.ir.user_line import user_line
from vertexrt.ir.values import Value

Operand = Any  # Value | Parameter | float


def dropout(x: Operand, p: float) -> Value:
    """Zero each element with probability p in training and scale the others by 1 / (1 - p).

    The mask depends on the seed, the step, the number of the vertex in the batch and the element:
    it is the same on every device and engine, with any number of threads. In inference the value
    passes unchanged.

    Raises: TraceError, when p is not in [0, 1).
    """
    if not is_real(p) or not 0.0 <= p < 1.0:
        raise TraceError.at(
            "dropout", f"p is {p!r} at {user_line()}", "0 <= p < 1", "pass the share of zeros"
        )
    value = current_builder().lift(x)
    if p == 0.0:
        return value
    key = zlib.crc32(f"dropout {len(value.builder.nodes)}".encode())
    return emit("dropout", value, p=float(p), key=key)
