"""Benchmarks take turns fairly, compare before they time, and what they write can be read.

Results are read, compared, drawn and put on a page; noise is told from change.
"""

import json
import re
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import messages
from tests.devices import shim
from tests.functions import FUNCTIONS
from tests.runs import Way
from tests.strategies import pulls_for
from vertexrt.bench import compare, figures, measure, page
from vertexrt.bench.ablation import ONE_OFF, ONE_ON
from vertexrt.bench.breakdown import kind_of, sample_host
from vertexrt.bench.measure import Arrays, Disagreement, Draw
from vertexrt.bench.record import (
    FASTER,
    HIDDEN,
    SLOWER,
    Entry,
    Results,
    Spread,
    compared,
    make_entry,
    read,
    table,
    verdict,
)
from vertexrt.bench.run import describe
from vertexrt.cli.main import main
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.pictures import STYLE

GOLDEN = messages.table(__file__, "GOLDEN", "\n")
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


# Numbers: spreads, ratios, noise.


# A ratio, its quartiles and the noise.
VERDICTS = {
    "1.5 1.4 1.6, 1.1": FASTER,
    "0.5 0.4 0.6, 1.1": SLOWER,
    "1.05 1.02 1.08, 1.0": FASTER,
    "1.05 1.02 1.08, 1.06": HIDDEN,  # the control strays as far
    "0.95 0.93 0.98, 1.06": HIDDEN,
    "1.3 0.9 1.6, 1.0": HIDDEN,  # quartiles on both sides
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_spread_that_hides_a_difference_says_so(case: str) -> None:
    ratio, noise = case.split(", ")
    median, low, high = map(float, ratio.split())
    assert verdict(Spread(median, (low, high)), float(noise)) == VERDICTS[case]


def test_entries_are_compared_with_their_heads_beside_the_control() -> None:
    samples = {"head": [10.0, 20.0], "again": [11.0, 22.0], "+ a": [10.5, 21.0], "b": [42.0, 84.0]}
    found = compared({"batch_size": 4}, samples, "again", {"b": {"rows": 3}}, {"b": "+ a"})
    assert [(e.against, e.verdict) for e in found] == [
        (None, None),
        ("head", HIDDEN),
        ("head", HIDDEN),  # no further off than the control
        ("+ a", FASTER),
    ]
    assert table(found) == GOLDEN["a table"]


# Files of results.


@pytest.mark.parametrize(
    "path",
    sorted([*RESULTS.glob("*peers*.json"), *RESULTS.glob("*/*.json")]),
    ids=lambda p: f"{p.parent.name}/{p.stem}",
)
def test_committed_results_are_whole_and_read_as_they_are_written(
    path: Path, tmp_path: Path
) -> None:
    found = read(path)
    found.write(tmp_path / "again.json")
    assert read(tmp_path / "again.json") == found
    assert all(entry in found.select(**entry.key) for entry in found.entries)
    if path.parent != RESULTS:
        assert found.complete
        assert found.machine["revision"]
        assert not [word for word in found.command if Path(word).is_absolute()]


LIKE = (
    '{"schema": 1, "benchmark": "ablation", "command": [], "options": {}, "date": "", "complete": '
    'true, "machine": {}, "jobs": {}, "checks": [], "missing": [], "entries": [{"key": %s, '
    '"unit": "", "better": "", "median": 1, "quartiles": [1, 2], "samples": [1], "against": '
    'null, "ratio": null, "verdict": null, "counts": {}}]}'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not the form of a benchmark's file"),
        ('{"schema": 2}', "schema 2"),
        ("[]", "the record is a list of 0; expected an object with named fields; Give another"),
        ('{"schema": 1, "benchmark": 3}', "benchmark is 3; expected a text"),
        (LIKE % '{"model": "x"}', "the field 'entries.0.key.hidden' is missing"),
        (
            LIKE % '{"part": "time", "model": "x", "hidden": 1}',
            "the field 'entries.0.key.setting' is missing",
        ),
        (LIKE % '{"model": "x", "batch_size": "1"}', "key.batch_size is '1'; expected a who"),
        (
            LIKE.replace("[1, 2]", "[1]").replace("ablation", "x") % "{}",
            "entries.0.quartiles is a list of 1; expec",
        ),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=said):
        read(tmp_path / "x.json")
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "y.json")


# Two files of results.

# What became of a result: times what was measured, its unit, what is better.
CHANGED = {
    "three times the speed": (3.0, "graphs/s", "higher"),
    "a fifth of the speed": (0.2, "graphs/s", "higher"),
    "less than the spread": (1.001, "graphs/s", "higher"),
    "half of the time": (0.5, "us", "lower"),
    "twice the time": (2.0, "us", "lower"),
    "half of the bytes": (0.5, "MB", "lower"),
    "as many bytes": (1.0, "MB", "lower"),
    "another number": (2.0, "rows", ""),
}
COUNTED = ("MB", "rows")


def results(entries: list[Entry], **machine: object) -> Results:
    options = {"model": "tree-lstm", "seconds": 1}
    whole = Results("breakdown", ("vertexrt", "bench", "breakdown"), options)
    whole.machine = {"device": "cpu", "processor": "some <processor>", "threads": 2, **machine}
    whole.entries, whole.complete = entries, True
    return whole


def measured(after: bool) -> Results:
    found = []
    for name, (factor, unit, better) in CHANGED.items():
        spread = [1.0] if unit in COUNTED else np.linspace(1.0, 1.02, 5)
        samples = 100.0 * np.array(spread) * (factor if after else 1.0)
        found.append(make_entry({"variant": name}, samples.tolist(), unit, better))
    return results(found)


def test_compare_tells_change_from_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for after, path in enumerate(paths):
        measured(bool(after)).write(path)
    assert main(["bench", "compare", *map(str, paths)]) == 0
    assert capsys.readouterr().out == f"\n{GOLDEN['changes']}\n"


def test_compare_warns_of_other_machines_and_commands_and_refuses_others() -> None:
    samples = {"a": [1.0, 2.0], "b": [3.0, 6.0]}
    mine, other = (results(compared({}, samples), threads=count) for count in (2, 1))
    other.options = {"model": "tree-lstm", "hidden": 3, "seconds": 9}
    other.complete = False
    first, second, third = compare.warnings(mine, other)
    assert first == "the machines differ in threads: 2 and 1"
    assert second == "the commands differ in hidden: null and 3"
    assert third.endswith(" did not run to its end")
    with pytest.raises(UsageError, match="device 'cpu' and 'cuda'"):
        compare.warnings(mine, results([], device="cuda"))
    with pytest.raises(UsageError, match="no result in both files"):
        compare.changes(mine, results([make_entry({"variant": "z"}, [1.0], "s", "")]))


# Figures and the page.


def assert_grey_ink(path: Path) -> None:
    """Assert that a picture has ink and paper, and that nothing is told by colour."""
    image = pytest.importorskip("matplotlib.image", reason="no matplotlib (extra `plot`)")
    pixels = image.imread(path)[..., :3]
    assert min(pixels.shape[:2]) > 150
    assert 0.005 < float((pixels < 0.5).mean()) < 0.6
    grey = np.abs(pixels - pixels.mean(axis=2, keepdims=True))
    assert float(grey.max()) < 0.02


@pytest.mark.parametrize("name", ["cpu/ablation-lstm-lm", "h200/ablation-tree-lstm"])
def test_an_ablation_is_drawn_with_room_for_all(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is cut off, and no name lies over another."""
    pytest.importorskip("matplotlib", reason="no matplotlib (extra `plot`)")
    from matplotlib.figure import Figure

    kept: list[Any] = []
    record, write = read(RESULTS / f"{name}.json"), Figure.savefig
    for k, entry in enumerate(record.entries):
        if name.startswith("h200") and entry.key["variant"] == "+ 2 streams":  # a long whisker
            record.entries[k] = replace(entry, ratio=Spread(0.9, (0.01, 5_000.0)), verdict=HIDDEN)
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path: kept.append(self) or write(self, path)
    )
    found = figures.draw(record, tmp_path / "ablation.json")
    assert found == tmp_path / "ablation.png"
    assert_grey_ink(found)
    (whole,) = kept
    whole.set_dpi(STYLE["savefig.dpi"])  # pixels of the picture from here on
    for axes, family in zip(whole.axes, (ONE_ON, ONE_OFF), strict=True):
        low, high = axes.get_xlim()
        ratios = [entry.ratio for entry in record.select(family=family) if entry.ratio]
        assert all(low < ratio.low <= ratio.high < high for ratio in ratios)
        inside = axes.get_window_extent()
        for box in (mark.get_window_extent() for mark in axes.texts):
            assert inside.x0 < box.x0 < box.x1 < inside.x1
            assert inside.y0 < box.y0 < box.y1 < inside.y1
        names = [text.get_window_extent() for text in axes.get_yticklabels()]
        assert len(names) > 10
        assert all(above.y0 > below.y1 for above, below in pairwise(names))


def test_a_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib (extra `plot`)")
    record = read(RESULTS / "cpu" / "breakdown-tree-lstm.json")
    record.machine["processor"], record.complete = "some <processor>", False
    record.jobs, record.missing = {"tree-lstm": "trees & words"}, [{"name": "a", "because": "<b>"}]
    record.checks = [{"largest_difference": 1e-7}, {"largest_difference": 3e-7}]
    record.write(tmp_path / "breakdown.json")
    with pytest.raises(DataError, match="holds no results"):
        page.run(str(tmp_path / "none"))
    results([]).write(tmp_path / "empty.json")
    assert main(["bench", "report", str(tmp_path)]) == 0
    assert_grey_ink(tmp_path / "breakdown.png")
    assert not (tmp_path / "empty.png").exists(), "there is nothing to draw"
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    (link,) = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert link.startswith("data:image/png;base64,")
    assert "http" not in text
    assert text.count("This run did not come to its end.") == 1
    for word in (
        "some &lt;processor&gt;",
        "trees &amp; words",
        "2 comparisons before timing; largest relative difference 3.0e-07.",
        "vertexrt bench breakdown",
        "op by op",
        "a: &lt;b&gt;",
    ):
        assert word in text


def test_a_page_without_matplotlib_takes_the_figures_that_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    measured(after=False).write(tmp_path / "breakdown-x.json")
    (tmp_path / "breakdown-x.png").write_bytes(b"a picture")
    page.run(str(tmp_path))
    assert "data:image/png;base64,YSBwaWN0dXJl" in (tmp_path / "report.html").read_text()


# How it is measured.


def ten_chains() -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(length) for length in range(1, 11)])


class Fixed:
    """Return what it was told, whatever the batch; its gradient is `d_w`."""

    def __init__(self, loss: float, d_w: list[float], outputs: list[float]) -> None:
        self._loss, self.d_w, self.outputs = loss, np.array(d_w), np.array(outputs)
        self.w = np.zeros(len(d_w))

    def train(self, batch: GraphBatch, lr: float) -> None:
        self.w = self.w - lr * self.d_w

    def loss(self) -> float:
        return self._loss

    def infer(self, batch: GraphBatch) -> np.ndarray:
        return self.outputs

    def sync(self) -> None:
        pass

    def parameters(self) -> Arrays:
        return {"w": self.w.copy()}

    def set_parameters(self, values: Arrays) -> None:
        self.w = values["w"]


class Watched(Fixed):
    """Note the vertices of each step under a name, and 0 where it is waited for."""

    def __init__(self, name: str, calls: list[tuple[str, int]]) -> None:
        super().__init__(0.0, [0.0], [0.0])
        self.name, self.calls = name, calls

    def train(self, batch: GraphBatch, lr: float) -> None:
        self.calls.append((self.name, batch.num_vertices))
        time.sleep(0.001)

    def sync(self) -> None:
        self.calls.append(("synced", 0))


def test_contenders_take_turns_over_the_same_minibatches() -> None:
    calls: list[tuple[str, int]] = []
    contenders = {name: Watched(name, calls) for name in ("vertexrt", "other")}
    samples = measure.measure(contenders, Draw(ten_chains(), 4), seconds=0.1)
    rounds = len(samples["other"])
    assert rounds >= 3
    synced = [k for k, call in enumerate(calls) if call == ("synced", 0)]
    turn = len(calls) - synced[-3]  # both are synchronised before it, and it is after
    timed = calls[-rounds * 2 * turn :]
    for k in range(rounds):
        both = [timed[(2 * k + who) * turn : (2 * k + who + 1) * turn] for who in (0, 1)]
        first, second = both if k % 2 == 0 else both[::-1]  # who begins changes
        assert {name for name, _ in first[2:-1]} == {"vertexrt"}
        assert {name for name, _ in second[2:-1]} == {"other"}
        for one in both:
            assert one[0] == one[1] == one[-1] == ("synced", 0)
        assert [size for _, size in first] == [size for _, size in second]
    assert all(0 < sample < 4 / 0.001 for sample in samples["vertexrt"])


def test_minibatches_are_whole_and_cover_an_epoch() -> None:
    draw = Draw(ten_chains(), 4)
    taken = draw.take(4)
    assert [len(ids) for ids in taken] == [4] * 4
    assert len({*taken[0].tolist(), *taken[1].tolist()}) == 8
    assert taken[0].tolist() != taken[2].tolist()
    whole = Draw(ten_chains(), 64)
    assert whole.batch_size == 10
    assert sorted(whole.take(1)[0].tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Fixed(2.5, [4.0, 0.0], [1.0]), r"the loss of b differs from that of a by 2\.5e-01"),
        (Fixed(2.0, [4.0, 0.4], [1.0]), r"the gradient of 'w' of b .* by 1\.0e-01"),
        (Fixed(2.0, [4.0, float("nan")], [1.0]), "the gradient of 'w' of b .* by nan"),
        (Fixed(2.0, [4.0, 0.0], [1.5]), "the output of b"),
        (Fixed(2.0, [4.0, 0.0], [1.0, 1.0]), "the output of b .* by inf"),
    ],
)
def test_a_difference_stops_the_run_and_is_named(other: Fixed, text: str) -> None:
    exact = Fixed(2.0, [4.0, 0.0], [1.0])
    record = Results("any", (), {})
    measure.compare(record, {"a": exact, "b": exact}, ten_chains(), "x")
    assert record.checks[0]["largest_difference"] == 0.0
    with pytest.raises(Disagreement, match=rf"^\[check, x\] {text}"):
        measure.compare(record, {"a": exact, "b": other}, ten_chains(), "x")
    assert len(record.checks) == 1
    assert not exact.w.any()
    assert not other.w.any()


@shim
def test_the_host_schedules_and_launches() -> None:
    graphs = [InputGraph.from_children([[], [], [0, 1]], pulls_for(3, k)) for k in range(2)]
    net = Way("shim").compile(FUNCTIONS["tree-lstm"][0]())
    samples = sample_host(net, Draw(GraphBatch.from_graphs(graphs), 2), steps=1, rounds=2)
    assert all(len(values) == 2 and min(values) > 0.0 for values in samples.values())
    assert set(samples) == {"whole", "host: schedule", "host: scripts and launches"}
    assert "prepare" not in vars(net.executor.model), "all is put back"
    assert "_launch" not in vars(net.executor)


SOURCES = {"k_1": "product_tile(a, b)", "k_2": "h = tanh(x)", "k_4": "sum_columns(x)"}
KERNELS = {
    "k_1": "products, ours",
    "k_2": "elementwise, gather, scatter",
    "k_3": "the persistent kernel",
    "k_4": "sums over rows",
    "update_adam": "loss and update",
    "finish_step": "loss and update",
    "Memcpy HtoD (Pinned -> Device)": "copies",
    "sm90_xmma_gemm_f32f32": "products, cuBLAS",
    "something_else": "other",
}


def test_the_kind_of_a_kernel() -> None:
    assert {name: kind_of(name, SOURCES) for name in KERNELS} == KERNELS


def test_the_machine_is_described() -> None:
    machine = json.loads(json.dumps(describe(threads=1)))
    assert machine["cores"] >= 1
    assert machine["processor"]
    assert machine["gpu"] is None
    assert machine["versions"]["numpy"] == np.__version__
