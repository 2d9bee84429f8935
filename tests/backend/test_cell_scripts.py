"""Scripts of cells on a GPU on paper: each is followed by the verifier, and levels are full."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.functions import FUNCTIONS
from tests.launches import Launch, launch_of
from tests.paper_device import on_paper
from tests.strategies import joined, with_pulls
from vertexrt.api.network import Network
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda import cell_text
from vertexrt.kernels.cuda.cell_script import LEAVE, LEVEL, MEET, TAKE
from vertexrt.kernels.cuda.verify_cells import Level, decode_cells, verify_launch
from vertexrt.models.language_model import LSTMLanguageModel

MOST_ROWS = 8  # of a level
LAYERS = ["layers.0", "layers.1", "next"]


@functools.cache
def net(name: str, places: int) -> Network:
    """Compile once for all tests that have so many places."""
    function = FUNCTIONS[name][0]() if name in FUNCTIONS else LSTMLanguageModel(9, 8, 8, layers=2)
    return on_paper(function, 2)


def instructions(launch: Launch) -> Counter[int]:
    """Return how often each instruction is in the scripts, a level for each time."""
    found, facts = Counter[int](), launch.executable.cells
    words, groups = launch.written.cells.reshape(-1, 4), launch.written.groups
    sections = launch.written.cell_sections.reshape(-1, groups, 2)
    for s, g in np.ndindex(len(facts.sides), groups):
        begin, first = sections[s, g].tolist()
        masks = dict.fromkeys(range(len(facts.side_of)), -1)
        for x in decode_cells(words[begin:], first, False, masks):
            found[LEVEL if isinstance(x, Level) else x.op] += 1
    return found


def few_places(patch: pytest.MonkeyPatch, most: int) -> None:
    """Let cells that are compiled from now on have so many places at most."""
    patch.setattr(cell_text, "MOST_PLACES", most)


def scripts(name: str, places: int, batch: GraphBatch) -> Launch:
    """Write the scripts of a step, which the verifier follows; with so many places at most."""
    with pytest.MonkeyPatch.context() as patch:
        few_places(patch, places)
        launch = launch_of(net(name, places), batch)
    assert launch.executable.writer.cells
    verify_launch(*launch)
    return launch


def drawn(seed: int, arity: int) -> list[list[list[int]]]:
    """Draw chains, trees, DAGs, and rows with many parents."""
    rng, shapes = np.random.default_rng(seed), []
    for _ in range(int(rng.integers(1, 12))):
        size, reach = int(rng.integers(2, 50)), int(rng.choice([1, 4, 50]))
        dag = [
            rng.integers(max(0, k - reach), k, rng.integers(0, arity + 1)).tolist() if k else []
            for k in range(size)
        ]
        star = [[], [0], *([1] for _ in range(int(rng.integers(1, 30))))]
        shapes.append([[[], *([k] for k in range(size))], dag, star][rng.integers(3)])
        if arity == 2:
            shapes.append(joined(rng, size))
    return shapes


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("places", [60, 4096])
@pytest.mark.parametrize("name", ["tree-lstm", "tree-lstm-3", "forget-all"])
def test_drawn_batches_have_scripts_that_hold(name: str, places: int, seed: int) -> None:
    scripts(name, places, with_pulls(drawn(seed, min(FUNCTIONS[name][1], 3))))


def texts(lengths: list[int]) -> GraphBatch:
    """Make texts for two layers."""
    graphs = []
    for n in lengths:
        edges = {(a, "below", b): [(k, k) for k in range(n)] for a, b in pairwise(LAYERS)}
        edges |= {(a, "before", a): [(k, k + 1) for k in range(n - 1)] for a in LAYERS[:-1]}
        graphs.append(InputGraph.from_types(dict.fromkeys(LAYERS, n), edges, {}))
    batch = GraphBatch.from_graphs(graphs)
    word, label = np.full((2, batch.num_vertices), -1)
    word[batch.of_type("layers.0")] = label[batch.of_type("next")] = 1
    return batch.with_pulls({"word": word, "label": label})


def test_layers_of_texts_repeat_levels_and_read_from_above() -> None:
    """Where the edge to the parent above is a wrong one, the verifier says so."""
    launch = scripts("layers", 4096, texts([30, 30, 30, 12, 5]))
    words = launch.written.cells.reshape(-1, 4)
    repeated = (words[:, 0] & 0xFF == LEVEL) & (words[:, 1] >> 16 > 2) & (words[:, 2] > 1)
    (above, *_) = np.flatnonzero(repeated[:-1] & (words[1:, 3] != 0))
    words[above + 1, 3] += 1
    with pytest.raises(PlanError, match="from a layer above"):
        verify_launch(*launch)


def test_levels_of_many_trees_are_full() -> None:
    """They begin at the roots: from the leaves up, the last graphs would end one row at a time."""
    rng = np.random.default_rng(0)
    trees = [joined(rng, int(rng.integers(4, 30))) for _ in range(60)]
    launch = scripts("tree-fc", 4096, with_pulls(trees))
    inner = sum(len(children) > 0 for tree in trees for children in tree)
    ends = 3 * launch.written.groups  # levels of each group that are not full
    assert instructions(launch)[LEVEL] <= 2 * (inner / MOST_ROWS + ends)


def test_wide_trees_keep_their_places() -> None:
    """The newest rows are first: more rows than places are ready at once in a complete tree."""
    tree: list[list[int]] = [[] for _ in range(256)]
    tree += [[2 * k, 2 * k + 1] for k in range(255)]
    found = instructions(scripts("tree-fc", 100, with_pulls([tree] * 4)))
    assert found[TAKE] > 0
    assert not found[MEET] + found[LEAVE]


def test_edges_to_parents_of_a_level_have_places() -> None:
    """Rows of 20 parents, of which a level takes as many as there are places for."""
    shape = [[], *([0] for _ in range(6)), *([k] for k in range(1, 7) for _ in range(20))]
    scripts("tree-fc", 60, with_pulls([shape] * 4))
