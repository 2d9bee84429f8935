"""The layout of a parameter store, its views, and how gradients are cleared."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vertexrt as vrt
from vertexrt.engine.parameters import ALIGNMENT, ParameterStore
from vertexrt.errors import UsageError

SHAPES = {"embedding": (7, 5), "w": (6, 5), "b": (6,), "u": (3, 5), "gain": ()}


def store(dtype: str = "float32") -> ParameterStore:
    return ParameterStore(SHAPES, dtype, sparse=["embedding"], stacks=[("u", "w")])


def ranges(made: ParameterStore) -> list[tuple[int, int]]:
    return sorted(
        (made.offsets[name], made.offsets[name] + math.prod(made.shapes[name]))
        for name in made.names
    )


def test_layout() -> None:
    made = store()
    assert made.names == ("embedding", "w", "b", "u", "gain")
    assert made.offsets == {"u": 0, "w": 15, "b": 48, "gain": 64, "embedding": 80}
    assert made.dense_size == 80
    assert made.values.shape == made.gradients.shape == (128,)
    assert not made.values.any()
    assert not made.gradients.any()


@given(
    extents=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), min_size=1, max_size=8),
    dtype=st.sampled_from(["float32", "float64"]),
    data=st.data(),
)
def test_parameters_are_aligned_and_apart(
    extents: list[tuple[int, int]], dtype: str, data: st.DataObject
) -> None:
    shapes: dict[str, tuple[int, ...]] = {f"p{i}": shape for i, shape in enumerate(extents)}
    sparse = data.draw(st.sets(st.sampled_from(sorted(shapes))))
    dense = [name for name in shapes if name not in sparse]
    stack = tuple(name for name in dense if shapes[name][1] == 3)
    made = ParameterStore(shapes, dtype, sparse, [stack] if stack else [])
    found = ranges(made)
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    assert found[-1][1] <= made.values.size
    assert made.values.ctypes.data % 64 == made.gradients.ctypes.data % 64 == 0
    for name in shapes:
        assert made.offsets[name] % ALIGNMENT == 0 or name in stack[1:]
        assert (made.offsets[name] >= made.dense_size) == (name in sparse)
    if stack:
        rows = sum(shapes[name][0] for name in stack)
        start = made.offsets[stack[0]]
        for i, name in enumerate(stack):
            made.value(name)[...] = i
        matrix = made.values[start : start + rows * 3].reshape(rows, 3)
        np.testing.assert_array_equal(matrix, np.concatenate([made.value(n) for n in stack]))


def test_views_are_live() -> None:
    made = store("float64")
    made.value("w")[2, 1] = 3.0
    made.gradient("w")[2, 1] = 4.0
    assert made.values[made.offsets["w"] + 11] == 3.0
    assert made.gradients[made.offsets["w"] + 11] == 4.0
    assert made.value("gain").shape == ()
    assert made.value("w").dtype == made.dtype == np.float64
    assert {name: view.shape for name, view in made.views(made.values).items()} == made.shapes


def test_zero_gradients_leaves_no_trace() -> None:
    made = store()
    made.gradients[: made.dense_size] = 1.0
    made.gradient("embedding")[[1, 4]] = 1.0
    made.touched["embedding"] = np.array([1, 4])
    made.zero_gradients()
    assert not made.gradients.any()
    assert made.touched == {}


def test_rows_that_were_not_touched_are_left() -> None:
    made = store()
    made.gradients[...] = 1.0
    made.touched["embedding"] = np.array([2])
    made.zero_gradients()
    assert not made.gradients[: made.dense_size].any()
    np.testing.assert_array_equal(made.gradient("embedding")[:, 0], [1, 1, 0, 1, 1, 1, 1])


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        store().value("embeding")
    assert str(caught.value) == (
        "[parameters] no parameter is called 'embeding'; the parameters are embedding, w, b, u, "
        "gain; correct the name. Nearest: 'embedding'."
    )
    with pytest.raises(UsageError, match="'x'"):
        store().gradient("x")


@pytest.mark.parametrize(
    ("sparse", "stacks", "text"),
    [
        (["x"], [], "no parameter is called 'x'"),
        (["gain"], [], "sparse parameter 'gain' has the shape ()"),
        ([], [("w", "x")], "no parameter is called 'x'"),
        ([], [("w", "b")], "'w' and 'b' of one stack have the shapes (6, 5), (6,)"),
        ([], [("w", "w")], "'w' cannot join the stack ('w', 'w')"),
        ([], [("w", "u"), ("u", "w")], "'u' cannot join the stack ('u', 'w')"),
        ([], [("w", "gain")], "'gain' cannot join the stack ('w', 'gain')"),
        (["u"], [("w", "u")], "'u' cannot join the stack ('w', 'u')"),
    ],
)
def test_refused_layouts(sparse: list[str], stacks: list[tuple[str, ...]], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ParameterStore(SHAPES, "float32", sparse, stacks)
    assert text in str(caught.value)


def test_refused_shapes_and_types() -> None:
    with pytest.raises(UsageError, match=r"parameter 'w' has the shape \(0, 5\)"):
        ParameterStore({"w": (0, 5)})
    with pytest.raises(UsageError, match="dtype float16; float32 or float64"):
        ParameterStore(SHAPES, "float16")
    assert ParameterStore({}).values.size == 0


def test_more_than_the_machine_has() -> None:
    """The system promises such memory and ends the process when it is written."""
    with pytest.raises(UsageError, match=r"their gradients take 7451 GiB; this machine has .* GiB"):
        ParameterStore({"w": (10**6, 10**6)})


def test_frozen_parameters_come_last_and_have_values_alone() -> None:
    shapes = {"a": (3, 4), "table": (9, 4), "b": (2, 4), "c": (5, 4), "words": (7, 4)}
    frozen = ParameterStore(
        shapes, sparse=["table"], stacks=[("a", "c")], copies=2, frozen=["b", "words"]
    )
    assert frozen.trained == ("a", "table", "c")
    assert sorted(frozen.offsets, key=frozen.offsets.__getitem__) == [
        "a",
        "c",
        "table",
        "b",
        "words",
    ]
    assert frozen.copies.shape == (2, frozen.trained_size)
    assert frozen.offsets["b"] == frozen.trained_size < frozen.values.size
    assert frozen.views(frozen.gradients).keys() == {"a", "table", "c"}
    assert frozen.views(frozen.values).keys() == shapes.keys()
    assert vrt.Adam()._next_update(frozen).moments.shape == (2, frozen.trained_size)
