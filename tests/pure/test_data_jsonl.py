"""Graphs as JSON lines: what is read is what was written, and mistakes name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.messages import text_of
from tests.strategies import ChildLists, dags
from vertexrt.errors import VertexrtError

TREE = {
    "id": "first",
    "children": [[], [], [0, 1]],
    "pulls": {"word": ["good", "film", None], "label": ["+", None, "+"], "x": [1, 0.5, None]},
}
TYPED = {
    "types": {"letter": 3, "word": 2},
    "relations": [
        {"child": "letter", "relation": "before", "parent": "letter", "pairs": [[0, 1]]},
        {"child": "letter", "relation": "spelling", "parent": "word", "pairs": [[1, 0], [2, 1]]},
        {"child": "word", "relation": "next", "parent": "word", "pairs": []},
    ],
    "pulls": {
        "letter": {"letter": ["a", "b", "a"]},
        "word": {"tag": [1, None], "v": [[1, 2], [3, 4]]},
    },
}


def file_of(folder: Path, *records: Any, name: str = "my.jsonl") -> Path:
    path = folder / name
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_children_and_pulls(tmp_path: Path) -> None:
    second = {**TREE, "children": [[1], [], []], "pulls": {**TREE["pulls"], "x": [2, 3, 4]}}  # type: ignore[dict-item]
    path = file_of(tmp_path, TREE, "", second)
    batch, vocabularies, _ = vrt.data.read_jsonl(path, labels=["label"])
    assert batch.graph_ptr.tolist() == [0, 3, 6]
    assert batch.child_ptr.tolist() == [0, 0, 0, 2, 3, 3, 3]
    assert batch.child.tolist() == [0, 1, 4]
    assert vocabularies["word"].words == ("<unk>", "good", "film")
    assert vocabularies["label"].words == ("+",)
    assert batch.pulls["word"].tolist() == [1, 2, -1, 1, 2, -1]  # type: ignore[union-attr]
    assert batch.pulls["label"].tolist() == [0, -1, 0, 0, -1, 0]  # type: ignore[union-attr]
    table = batch.pulls["x"]
    assert isinstance(table, vrt.Rows)
    assert table.table.dtype == np.float32
    assert table.table.tolist() == [1, 0.5, 2, 3, 4]
    assert table.index is not None
    assert table.index.tolist() == [0, 1, -1, 2, 3, 4]


def test_other_forms_give_the_same_graph(tmp_path: Path) -> None:
    """Child lists, edges and a chain; a row of vectors at each vertex; compressed, with a mark."""
    pulls = {"v": [[[1, 2]], [[3, 4]], [[5, 6]]]}
    forms: list[dict[str, Any]] = [
        {"children": [[], [0], [1]]},
        {"vertices": 3, "edges": [[0, 1], [1, 2]]},
        {"chain": 3},
    ]
    text = "\ufeff" + "\r\n".join(json.dumps({**form, "pulls": pulls}) for form in forms)
    path = tmp_path / "my.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    batch = vrt.data.read_jsonl(path, dtype=np.float64).batch
    assert batch.child.tolist() == [0, 1, 3, 4, 6, 7]
    values = batch.pulls["v"]
    assert isinstance(values, np.ndarray)
    assert (values.dtype, values.shape) == (np.float64, (9, 1, 2))
    assert values[3:6].tolist() == pulls["v"]


def test_types_relations_and_pulls_by_type(tmp_path: Path) -> None:
    other = {"types": {"word": 1}, "pulls": {"word": {"tag": [4], "v": [[5, 6]]}}}
    found = vrt.data.read_jsonl(file_of(tmp_path, TYPED, other))
    expected = [
        vrt.InputGraph.from_types(
            {"letter": 3, "word": 2},
            {
                ("letter", "before", "letter"): [(0, 1)],
                ("letter", "spelling", "word"): [(1, 0), (2, 1)],
                ("word", "next", "word"): [],
            },
        ),
        vrt.InputGraph.from_types({"word": 1}, {}),
    ]
    batch = vrt.GraphBatch.from_graphs(expected)
    assert same_structure(found.batch, batch)
    assert found.batch.types is not None
    assert found.batch.types.relations == ("before", "spelling", "next")
    assert found.batch.pulls["letter"].tolist() == [1, 2, 1, -1, -1, -1]  # type: ignore[union-attr]
    assert found.batch.pulls["tag"].tolist() == [-1, -1, -1, 1, -1, 4]  # type: ignore[union-attr]
    rows = found.batch.pulls["v"]
    assert isinstance(rows, vrt.Rows)
    assert rows.table[rows.index[3:]].tolist() == [[1, 2], [3, 4], [5, 6]]  # type: ignore[index]


def same_structure(a: vrt.GraphBatch, b: vrt.GraphBatch) -> bool:
    parts = [(each.graph_ptr, each.child_ptr, each.child) for each in (a, b)]
    equal = all(np.array_equal(x, y) for x, y in zip(*parts, strict=True))
    if a.types is None or b.types is None:
        return equal and a.types is b.types
    names = a.types.names == b.types.names and a.types.relations == b.types.relations
    return equal and names and all(map(np.array_equal, a.types[2:], b.types[2:]))


def test_words_of_other_files_are_numbered_as_in_training(tmp_path: Path) -> None:
    train = vrt.data.read_jsonl(file_of(tmp_path, TREE), labels=["label"])
    dev = {"chain": 2, "pulls": {"word": ["film", "new"], "label": ["+", None], "x": [1, 2]}}
    path = file_of(tmp_path, dev, name="dev.jsonl")
    found = vrt.data.read_jsonl(path, vocabularies=train.vocabularies)
    assert found.batch.pulls["word"].tolist() == [2, 0]  # type: ignore[union-attr]
    assert found.vocabularies == train.vocabularies
    wrong = {"chain": 2, "pulls": {"word": ["film", "new"], "label": ["+", "-"], "x": [1, 2]}}
    path = file_of(tmp_path, dev, wrong, name="dev.jsonl")
    read = lambda **options: vrt.data.read_jsonl(path, **options)  # noqa: E731
    assert text_of(VertexrtError, lambda: read(vocabularies=train.vocabularies)) == (
        f"[{path}, line 2] value 1 of the pull 'label' is '-'; the labels are +; correct it."
    )
    only_words = {"word": train.vocabularies["word"]}
    assert "the pull 'label' has words" in text_of(
        VertexrtError, lambda: read(vocabularies=only_words)
    )
    assert (
        read(vocabularies={**only_words, "label": None}).vocabularies["label"].words[0] == "<unk>"
    )
    assert read(min_count=2).vocabularies["word"].words == ("<unk>", "film", "new")


def test_edges_have_values_in_the_order_that_they_are_given_in(tmp_path: Path) -> None:
    """Edges are given in another order than that of `child`, by hand."""
    values = {"w": [[1, 2], [3, 4], [5, 6]], "kind": ["a", None, "b"]}
    first = {"vertices": 3, "edges": [[1, 2], [0, 1], [0, 2]], "edge_pulls": values}
    second = {"children": [[], [-1, 0]], "edge_pulls": {"w": [None, [7, 8]], "kind": [None, "a"]}}
    path = file_of(tmp_path, first, {"chain": 1}, second)
    found = vrt.data.read_jsonl(path)
    assert found.batch.child.tolist() == [0, 1, 0, -1, 4]
    assert words_of_edges(found) == [None, "a", "b", None, "a"]
    table = found.batch.edge_pulls["w"]
    assert isinstance(table, vrt.Rows)
    assert table.index is not None
    rows = [table.table[row].tolist() if row >= 0 else None for row in table.index]
    assert rows == [[3, 4], [1, 2], [5, 6], None, [7, 8]]
    vrt.data.write_jsonl(tmp_path / "again", found.batch, found.vocabularies)
    again = vrt.data.read_jsonl(tmp_path / "again", vocabularies=found.vocabularies)
    assert words_of_edges(again) == words_of_edges(found)
    twice = file_of(tmp_path, {**first, "pulls": {"w": [1, 2, 3]}})
    text = text_of(VertexrtError, lambda: vrt.data.read_jsonl(twice))
    assert text.startswith(f"[{twice}] 'w' is a pull and an edge pull; ")
    wrong = file_of(tmp_path, first, {"chain": 2, "edge_pulls": {"w": [[1, 2]]}})
    text = text_of(VertexrtError, lambda: vrt.data.read_jsonl(wrong))
    assert text.startswith(f"[{wrong}, line 2] no edge pull 'kind'; line 1 has it; give all ")


def words_of_edges(found: vrt.data.Examples) -> list[str | None]:
    return found.vocabularies["kind"].decode(found.batch.edge_pulls["kind"])  # type: ignore[arg-type]


def test_edges_of_relations_have_values(tmp_path: Path) -> None:
    names = ("child", "relation", "parent", "pairs", "edge_pulls")
    rows: list[tuple[Any, ...]] = [
        ("a", "x", "b", [[0, 1], [1, 0]], {"w": [1.5, 2.5], "kind": ["p", "q"]}),
        ("a", "y", "b", [[1, 1]], {}),
        ("a", "z", "a", [[0, 1]], {"w": [7.0]}),
    ]
    relations = [dict(zip(names, row, strict=True)) for row in rows]
    record = {"types": {"a": 2, "b": 2}, "relations": relations}
    other = {
        "types": {"a": 1, "b": 1},
        "relations": [{**relations[0], "pairs": [], "edge_pulls": {}}],
    }
    found = vrt.data.read_jsonl(file_of(tmp_path, record, other))
    edges = {
        (row[0], row[1], row[2]): {name: values for name, values in row[4].items() if name == "w"}
        for row in rows
    }
    pairs = {(row[0], row[1], row[2]): row[3] for row in rows}
    expected = vrt.InputGraph.from_types({"a": 2, "b": 2}, pairs, None, edges)
    assert np.array_equal(found.batch[0].child, expected.child)
    tables = [graph.edge_pulls["w"] for graph in (found.batch[0], expected)]
    w = [t.table[t.index].tolist() for t in tables]  # type: ignore[union-attr]
    present = [(t.index >= 0).tolist() for t in tables]  # type: ignore[union-attr,operator]
    assert present[0] == present[1]
    assert np.array(w[0])[present[0]].tolist() == np.array(w[1])[present[0]].tolist()
    vrt.data.write_jsonl(tmp_path / "again", found.batch, found.vocabularies)
    again = vrt.data.read_jsonl(tmp_path / "again")
    assert words_of_edges(again) == words_of_edges(found)
    lines = (tmp_path / "again").read_text().splitlines()
    written = {
        each["relation"]: each.get("edge_pulls") for each in json.loads(lines[0])["relations"]
    }
    assert written == {"x": {"w": [2.5, 1.5], "kind": ["q", "p"]}, "y": None, "z": {"w": [7.0]}}
    relations[2]["edge_pulls"] = {}
    wrong = file_of(
        tmp_path, {**record, "relations": [relations[2] | {"edge_pulls": {"w": [1]}}]}, record
    )
    text = text_of(VertexrtError, lambda: vrt.data.read_jsonl(wrong))
    assert text.startswith(f"[{wrong}, line 2] no edge pull 'w' of ('a', 'z', 'a'); line 1 has it")


@settings(max_examples=30, deadline=None)
@given(st.lists(dags(), min_size=1, max_size=4), st.data())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lists: list[ChildLists], data: st.DataObject
) -> None:
    batch = vrt.GraphBatch.from_graphs(map(vrt.InputGraph.from_children, lists))
    count = batch.num_vertices
    reals = st.floats(allow_nan=False, allow_infinity=False, width=32)
    pulls = {
        "whole": data.draw(st.lists(st.integers(-1, 2**31 - 2), min_size=count, max_size=count)),
        "real": np.array(data.draw(st.lists(reals, min_size=count, max_size=count)), np.float32),
    }
    given_ = vrt.GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls)
    path = tmp_path_factory.mktemp("lines") / "some.jsonl.gz"
    vrt.data.write_jsonl(path, given_)
    found = vrt.data.read_jsonl(path).batch
    assert same_structure(found, given_)
    assert np.array_equal(found.pulls["whole"], given_.pulls["whole"])  # type: ignore[arg-type]
    assert np.array_equal(found.pulls["real"], given_.pulls["real"])  # type: ignore[arg-type]


def test_what_is_written_of_types_and_words_is_read(tmp_path: Path) -> None:
    other = {
        "types": {"letter": 1, "word": 1},
        "relations": TYPED["relations"][2:],
        "pulls": {"letter": {"letter": ["c"]}, "word": {"tag": [4], "v": [None]}},
    }
    found = vrt.data.read_jsonl(file_of(tmp_path, TYPED, other))
    again = tmp_path / "again.jsonl"
    vrt.data.write_jsonl(again, found.batch, found.vocabularies)
    assert json.loads(again.read_text().splitlines()[0])["pulls"] == TYPED["pulls"]
    same = vrt.data.read_jsonl(again)
    assert same_structure(same.batch, found.batch)
    assert same.vocabularies == found.vocabularies
    text = text_of(VertexrtError, lambda: vrt.data.write_jsonl(tmp_path / "no" / "x", found.batch))
    assert "cannot be written: No such file or directory" in text


def test_words_of_any_text_come_back_and_other_numbers_are_not_written(tmp_path: Path) -> None:
    words: list[str | None] = [
        "\ud800",
        "a\udcff\0",
        "\x9b\u202e",
        "\U000e0001",
        "caf\u00e9\u00a0\u2028",
        "\x7f\n",
    ]
    words += ["x" * 5000, None]
    found = vrt.data.from_records([{"chain": len(words), "pulls": {"w": words}}])
    path = tmp_path / "x"
    vrt.data.write_jsonl(path, found.batch, found.vocabularies)
    assert path.read_text("utf-8").replace("\n", "").isprintable()
    assert vrt.data.read_jsonl(path).vocabularies == found.vocabularies
    for value in (np.array([np.nan, 1]), np.array([2**31 - 1, 0])):
        graph = vrt.InputGraph.chain(2, {"x": value})
        text = text_of(VertexrtError, lambda g=graph: vrt.data.write_jsonl(path, [g]))  # type: ignore[misc]
        assert text.startswith("[write_jsonl] the pull 'x' is not finite, or above 2147483646; ")


# A line -> what the error says of it.
WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{children", "Expecting property name enclosed in double quotes at column 2"),
    "no object": ("[1]", "a list; expected an object"),
    "too deep": ('{"children": ' + "[" * 100_000, "no JSON that can be read"),
    "a name twice": ('{"chain": 1, "chain": 2}', "the name 'chain' twice"),
    "no structure": ({"pulls": {}}, "the fields pulls; expected one of children, chain"),
    "two structures": ({"chain": 1, "children": [[]]}, "the fields chain, children"),
    "an unknown field": ({"chain": 1, "pull": {}}, "Nearest: 'pulls'"),
    "no edge pulls": ({"chain": 2, "pulls": {"x": [1, 2]}, "edge_pulls": 3}, "edge_pulls is 3"),
    "a pull of three edges": (
        {"vertices": 2, "edges": [[0, 1]], "edge_pulls": {"w": [1, 2, 3]}},
        "the edge pull 'w' has 3 values; expected one for each of 1 edges",
    ),
    "a child out of range": ({"children": [[], [2]]}, "vertex 1 has the child 2"),
    "a cycle": ({"vertices": 2, "edges": [[0, 1], [1, 0]]}, "form a cycle"),
    "no pairs": ({"vertices": 2, "edges": [[0, 1, 2]]}, "expected pairs (child, parent)"),
    "children of text": ({"children": ["a"]}, "expected int32"),
    "no vertex": ({"children": []}, "no vertices"),
    "too many": ({"chain": 2_000_000_000}, "2000000000 vertices; expected at most"),
    "a real count": ({"vertices": 1.5}, "num_vertices is 1.5"),
    "types of text": ({"types": {"a": "b"}}, "sizes['a'] is 'b'"),
    "no types": ({"types": []}, "sizes is []"),
    "relations of text": ({"types": {"a": 1}, "relations": "b"}, "expected a list of objects"),
    "a relation of text": ({"types": {"a": 1}, "relations": ["b"]}, "relation 0 is 'b'"),
    "no parent": ({"types": {"a": 1}, "relations": [{"child": "a"}]}, "no 'relation'"),
    "an unknown type": (
        {
            "types": {"a": 1},
            "relations": [{"child": "a", "relation": "r", "parent": "b", "pairs": []}],
        },
        "edges name the vertex type 'b'",
    ),
    "pulls of a type": ({"types": {"a": 1}, "pulls": {"b": {}}}, "pulls of the type 'b'"),
    "pulls of lists": ({"chain": 1, "pulls": [1]}, "pulls is [1]"),
    "a pull of a number": ({"chain": 1, "pulls": {"x": 1}}, "pulls gives 1 as 'x'"),
    "too few values": ({"chain": 2, "pulls": {"x": [1]}}, "the pull 'x' has 1 values"),
    "no pull": ({"chain": 2}, "no pull 'x'; line 1 has it"),
    "one pull more": ({"chain": 1, "pulls": {"x": [1], "y": [1]}}, "a pull 'y'; line 1 has none"),
    "a word": ({"chain": 1, "pulls": {"x": ["a"]}}, "is 'a'; expected whole numbers as before"),
    "a boolean": ({"chain": 1, "pulls": {"x": [True]}}, "is True"),
    "a large number": ({"chain": 1, "pulls": {"x": [2**31]}}, "is 2147483648"),
    "a low number": ({"chain": 1, "pulls": {"x": [-2]}}, "is -2; expected 0..2147483646"),
    "a vector": ({"chain": 1, "pulls": {"x": [[1]]}}, "value 0 of the pull 'x' is [1]"),
    "no number": (
        {"chain": 2, "pulls": {"x": [0.5, float("nan")]}},
        "value 1 of the pull 'x' is nan",
    ),
    "vertex types": ({"types": {"a": 1}}, "vertex types; the lines before differ"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_names_file_and_line(what: str, tmp_path: Path) -> None:
    line, expected = WRONG[what]
    path = file_of(tmp_path, {"chain": 1, "pulls": {"x": [1]}}, "", line)
    text = text_of(VertexrtError, lambda: vrt.data.read_jsonl(path))
    assert text.startswith(f"[{path}, line 3")
    assert expected in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1], "numbers of shape [2] as before"),
        (["a", "b"], "numbers of shape [2]"),
        ([1, 1e300], "expected finite numbers of float32"),
    ],
)
def test_vectors_that_differ(value: Any, expected: str, tmp_path: Path) -> None:
    lines = [{"chain": 2, "pulls": {"x": [each, None]}} for each in ([1, 2], value)]
    path = file_of(tmp_path, *lines)
    text = text_of(VertexrtError, lambda: vrt.data.read_jsonl(path))
    assert text.startswith(f"[{path}, line 2] value 0 of the pull 'x' is ")
    assert expected in text


def test_real_numbers_that_are_whole_in_a_file(tmp_path: Path) -> None:
    """A negative number is one, not a vertex without a value; a column of nothing is real too."""
    record = {"chain": 3, "pulls": {"x": [-1, 2, None], "y": [None] * 3}}
    path = file_of(tmp_path, record)
    pulls = vrt.data.read_jsonl(path, reals=["x", "y"]).batch.pulls
    for name, values, index in (("x", [-1.0, 2.0], [0, 1, -1]), ("y", [], [-1, -1, -1])):
        table = pulls[name]
        assert isinstance(table, vrt.Rows)
        assert table.index is not None
        assert (table.table.dtype, table.table.tolist()) == (np.float32, values)
        assert table.index.tolist() == index


def test_the_splits_of_a_data_set_agree_in_what_is_real(tmp_path: Path) -> None:
    file_of(tmp_path, {"chain": 1, "pulls": {"x": [0.5]}}, name="train.jsonl")
    file_of(tmp_path, {"chain": 1, "pulls": {"x": [-2]}}, name="dev.jsonl")
    splits = vrt.data.load(tmp_path, format="json-lines").splits
    assert [splits[name].pulls["x"].tolist() for name in ("train", "dev")] == [[0.5], [-2.0]]  # type: ignore[union-attr]


def test_a_file_alone_is_read_as_the_data_of_a_run_were(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"chain": 2, "pulls": {"x": [1, -2]}})
    options: dict[str, Any] = {"format": "json-lines", "splits": ("all",), "vocabularies": {}}
    x = vrt.data.load(path, reals=["x"], **options).splits["all"].pulls["x"]
    assert (x.dtype, x.tolist()) == (np.float32, [1.0, -2.0])  # type: ignore[union-attr]
    text = text_of(VertexrtError, lambda: vrt.data.load(path, **options))
    assert "value 1 of the pull 'x' is -2; expected 0..2147483646, or no value, or real" in text


def test_a_file_without_graphs_or_that_is_none(tmp_path: Path) -> None:
    path = file_of(tmp_path, "", " ")
    assert "no graph; expected at least one" in text_of(
        VertexrtError, lambda: vrt.data.read_jsonl(path)
    )
    assert "cannot be read" in text_of(
        VertexrtError, lambda: vrt.data.read_jsonl(tmp_path / "none")
    )
