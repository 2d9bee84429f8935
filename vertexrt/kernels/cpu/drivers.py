"""The two loops that call kernels: over a launch table, and over the script of a processor.

Processors wait for each other by counters, 64 bytes apart. A wait spins, gives its time slice away
now and then (there may be more processors than cores), and ends with an error record when its time
is up or another processor has failed, so that nothing hangs.

The processors of one group share `counters`: the error record, then the counters.
"""

from __future__ import annotations

from vertexrt.kernels.cpu.code import Code, Register, int64
from vertexrt.kernels.cpu.libraries import ATTRIBUTES, arguments_of
from vertexrt.kernels.layout import COLUMNS
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
    WORDS,
)

APART = 16  # int32 words from one counter to the next
FAILED, PROCESSOR, INSTRUCTION, WAITED = range(4)  # the error record, before the counters
# Arguments; * marks arrays.
RUN = "*table count *tasks temporary *context"
FOLLOW = "*script count *counters part parts limit *times timed *tasks *first temporary *context"
SPINS = 64  # between two looks at the clock
TIMES = 3  # of an instruction: its start, the end of its wait, its end


def drivers() -> str:
    """Return the module of both, and of the clock."""
    declared = ["declare i64 @llvm.readcyclecounter()", "declare i32 @sched_yield()"]
    return "\n".join([*declared, _run(), _follow(), CLOCK, ATTRIBUTES])


CLOCK = """define i64 @vrt_clock() #0 {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}"""


def _call(code: Code, task: Register, arguments: list[Register]) -> None:
    code.line(f"call void {task.name}({', '.join(map(str, arguments))})")


def _run() -> str:
    """Write the loop over a launch table that calls task programs by number."""
    arguments = arguments_of(RUN)
    table, count, tasks, temporary, context = arguments
    code = Code("vrt_run", arguments, "float")
    with code.loop(0, count) as t:
        row = code.at(table, code.mul(t, COLUMNS), "i64")
        number, *launch = (code.load("i64", row, k) for k in range(COLUMNS))
        alone = [int64(0), int64(0), int64(1)]
        _call(code, code.load("ptr", tasks, number), [*alone, *launch, temporary, context])
    return code.text()


def _follow() -> str:
    """Write the loop over a script; it notes the clock where there is room for the times.

    Arguments: the script and its instructions; the counters; which processor this is, of how many;
    cycles until it gives up; times, and of how many instructions; addresses of the task programs,
    and the number of the first segment of each; where temporaries start; the context.
    """
    arguments = arguments_of(FOLLOW)
    script, count, counters, part, parts, limit, times, timed, *rest = arguments
    tasks, first, temporary, context = rest
    code = Code("vrt_follow", arguments, "float")

    def note(t: Register, k: int) -> None:
        with code.when(code.compare("sgt", timed, 0)):
            code.store(_cycles(code), times, code.add(code.mul(t, TIMES), k))

    with code.loop(0, count) as t:
        row = code.at(script, code.mul(t, WORDS), "i32")
        columns = (OP, PROGRAM, ROWS, FIRST, LISTED, EDGES, FIRST_EDGE, WAIT, TEMPORARY)
        op, program, *launch, wait, apart = (code.load_index(row, k) for k in columns)
        note(t, 0)
        with code.when(code.compare("sge", wait, 0)):
            _wait(code, counters, [part, t, wait], parts, limit)
        note(t, 1)
        segment = code.integer("sub", op, code.load("i64", first, program))
        own = code.add(temporary, apart)
        task = code.load("ptr", tasks, program)
        _call(code, task, [segment, part, parts, *launch, own, context])
        note(t, 2)
        with code.when(code.compare("sgt", parts, 1)):
            # Who reads the sum sees all that was written before.
            at = _counter(code, counters, t)
            code.op("i32", f"atomicrmw add {at}, i32 1 acq_rel")
    return code.text()


def _counter(code: Code, counters: Register, number: Register) -> Register:
    return code.at(counters, code.mul(code.add(number, 1), APART), "i32")


def _cycles(code: Code) -> Register:
    return code.call("i64", "llvm.readcyclecounter", [])


def _read(code: Code, at: Register) -> Register:
    """Read a counter; what was written before its last change can be read afterwards."""
    return code.op("i32", f"load atomic i32, {at} acquire, align 4")


def _wait(
    code: Code, counters: Register, record: list[Register], parts: Register, limit: Register
) -> None:
    """Wait until all processors have done an instruction; leave an error record if that fails.

    Args:
        record: the processor, its instruction, and the one that it waits for.
    """
    spins, start = code.variable(int64(0)), _cycles(code)
    counter, enough = _counter(code, counters, record[-1]), code.op("i32", f"trunc {parts} to i32")
    with code.repeat(lambda: code.compare("slt", _read(code, counter), enough)):
        count = code.add(code.load("i64", spins), 1)
        code.store(count, spins)
        with code.when(code.compare("eq", code.integer("and", count, SPINS - 1), 0)):
            code.call("i32", "sched_yield", [])
            failed = _read(code, code.at(counters, FAILED, "i32"))
            waited = code.compare("sgt", code.integer("sub", _cycles(code), start), limit)
            with code.when(code.integer("or", waited, code.compare("ne", failed, 0))):
                with code.when(code.compare("eq", failed, 0)):
                    for field, value in zip((PROCESSOR, INSTRUCTION, WAITED), record, strict=True):
                        code.store(code.op("i32", f"trunc {value} to i32"), counters, field)
                    failed = code.at(counters, FAILED, "i32")
                    code.op("i32", f"atomicrmw add {failed}, i32 1 acq_rel")
                code.leave()
