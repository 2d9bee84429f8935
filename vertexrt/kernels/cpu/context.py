"""What kernels read of a minibatch: one array of addresses and numbers."""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np

from vertexrt.kernels.layout import Array, Buffers

# Positions in the array of int64: addresses of arrays; of arrays of addresses (FLOATS, SEEDS); how
# many vertices there are, the bits of a float64 (SCALE), and 32 bits (SEED).
Field = IntEnum(
    "Field",
    "ORDER EDGE_PTR CHILD_ROW EDGE_ROW PARENT_PTR PARENT_EDGE ROWS ARENA OFFSETS PARAMS GRADIENTS "
    "PARAM_AT WEIGHT USER_VERTEX USER_EDGE INTS FLOAT_INDEX FLOATS SEEDS VERTICES SCALE SEED "
    "EVERY_PTR EDGE_ORDER RELATION_PTR ABOVE_EDGE",
    start=0,
)


# What the arrays are of that are not of indices; "" for reals.
TYPES = {
    Field.ARENA: "",
    Field.PARAMS: "",
    Field.GRADIENTS: "",
    Field.WEIGHT: "",
    Field.OFFSETS: "i64",
    Field.PARAM_AT: "i64",
    Field.FLOATS: "ptr",
    Field.SEEDS: "ptr",
}


class Contexts:
    """Makes contexts. An array takes 1 us to say where it lies, and some are the same each time."""

    def __init__(self) -> None:
        nothing = np.zeros(0)
        self._last = [(nothing, _address(nothing))] * (Field.FLOATS - Field.ROWS)

    def of(self, b: Buffers) -> Array:
        """Return the context of buffers, made once; scale, seed and reals may be others then."""
        kept = b.kept
        if kept is None:
            kept = b.kept = self.make(b)
        else:
            kept[Field.SCALE] = struct.unpack("q", struct.pack("d", b.loss_scale))[0]
            kept[Field.SEED] = b.random_seed
            for k, array in enumerate((*b.floats, *b.d_pushes), len(Field)):
                kept[k] = _address(array)
        return kept

    def make(self, b: Buffers) -> Array:
        """Return the context of a minibatch, whose arrays must stay as long as it is used.

        Returns: int64; its first elements are those of `Field`, then come lists of addresses.
        """
        s = b.schedule
        order, _, _, _, *others = s.begins
        indices = _address(s.indices)
        *fields, every_ptr, edge_order, relation_ptr, above_edge = [
            indices + s.indices.itemsize * begin for begin in (order, *others)
        ]
        arrays = (
            b.rows, b.arena, b.base, b.params, b.gradients, b.param_at, s.weight, b.user_vertex,
            b.user_edge, b.ints, b.float_index,
        )  # fmt: skip
        last = self._last
        for k, array in enumerate(arrays):
            known = last[k]
            if known[0] is not array:
                last[k] = known = (array, _address(array))
            fields.append(known[1])
        lists = [_address(array) for array in (*b.floats, *b.d_pushes)]
        bits = struct.unpack("q", struct.pack("d", b.loss_scale))[0]
        fields += [0, 0, b.ints.shape[1], bits, b.random_seed, every_ptr, edge_order, relation_ptr]
        fields += [above_edge, *lists]
        found = np.array(fields, np.int64)
        begin = _address(found) + found.itemsize * len(Field)
        found[Field.FLOATS] = begin
        found[Field.SEEDS] = begin + found.itemsize * len(b.floats)
        return found


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0] if array.size else 0  # which nothing reads
    return found
