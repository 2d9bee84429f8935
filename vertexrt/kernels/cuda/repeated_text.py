"""Write how a side of the path executes levels that instructions repeat."""

from __future__ import annotations

from collections.abc import Callable

from vertexrt.kernels.cuda.path_sides import IDLE_FIRST, PathSide, write_case
from vertexrt.kernels.cuda.segments import InRing

REPEATED_TILE = "rows, in.first, rows, in.first_edge"


def write_repeats(side: PathSide) -> list[str]:
    """Write how levels are executed that instructions repeat, on a row at a time."""
    if not side.repeated:
        return ["  NoRepeats{}"]
    ((slot, parts),) = {(x.slot, len(x.parts)) for x in side.repeated.values()}
    at_hand = f"(const Instruction& in, auto rows, const RepeatedIndices<{slot}>& at_hand"
    way, rows = _way(side)
    lines = [
        f"  make_repeats<{rows}, {slot}, {parts}, {way}>(",
        f"    [&]{at_hand},",
        "        auto wait_for_operands, auto prefetch_next) VRT_INLINED {",
        "    switch (in.op) {",
    ]
    for number, x in side.repeated.items():
        first = x.parts[0]
        tile = _tile(side, rows > 0 and bool(first.segment.ring.puts), rows > 0)
        lines += write_case(side, number, first, [tile, *first.lines], True)
    lines += ["    }", *_copies_ahead(side, at_hand), "    }", *_begin(side)]
    return [*lines, *_second_parts(side, at_hand), *_take_over(side)]


def _way(side: PathSide) -> tuple[str, int]:
    """Return where processors find what others have made, and the rows of the ring that has it."""
    if side.flagged.rows:
        return "FLAGGED", side.flagged.rows
    return "IN_RING" if side.ring.rows else "IN_MEMORY", side.ring.rows


def _tile(side: PathSide, puts: bool, children: bool) -> str:
    """Write the tile of a repetition.

    Args:
        puts: it puts rows into the ring; children: it reads those of children there.
    """
    if side.flagged.rows:
        turn, sends, more = "flag", False, ", uses_flags(job.o, rows) ? words : nullptr"
    else:
        turn, sends, more = "turn", side.ring.rows > 0 and side.processors > 1, ""
    uses = f"false, {_word(puts)}, {_word(sends)}, {_word(children)}{more}"
    return f"const Tile a{{{REPEATED_TILE}, in.slot, group_barrier.{turn} + 1, {uses}}};"


def _word(given: bool) -> str:
    return str(given).lower()


def _copies_ahead(side: PathSide, at_hand: str) -> list[str]:
    """Write what is copied ahead of a repetition."""
    lines = [f"  }}, [&]{at_hand},", "        bool first) VRT_INLINED {", "    switch (in.op) {"]
    for number, x in side.repeated.items():
        if copies := x.copies:
            body = [f"const Tile a{{{REPEATED_TILE}}};", IDLE_FIRST]
            for copy, text in copies.items():
                body += [f"if (first) {text[0]}", *text[1:]] if copy in x.carried else text
            lines += write_case(side, number, x.parts[0], body, True)
    return lines


def _begin(side: PathSide) -> list[str]:
    """Write what is done before the first repetition."""
    to_registers = [f"    copy_weights(copied.{h.name}, held.{h.name});" for h in side.copied]
    return ["  }, [&]() VRT_INLINED {", *to_registers]


def _take_over(side: PathSide) -> list[str]:
    """Write how rows come to the ring: copies of states in memory, and elements with flags."""
    if not side.flagged.rows:
        return ["  }, nullptr, nullptr)"]

    def copy(e: InRing) -> str:
        states = f"(const real*)job.w[{side.words[f'tensor_{e.tensor}']}] + (long long)from"
        to = f"ring + slot * {e.step} + {e.start}, {e.step}"
        return f"copy_states<{e.size}>({to}, rows, {states} * {e.size});"

    def receive(e: InRing) -> str:
        at = f"slot * {e.step} + {e.start}"
        given = f"job.o, words + {at}, ring + {at}, {e.step}, rows, flag, at"
        return f"receive<{e.size}>({given});"

    return [
        "  }, [&](const Instruction& in, auto rows, int slot, int from) VRT_INLINED {",
        *_each_gathered(side, copy),
        "  }, [&](const Instruction& in, auto rows, int slot, unsigned flag, int at) VRT_INLINED {",
        *_each_gathered(side, receive),
        "  })",
    ]


def _each_gathered(side: PathSide, write: Callable[[InRing], str]) -> list[str]:
    """Write a statement about each state that repetitions read in the ring."""
    lines = ["    switch (in.op) {"]
    for number, x in side.repeated.items():
        lines.append(f"      case {number}:")
        lines += [f"        {write(e)}" for e in x.parts[0].segment.ring.gathers]
        lines.append("        break;")
    return [*lines, "    }"]


def _second_parts(side: PathSide, at_hand: str) -> list[str]:
    """Write the second parts of levels, by numbers of the first: operands are in memory then."""
    lines = [f"  }}, [&]{at_hand},", "        auto wait_for_operands) VRT_INLINED {"]
    seconds = {number: part for number, x in side.repeated.items() for part in x.parts[1:]}
    if not seconds:
        return lines
    tile = f"const Tile a{{{REPEATED_TILE}, in.slot, 0, false, false, false, false}};"
    lines += ["    auto prefetch_next = []() {};", "    switch (in.op) {"]
    for number, second in seconds.items():
        lines += write_case(side, number, second, [tile, *second.lines], True)
    return [*lines, "    }"]
