"""Partitions own every row once, keep gates together, add up, and say what does not fit."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from vertexrt.engine.variant import Passes, Use, make_variant
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.segment import SegmentedTask, segment_tasks
from vertexrt.ir.passes.stack import stack_parameters
from vertexrt.kernels.reference.backend import ReferenceBackend
from vertexrt.models.lstm_lm import LSTMLanguageModel
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.script.budget import SM, Budget, core
from vertexrt.script.partition import Partition, make_partition
from vertexrt.script.partition_text import format_partition

GOLDEN = """\
Partition of the path weights over 8 processors, each: SM with 227.0 KiB of shared memory and \
65536 registers, 256 threads, 64 registers of each for code
  u_iou [768,256]              98,304 bytes each, in registers
  u_f [256,256]                32,768 bytes each, in registers
  u_iou' [256,768]             98,304 bytes each, in shared memory
  u_f' [256,256]               32,768 bytes each, in registers
  gradient of u_iou [768,256]  98,304 bytes each, a deferred product (needs 96.0 KiB, left are \
31.0 KiB of registers and 83.0 KiB of shared memory)
  gradient of u_f [256,256]    32,768 bytes each, in shared memory
  rows of each processor:
    0: u_iou 0..31 256..287 512..543; u_f 0..31; u_iou' 0..31; u_f' 0..31
    1: u_iou 32..63 288..319 544..575; u_f 32..63; u_iou' 32..63; u_f' 32..63
    2: u_iou 64..95 320..351 576..607; u_f 64..95; u_iou' 64..95; u_f' 64..95
    3: u_iou 96..127 352..383 608..639; u_f 96..127; u_iou' 96..127; u_f' 96..127
    4: u_iou 128..159 384..415 640..671; u_f 128..159; u_iou' 128..159; u_f' 128..159
    5: u_iou 160..191 416..447 672..703; u_f 160..191; u_iou' 160..191; u_f' 160..191
    6: u_iou 192..223 448..479 704..735; u_f 192..223; u_iou' 192..223; u_f' 192..223
    7: u_iou 224..255 480..511 736..767; u_f 224..255; u_iou' 224..255; u_f' 224..255
  shared memory: 180,224 of 232,448 bytes a processor, 49,152 of them for operands
  registers: 163,840 bytes a processor, 160 a thread for weights and 64 for code, of 255
  replicated: operand of u_f [512], 8 rows; operand of u_f transposed [512], 8 rows; operand of \
u_iou [256], 8 rows; operand of u_iou transposed [768], 8 rows
  not on the path, read from memory: embedding, w, b, v
  gradients after the path, in one product: u_iou
"""


class TwoProducts(vrt.VertexFunction):
    """One child's product is alone in one kind; two children's are stacked in another."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.a = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden, hidden))
        self.c = vrt.Parameter((2 * hidden, hidden))

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        one, two = vrt.split(self.c @ left.h, 2)
        h = vrt.tanh(self.a @ left.h + one) * vrt.sigmoid(self.b @ right.h + two)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


@cache
def tasks_of(name: str, hidden: int) -> list[SegmentedTask]:
    """Segment training of a function, for every kind of vertex with slots empty or not."""
    functions: dict[str, vrt.VertexFunction] = {
        "tree-lstm": TreeLSTM(50, hidden, hidden, 5),
        "tree-fc": TreeFC(50, hidden),
        "lstm-lm": LSTMLanguageModel(50, hidden, hidden),
        "two-products": TwoProducts(hidden),
    }
    function = stack_parameters(place(functions[name].trace()))
    params = [*function.params, *("+".join(names) for names in function.stacks)]
    backend = ReferenceBackend()
    use = Use(frozenset({"loss"}), loss=True)
    variant = make_variant(function, use, backend, params, Passes())
    for bits in range(8):
        variant.add_path_kind(bits)
    return segment_tasks(variant.tasks)


NAMES = ("tree-lstm", "tree-fc", "lstm-lm", "two-products")


def owners(partition: Partition, share: int) -> list[int]:
    """List the processor of each row; rows without one, or with two, fail."""
    matrix = partition.shares[share]
    found = [-1] * matrix.rows
    for r in range(partition.processors):
        for first, end in matrix.owned(r, partition.processors):
            for row in range(first, end):
                assert found[row] == -1, f"row {row} of {matrix.name} has two owners"
                found[row] = r
    assert -1 not in found, f"a row of {matrix.name} has no owner"
    return found


@settings(deadline=None)
@given(
    name=st.sampled_from(NAMES),
    hidden=st.integers(1, 40),
    processors=st.integers(1, 9),
    cache=st.integers(0, 40_000),
)
def test_every_row_has_one_owner(name: str, hidden: int, processors: int, cache: int) -> None:
    partition = make_partition(tasks_of(name, hidden), processors, core(cache))
    assert partition.shares
    for k in range(len(partition.shares)):
        owners(partition, k)


@settings(deadline=None)
@given(hidden=st.integers(1, 40), processors=st.integers(1, 9))
def test_gates_are_aligned(hidden: int, processors: int) -> None:
    partition = make_partition(tasks_of("tree-lstm", hidden), processors, SM)
    names = [(s.name, s.role) for s in partition.shares]
    forget = owners(partition, names.index(("u_f", "forward")))
    gates = owners(partition, names.index(("u_iou", "forward")))
    assert gates == forget * 3
    assert owners(partition, names.index(("u_iou", "gradient"))) == gates


@settings(deadline=None)
@given(
    name=st.sampled_from(NAMES),
    hidden=st.integers(1, 40),
    processors=st.integers(1, 9),
    cache=st.integers(0, 40_000),
    itemsize=st.sampled_from((4, 8)),
)
def test_bytes_add_up(name: str, hidden: int, processors: int, cache: int, itemsize: int) -> None:
    budget = Budget("SM", 4096, cache, "shared memory", threads=32, working=40, most=255)
    partition = make_partition(tasks_of(name, hidden), processors, budget, itemsize, tile_rows=1)
    for share in partition.shares:
        each = [partition.bytes_of(share, r) for r in range(processors)]
        assert sum(each) == share.rows * share.columns * itemsize
        assert bool(share.why) == (share.place in ("streamed", "deferred"))
    assert budget.register_bytes == (128 - 40) * 32 * 4
    assert partition.registers_per_thread <= 128 - 40
    for r in range(processors):
        assert partition.bytes_in("registers", r) <= budget.register_bytes
        assert partition.bytes_in("memory", r) <= max(cache, partition.operand_bytes)


def test_weights_alone_are_split_alike_in_every_kind() -> None:
    partition = make_partition(tasks_of("two-products", 12), 3, core(1 << 20))
    rows = {(s.name, s.role): owners(partition, k) for k, s in enumerate(partition.shares)}
    assert rows["c", "forward"] == rows["a", "forward"] * 2
    assert rows["b", "forward"] == rows["a", "forward"]


def test_one_processor_owns_everything_and_replicates_nothing() -> None:
    partition = make_partition(tasks_of("tree-fc", 8), 1, core(1 << 20))
    assert partition.replicated == ()
    assert partition.operand_bytes == 0
    assert all(s.owned(0, 1) == ((0, s.rows),) for s in partition.shares)


def test_over_budget_says_what_does_not_fit_and_why() -> None:
    partition = make_partition(tasks_of("tree-lstm", 256), 2, core(1 << 20))
    assert not partition.fits
    text = format_partition(partition)
    assert "streamed (needs 128.0 KiB, left are 80.0 KiB of cache)" in text
    assert "does not fit, so it is read anew for every tile: u_f' [256,256]" in text
    assert "gradients after the path, in one product: u_iou, u_f" in text
    assert make_partition(tasks_of("tree-lstm", 256), 8, core(1 << 20)).fits


@pytest.mark.parametrize("processors", [3, 7])
def test_shares_that_differ_are_given_as_a_range(processors: int) -> None:
    text = format_partition(make_partition(tasks_of("tree-fc", 16), processors, core(1 << 20)))
    assert " to " in text.splitlines()[1]


def test_golden_text() -> None:
    partition = make_partition(tasks_of("tree-lstm", 256), 8, SM)
    assert format_partition(partition) + "\n" == GOLDEN
