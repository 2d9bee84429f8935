"""The loops that are compiled in a process of their own are those that steps need."""

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from vertexrt.cache.compiled import is_kept
from vertexrt.engine.host_loops import CUT, compile_beside, compile_loops
from vertexrt.engine.sparse_rows import rows_looked_up, take_marked
from vertexrt.kernels.cpu.update import add_up, cut_pieces, norm_of, sum_loss

LOOPS = (add_up, cut_pieces, norm_of, rows_looked_up, sum_loss, take_marked)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_needs_no_others(dtype: str) -> None:
    compile_loops(dtype)
    before = [list(loop.signatures) for loop in LOOPS]
    net = vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", dtype=dtype, threads=2)
    pulls = {"word": [1, 2, -1], "label": [0, 1, 1]}
    tree = vrt.InputGraph.from_children([[], [], [0, 1]], pulls=pulls)
    net.step(vrt.GraphBatch.from_graphs([tree, tree]), vrt.Adagrad(0.1, clip_norm=1.0))
    assert [list(loop.signatures) for loop in LOOPS] == before


def test_no_process_is_started_for_loops_that_are_kept() -> None:
    compile_loops("float32")
    assert is_kept(cut_pieces, *CUT)
    assert not is_kept(cut_pieces, *CUT[:-1], np.zeros(1, np.int16))
    assert compile_beside("float32") is None
