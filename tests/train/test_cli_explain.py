"""`vertexrt explain` shows segments, scripts and a disassembly; `warm` compiles all of it ahead."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_cuda_persistent import batch_of
from tests.devices import shim
from tests.functions import FUNCTIONS
from tests.paper_device import PaperDevice, on_paper
from tests.shim_device import put_in_place
from tests.train.cli_runs import ROOT, SMALL, Cli
from vertexrt import data, models
from vertexrt.engine.variant import Passes
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.native.load import compiled_here

SIZES_OF_ALL = {"hidden": 16, "embed": 16, "layers": 2}


@cache
def read(format: str, *reading: tuple[str, Any]) -> data.Dataset:
    return data.load("generated", format=format, **dict(reading))


@cache
def explained(
    model: str,
    processors: int,
    device: str = "cpu",
    of_device: int = 4,
    clusters: int | None = None,
) -> str:
    """Explain a batch of a model of the catalogue without running it.

    Args:
        device: "cpu", "reference", which compiles nothing, or "paper", a GPU that there is not.
    """
    spec = models.get(model)
    options = {name: size for name, size in SIZES_OF_ALL.items() if name in spec.options}
    if device == "paper" and "dropout" in spec.options:  # which runs in turn
        options["dropout"] = 0.0
    dataset = read(spec.format, *spec.reading(options).items())
    function = spec.build(dataset, **options)
    if device == "paper":
        net = on_paper(function, processors, of_device=of_device, clusters=clusters)
    else:  # of the same size whatever the machine's cache
        ways = {"engine": "persistent", "threads": 2, "processors": processors}
        net = vrt.compile(function, device=device, **ways)
    return net.explain_batch(dataset.splits["train"].take(np.arange(4)))


@pytest.mark.parametrize("model", models.names())
def test_every_model_is_explained(model: str) -> None:
    text = explained(model, 2, "reference")
    assert re.search(r"product \S+' ", text)
    assert "Script of processor 0" in text
    text = explained(model, 2, "paper")
    assert "Weights on chip" in text
    assert "Script of all processors" in text
    assert ("Phases that run as cells" in text) or ("run in turn, by all processors" in text)


def of_groups(net: vrt.Network, name: str = "tree-lstm") -> str:
    return net.explain_batch(batch_of(name, 1)).partition("Script of all processors")[0].rstrip()


# What is printed, as `explained.txt` has it: `python -m tests.train.test_cli_explain` writes it.
GOLDEN = ROOT / "tests/train/explained.txt"
EXPLAINED: dict[str, Callable[[], str]] = {
    "a host": lambda: explained("tree-lstm", 2, "reference"),
    "a host, groups of one": lambda: explained("tree-lstm", 1, "reference"),
    "a GPU of 4 blocks": lambda: explained("tree-lstm", 2, "paper"),
    "a GPU of 5 blocks": lambda: explained("tree-lstm", 2, "paper", 5),
    "a GPU of 5 blocks, clusters": lambda: explained("tree-lstm", 2, "paper", 5, 2),
    "a GPU, groups of one": lambda: explained("tree-lstm", 1, "paper", 3),
    "weights in shared memory": lambda: of_groups(
        on_paper(TreeLSTM(10, 8, 192, 5), 4, of_device=4)
    ),
    "gradients on chip": lambda: of_groups(
        on_paper(TreeLSTM(10, 8, 32, 5), 2, passes=Passes(gradients=True))
    ),
    "phases in turn": lambda: of_groups(on_paper(FUNCTIONS["attention"][0](), 2), "attention"),
    "weights that are not held": lambda: of_groups(
        on_paper(TreeLSTM(10, 8, 32, 5), 2, passes=Passes(hold=False))
    ),
}


def sections(text: str) -> dict[str, str]:
    """Cut a text at its titles."""
    _, *words = re.split(r"(?m)^== (.+)\n", text)
    return dict(zip(words[::2], words[1::2], strict=True))


def test_on_a_gpu_cells_are_shown_as_they_are_printed() -> None:
    net = on_paper(TreeLSTM(10, 8, 64, 5), 2)
    net.explain_batch(batch_of("tree-lstm", 1))
    cell = net.explain(kernels="ir").partition("struct side_0_cell_0 {\n")[2].partition("\n  };")[0]
    assert "static constexpr int SLOTS = 2" in cell
    assert "struct stage_0 {" in cell


@pytest.mark.parametrize("title", EXPLAINED)
def test_what_is_explained(title: str) -> None:
    wanted = sections(GOLDEN.read_text(encoding="utf-8"))[title]
    assert EXPLAINED[title]().splitlines() == wanted.splitlines()


def test_the_command_shows_the_persistent_engine(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "explain tree-lstm --data data --engine persistent --processors 2"
    shown = cli(words, *SMALL, "--threads", "2")
    for title in ("F and dF", "Segments of the task programs", "Script of processor"):
        assert title in shown
    put_in_place(monkeypatch, PaperDevice)
    shown = cli(words, *SMALL[:-2], "--device", "cuda", "--threads", "3")
    assert "groups of processors run it as a cell" in shown
    assert "all processors run: kernel for each row, " in shown
    assert "launches: kernel" not in shown
    for title in ("The persistent kernel", "Weights on chip", "Script of all processors"):
        assert title in shown


# What the pages on architecture and lowering show of their example is what is printed.

PAGES = [ROOT / "docs" / name for name in ("architecture.md", "lowering.md")]
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
SHOWN = re.findall(r"```\n\$ vertexrt (explain \$TREE .+)\n((?:.*\n)+?)```", TEXT)
MULTIPROCESSORS = 132  # of an H200
COMMANDS = [
    pytest.param(command, marks=shim) if "--device cuda" in command else command
    for command in dict.fromkeys(command for command, _ in SHOWN)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_shows_what_is_printed(
    command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One tree, as all splits, as the page says before its first command.
    found = re.search(r"^    echo '(.+)' \| tee (.+) > (.+)$", TEXT, re.MULTILINE)
    tree = re.search(r'^    TREE="(.+)"$', TEXT, re.MULTILINE)
    assert found
    assert tree
    for name in [*found[2].split(), found[3]]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(found[1] + "\n", encoding="utf-8")
    if "--device cuda" in command:
        put_in_place(monkeypatch, processors=MULTIPROCESSORS)
    printed = cli(command.replace("$TREE", tree[1]))
    for shown in [block for given, block in SHOWN if given == command]:
        # A block may begin anywhere; `...` stands for lines, or for the end of one.
        rest = printed
        for lines in re.split(r"(?m)^ *\.\.\.\n", shown):
            pattern = re.escape(lines.replace(" ...\n", "<end>\n")).replace("<end>", ".*")
            found = re.search(f"(?m)^{pattern}", rest)
            assert found, lines
            rest = rest[found.end() :]


def test_there_are_blocks_of_both_engines_and_devices() -> None:
    assert len(SHOWN) >= 10
    commands = [command for command, _ in SHOWN]
    for words in (r"--device cuda.*persistent", r"--device cpu.*persistent", "--kernels llvm"):
        assert any(re.search(words, command) for command in commands), words


# What is compiled ahead need not be compiled when it is met.


def test_a_run_compiles_nothing_after_warm(cli: Cli) -> None:
    host = ("--device", "cpu", "--threads", "1")
    assert cli("warm tree-lstm --data data", *SMALL[:-2], *host).startswith(
        "tree-lstm is compiled, "
    )
    before = len(compiled_here)
    cli.train("new", " ".join([*host, "--epochs 1"]))
    assert len(compiled_here) == before


def test_all_kinds_of_a_batch_are_met_at_once_and_nothing_is_run() -> None:
    net = vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", threads=1)
    pulls = {"word": [1, 2, -1], "label": [0, 1, 1]}
    tree = vrt.InputGraph.from_children([[], [], [0, 1]], pulls=pulls)
    leaf = vrt.InputGraph.from_children([[]], pulls={"word": [1], "label": [0]})
    both, before = vrt.GraphBatch.from_graphs([leaf, tree]), dict(net.parameters)
    net.warm(both, vrt.SGD(0.1))
    net.warm(both, outputs=["logits"])
    for name, values in net.parameters.items():
        np.testing.assert_array_equal(values, before[name])
    net.step(vrt.GraphBatch.from_graphs([leaf]), vrt.SGD(0.1))
    shown = net.explain()
    assert "path kind {} word" in shown
    assert "path kind {0,1}" in shown


if __name__ == "__main__":
    text = "".join(f"== {title}\n{show()}\n" for title, show in EXPLAINED.items())
    GOLDEN.write_text(text, encoding="utf-8")
