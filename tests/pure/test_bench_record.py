"""What benchmarks write can be read, compared, drawn, put on a page; noise is told from change."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import lines
from vertexrt.bench import compare, figures, page
from vertexrt.bench.record import (
    FASTER,
    HIDDEN,
    SLOWER,
    Entry,
    Results,
    Spread,
    compared,
    make_entry,
    noise_of,
    ratio_of,
    read,
    spread_of,
    table,
    verdict,
)
from vertexrt.cli.main import main
from vertexrt.config import config
from vertexrt.errors import DataError, UsageError
from vertexrt.pictures import can_draw

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def test_ratios_are_taken_round_by_round() -> None:
    drifting = [100.0, 200.0, 400.0]
    ratio = ratio_of([2 * x for x in drifting], drifting)
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)
    assert spread_of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, (2.0, 4.0))


@pytest.mark.parametrize(
    ("ratio", "noise", "said"),
    [
        (Spread(1.5, (1.4, 1.6)), 1.1, FASTER),
        (Spread(0.5, (0.4, 0.6)), 1.1, SLOWER),
        (Spread(1.05, (1.02, 1.08)), 1.0, FASTER),
        (Spread(1.05, (1.02, 1.08)), 1.06, HIDDEN),  # the control strays as far
        (Spread(0.95, (0.93, 0.98)), 1.06, HIDDEN),
        (Spread(1.3, (0.9, 1.6)), 1.0, HIDDEN),  # quartiles on both sides
    ],
)
def test_a_spread_that_hides_a_difference_says_so(ratio: Spread, noise: float, said: str) -> None:
    assert verdict(ratio, noise) == said


def test_noise_is_how_far_a_control_strays() -> None:
    assert noise_of(Spread(1.0, (0.8, 1.1))) == pytest.approx(1.25)
    assert noise_of(Spread(1.0, (0.98, 1.1))) == pytest.approx(1.1)


def entries(scale: float = 1.0, jitter: float = 0.01) -> list[Entry]:
    rng = np.random.default_rng(0)
    found = []
    for size in (16, 64):
        for family, head, names in (
            ("one on", "baseline", ["baseline again", "+ policy frontier", "+ fusion"]),
            ("one off", "all on", ["all on again", "- fusion", "groups of 2"]),
        ):
            samples = {
                name: (scale * size * (k + 1 + jitter * rng.random(7))).tolist()
                for k, name in enumerate([head, *names])
            }
            key: dict[str, str | int] = {"model": "tree-lstm", "hidden": 8, "batch_size": size}
            found += compared(key | {"family": family}, samples, names[0])
    return found


def record(
    benchmark: str = "ablation", found: list[Entry] | None = None, **machine: object
) -> Results:
    whole = Results(
        benchmark, ("vertexrt", "bench", benchmark), {"model": "tree-lstm", "seconds": 1}
    )
    whole.machine = {"device": "cpu", "processor": "some <processor>", "threads": 2, **machine}
    whole.jobs = {"tree-lstm": "trees & words"}
    whole.checks = [{"where": "x", "against": "y", "bound": 1e-4, "largest_difference": 1e-7}]
    whole.missing = [{"name": "streams", "because": "there are none"}]
    whole.entries = entries() if found is None else found
    whole.complete = True
    return whole


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = record()
    whole.write(tmp_path / "a.json")
    again = read(tmp_path / "a.json")
    assert again == whole
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == 1
    assert [e.key["batch_size"] for e in again.select(variant="+ fusion")] == [16, 64]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*peers*.json")), ids=lambda p: p.stem)
def test_committed_results_of_peers_can_be_read(path: Path) -> None:
    found = read(path)
    assert found.benchmark == "peers"
    assert found.entries
    assert any(e.against == "vertexrt" and e.ratio is not None for e in found.entries)


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*.json")), ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_committed_results_are_whole(path: Path) -> None:
    found = read(path)
    assert found.complete
    assert found.machine["revision"]
    assert found.entries
    assert not [word for word in found.command if Path(word).is_absolute()]


LIKE = (
    '{"schema": 1, "benchmark": "ablation", "command": [], "options": {}, "date": "", "complete": '
    'true, "machine": {}, "jobs": {}, "checks": [], "missing": [], "entries": [{"key": %s, '
    '"unit": "", "better": "", "median": %s, "quartiles": [1, 2], "samples": [1], "against": '
    'null, "ratio": null, "verdict": null, "counts": {}}]}'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not the form of a benchmark's file"),
        ('{"schema": 2}', "schema 2"),
        ("[]", "the record is a list of 0; expected an object with named fields; Give another"),
        ('{"benchmark": "engines"}', "the field 'schema' is missing"),
        ("[" * 100_000, "not the form of a benchmark's file .more than 32 levels"),
        ('{"schema": 1, "benchmark": 3}', "benchmark is 3; expected a text"),
        ('{"schema": 1, "benchmark": "peers", "command": 7}', "command is 7; expected a list"),
        (LIKE % ('{"model": "x"}', "1"), "the field 'entries.0.key.hidden' is missing"),
        (
            LIKE % ('{"part": "time", "model": "x", "hidden": 1}', "1"),
            "the field 'entries.0.key.setting' is missing",
        ),
        (
            LIKE % ('{"model": "x", "batch_size": "1"}', "1"),
            "key.batch_size is '1'; expected a who",
        ),
        (
            LIKE.replace("[1, 2]", "[1]").replace("ablation", "x") % ("{}", "1"),
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


def test_compare_tells_change_from_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = record(), record()
    for k, factor in ((0, 3.0), (1, 0.2), (2, 1.001)):
        e = after.entries[k]
        faster = [factor * s for s in e.samples]
        after.entries[k] = make_entry(e.key, faster, e.unit)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for whole, path in zip((before, after), paths, strict=True):
        whole.write(path)
    assert main(["bench", "compare", *map(str, paths)]) == 0
    shown = capsys.readouterr().out
    assert "warning" not in shown
    count = len(before.entries)
    assert f"faster: 1 of {count}" in shown
    assert f"slower: 1 of {count}" in shown
    assert f"hidden by the spread: {count - 2} of {count}" in shown
    found = compare.changes(before, after)
    assert [c.verdict for c in found[:3]] == [FASTER, SLOWER, HIDDEN]
    assert found[0].change == pytest.approx(3.0)


def test_compare_knows_what_is_better() -> None:
    def timed(scale: float, better: str) -> Entry:
        return make_entry({"variant": "x"}, [scale, 1.01 * scale, 1.02 * scale], "us", better)

    def change(better: str) -> compare.Change:
        return compare.change_of(timed(2.0, better), timed(1.0, better))

    assert (change("lower").verdict, change("higher").verdict) == (FASTER, SLOWER)
    assert change("lower").change == pytest.approx(2.0)
    mine, theirs = (make_entry({"variant": "x"}, [n], "MB", "lower") for n in (4.0, 2.0))
    assert compare.change_of(mine, theirs).verdict == compare.OTHER
    assert compare.change_of(mine, mine).verdict == compare.SAME


def test_compare_warns_of_other_machines_and_commands_and_refuses_others() -> None:
    other = record(threads=1)
    other.options = {"model": "tree-lstm", "hidden": 3, "seconds": 9}
    other.complete = False
    said = compare.warnings(record(), other)
    assert [text.partition(":")[0] for text in said[:2]] == [
        "the machines differ in threads",
        "the commands differ in hidden",
    ]
    assert said[2].endswith("did not run to its end")
    with pytest.raises(UsageError, match="device 'cpu' and 'cuda'"):
        compare.warnings(record(), record(device="cuda"))
    with pytest.raises(UsageError, match="no result in both files"):
        compare.changes(record(), record(found=[make_entry({"variant": "z"}, [1.0], "s", "")]))


def breakdown_entries() -> list[Entry]:
    found = []
    for size in (1, 16):
        for k, variant in enumerate(("products", "elementwise", "moves", "whole", "untraced")):
            key: dict[str, str | int] = {"model": "tree-lstm", "hidden": 8, "part": "time"}
            key |= {"setting": "fused", "batch_size": size, "variant": variant}
            found.append(make_entry(key, (1.0 + k, 2.0 + k), "us a step", "lower"))
    return found


def papers_entries() -> list[Entry]:
    """Return some results of each part."""
    found = []

    def add(unit: str, values: tuple[float, ...], **key: str | int) -> None:
        whole = {"model": "tree-lstm", "hidden": 8, **key}
        found.append(make_entry(whole, values, unit, "lower"))

    for size in (1, 16):
        for against, more in (("leaves", {"leaves": 32 * size}), ("batch size", {})):
            for variant, unit in (("schedule", "us a step"), ("step", "us a step"), ("share", "%")):
                add(
                    unit, (size, 2.0 * size), part="schedule", against=against,
                    batch_size=size, variant=variant, **more,
                )  # fmt: skip
        for against in ("batch size", "hidden size"):
            for variant in ("batched", "persistent"):
                add(
                    "graphs/s", (10.0, 11.0), part="throughput", against=against,
                    batch_size=size, variant=variant,
                )  # fmt: skip
        add("MB a step", (size,), part="weights", batch_size=size, variant="batched")
    for cache, seconds in (("cold", 9.0), ("warm", 0.1)):
        add("s", (seconds,), part="compile", engine="batched", cache=cache, variant="first step")
    return found


def peers_entries() -> list[Entry]:
    key: dict[str, str | int] = {"suite": "tree-lstm", "mode": "train"}
    samples = {"vertexrt": [3.0, 4.0], "torch": [1.0, 2.0]}
    return [e for size in (1, 16) for e in compared(key | {"batch_size": size}, samples)]


KINDS = {
    "ablation": entries,
    "breakdown": breakdown_entries,
    "papers": papers_entries,
    "peers": peers_entries,
}
PARTS = ("schedule", "throughput", "weights", "compile")
FIGURES = {"papers": [f"papers-{part}" for part in PARTS], "peers": ["peers"]}


def look(path: Path) -> None:
    """Assert that a picture has ink and paper, and that nothing is told by colour."""
    image = pytest.importorskip("matplotlib.image", reason="no matplotlib (extra `plot`)")
    pixels = image.imread(path)[..., :3]
    assert min(pixels.shape[:2]) > 150
    assert 0.005 < float((pixels < 0.5).mean()) < 0.6
    grey = np.abs(pixels - pixels.mean(axis=2, keepdims=True))
    assert float(grey.max()) < 0.02


@pytest.mark.parametrize("benchmark", ["ablation", "breakdown"])
def test_an_ablation_and_a_breakdown_have_a_figure(benchmark: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib (extra `plot`)")
    found = figures.draw(record(benchmark, KINDS[benchmark]()), tmp_path / f"{benchmark}-x.json")
    assert found == tmp_path / f"{benchmark}-x.png"
    look(found)
    assert figures.draw(record(benchmark, []), tmp_path / "empty.json") is None


@pytest.mark.parametrize("benchmark", FIGURES)
def test_figures_are_drawn_of_every_part(benchmark: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib (extra `plot`)")
    whole = record(benchmark, KINDS[benchmark]())
    assert figures.draw(whole, tmp_path / "x.json") is None, (
        "of these results the package draws nothing"
    )
    found = lines.draw(whole, tmp_path / f"{benchmark}.json")
    assert [path.stem for path in found] == FIGURES[benchmark]
    for path in found:
        look(path)


def test_a_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for benchmark, make in KINDS.items():
        record(benchmark, make()).write(tmp_path / f"{benchmark}.json")
    assert main(["bench", "report", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    links = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert all(link.startswith("data:image/png;base64,") for link in links)
    if can_draw():
        assert len(links) == 2  # of the ablation and of the breakdown
    assert "http" not in text
    assert "some &lt;processor&gt;" in text
    assert "trees &amp; words" in text
    for word in ("vertexrt bench ablation", "+ policy frontier", "streams: there are none"):
        assert word in text


def test_results_of_other_keys_have_a_table_and_a_figure(tmp_path: Path) -> None:
    key: dict[str, str | int] = {"part": "time", "model": "m", "hidden": 1, "variant": "x"}
    found = [make_entry(key | {"setting": "s", "batch_size": n}, [1.0], "us") for n in (1, 2)]
    found.append(make_entry({"part": "time", "note": "", "variant": "y"}, [2.0], "us"))
    assert "note" in table(found)
    if can_draw():
        assert [p.name for p in lines.draw(record("x", found), tmp_path / "x.json")] == ["x.png"]


@pytest.mark.parametrize("check", [False, True])
def test_it_is_said_that_checks_are_timed(
    check: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setenv("VERTEXRT_CHECK", str(int(check)))
    config.cache_clear()
    words = ["--model", "tree-fc", "--leaves", "2", "--hidden", "2", "--batch-sizes", "1"]
    words += ["--device", "reference", "--threads", "1", "--seconds", "0", "--out", str(tmp_path)]
    try:
        assert main(["bench", "breakdown", *words]) == 0
    finally:
        monkeypatch.undo()
        config.cache_clear()
    assert ("VERTEXRT_CHECK=1" in capsys.readouterr().err) == check


def test_a_page_without_matplotlib_takes_the_figures_that_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    record().write(tmp_path / "ablation-x.json")
    (tmp_path / "ablation-x.png").write_bytes(b"a picture")
    page.run(str(tmp_path))
    assert "no figures: matplotlib is not installed" in capsys.readouterr().err
    assert "data:image/png;base64,YSBwaWN0dXJl" in (tmp_path / "report.html").read_text()


def test_an_empty_folder_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no results"):
        page.run(str(tmp_path))
