"""The structs that host and device share, each declared once: the host packs them here, and kernels
include what `header` writes of them as HEADER, which asserts their sizes. All parts have 8 bytes.
"""

from __future__ import annotations

from struct import Struct

HEADER = "structs.cuh"
MOST_SCALARS = 16  # of an update


class SharedStruct:
    """A struct that the host packs and kernels read.

    Args:
        parts: its members, and the type of each in CUDA; `double[4]` is an array.
    Attributes:
        names: of the members; size: its bytes.
        pack: given all numbers in order, and the bytes of structs, returns its bytes.
        text: declares it.
    """

    name: str
    size: int

    def __init__(self, name: str, **parts: str | SharedStruct) -> None:
        code, lines = "", [f"struct {name} {{"]
        for part, kind in parts.items():
            if isinstance(kind, SharedStruct):
                code += f"{kind.size}s"
                lines.append(f"    {kind.name} {part};")
            else:
                single, _, count = kind.removesuffix("]").partition("[")
                code += count + ("d" if single == "double" else "q")
                lines.append(f"    {single} {part}{kind.removeprefix(single)};")
        packed = Struct(code)
        self.name, self.names = name, [*parts]
        self.pack, self.size = packed.pack, packed.size
        asserted = f'static_assert(sizeof({name}) == {self.size}, "as the host packs it");'
        self.text = "\n".join([*lines, "};", asserted])


# What a step found. `refused` stays set until the host has read it, so that no later step updates
# parameters before the user knows.
FOUND = SharedStruct("Found", loss="double", norm="double", scale="double", refused="double")
# The same, and the record of a wait that ran out: code, processor, instruction, and the value of
# the counter.
RECORD = SharedStruct(
    "Record",
    found=FOUND,
    code="double",
    processor="double",
    instruction="double",
    reached="double",
)

# The parameter store: the dense part in pieces of PIECE elements, then the touched rows of tables.
# A warp works on a piece.
STORE = SharedStruct(
    "Store",
    values="real*",
    gradients="real*",
    moments="real*",  # [*, total]
    row_start="const long long*",
    row_width="const int*",
    squares="double*",  # [pieces]
    found="Found*",
    told="Found*",  # of the host, or null: the update copies what was found
    total="long long",
    dense="long long",
    dense_pieces="long long",
    pieces="long long",
    s=f"double[{MOST_SCALARS}]",  # decay added to gradients, factor of values, those of the rule
)
FINISH = SharedStruct(
    "Finish",
    loss="const real*",
    weight="const real*",  # null: each row counts once
    squares="const double*",
    found="Found*",
    rows="long long",
    pieces="long long",
    loss_scale="double",
    clip_norm="double",  # 0: not clipped
)

# The arguments of a persistent kernel; `Job<WORDS>` adds the words.
ORDERS = SharedStruct(
    "Orders",
    script="const Instruction*",  # of all processors
    counters="unsigned*",  # zero: of the grid, whether a wait ran out, of the groups, of the sides
    flagged="unsigned long long*",  # zero, or null: see flagged.cuh
    record="Record*",
    groups="long long",
    patience="long long",  # nanoseconds
    stamps="long long*",  # [processors, most_stamps, 4] or null, see `Timestamps`
    most_stamps="long long",
    shared_bytes="long long",
    begin="long long",  # and end: what the launch runs of the script of all processors
    end="long long",
    members="long long",  # of a group that is a cluster, 0 where groups are none
    gave_up="volatile long long*",  # of the host: 1 once a wait has run out
    cells="const ScriptWord*",  # the scripts of cells of all groups
    cell_sections="const int*",  # [sides, groups, 2] where each begins, how long its piece is
    store=STORE,
    finish=FINISH,
)

# The losses of rows, whose sum counts times a scale.
LOSSES = SharedStruct(
    "Losses",
    loss="const real*",
    weight="const real*",  # null: each row counts once
    rows="long long",
    scale="double",
)
# The loss of a pass that does not update.
SUMMED = SharedStruct("SummedLoss", to="real*", of=LOSSES)

# Rows of a tensor that are wanted: `count` elements, `size` of a row, from a block on.
TAKEN = SharedStruct(
    "TakenRows",
    to="real*",
    tensor="const real*",
    rows="const int*",
    count="long long",
    size="long long",
    first_block="long long",
)

# What a step of several processes does with gradients before the update: a share is packed, flat
# arrays are exchanged and added up, and what is left of the sum is joined in the store.

# What a process tells the others: see update.cu.
TELLING = SharedStruct(
    "Telling",
    to="double*",
    code="const double*",  # of the record that launches leave
    values="const real*",  # each `stride`-th is looked at
    count="long long",
    stride="long long",
    given="double[4]",  # from SIGNAL on
)
# Gradients of a share as a flat array: the dense part in pieces, then rows of tables, a warp for
# each. The first two blocks tell, and sum the loss of the share.
PACKING = SharedStruct(
    "Packing",
    gradients="const real*",  # the store's; null: the share has no graph, and zeros are packed
    to="real*",
    row_start="const long long*",
    row_width="const int*",
    row_at="const long long*",  # when packed
    dense="long long",
    dense_pieces="long long",
    pieces="long long",
    loss="double*",  # where it is told
    telling=TELLING,
    losses=LOSSES,
)
# to[i] = left[i] + right[i].
SUM = SharedStruct(
    "Sum",
    to="real*",
    left="const real*",
    right="const real*",  # null: nothing
    count="long long",
)
# What is left of the sum goes to where updates read gradients. The first block looks at what
# processes told each other.
JOINING = SharedStruct(
    "Joining",
    store=STORE,  # its rows are those that are packed
    left="const real*",
    right="const real*",  # null: the left is the sum
    row_at="const long long*",
    squares="long long",  # whether they are summed
    checks="long long",  # whether the update is checked
    told="const double*",  # [processes, numbers]
    told_to="double*",  # of the host, the same
    stopped="const long long*",  # of the host, or null: an exchange was ended
    processes="long long",
    numbers="long long",
)


def header() -> str:
    """Return the text of HEADER."""
    every = (
        *(FOUND, RECORD, STORE, FINISH, ORDERS, LOSSES, SUMMED, TAKEN),
        *(TELLING, PACKING, SUM, JOINING),
    )
    texts = "\n".join(each.text for each in every)
    return f"""\
// Made from kernels/cuda/structs.py, which says what the members mean.
#pragma once
#include "vertexrt.cuh"

struct Instruction;  // see instruction.cuh
struct ScriptWord;   // see cell_rows.cuh

{texts}
"""
