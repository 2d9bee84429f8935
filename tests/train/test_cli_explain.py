"""`vertexrt explain` shows segments, scripts and a disassembly; `warm` compiles all of it ahead."""

import re
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
from vertexrt.engine import explain_host
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


def test_tree_lstm_level_has_one_exchange_each_way() -> None:
    text = explained("tree-lstm", 2)
    found = re.search(r"\n  path\[(\d+)\]: 1 segment; waits for the tiles of the children", text)
    k = int(found[1])
    path = text.partition(f"  path[{k}]:")[2].partition(f"\n  path'[{k + 1}]:")[0]
    assert "own units of all rows: fused 2 ops, product u_iou float[48]" in path
    assert "every processor makes for itself: %9 add float[16], %21 concat float[2,16]" in path
    assert "read in full from other processors: h" in path
    back = text.partition(f"\n  path'[{k + 1}]:")[2].partition(f"\n  final[{k + 2}]:")[0]
    assert back.startswith(" 2 segments\n")
    assert re.search(rf"path'\[{k + 1}\]\.1 .*product u_iou' .*product u_f' ", back)
    assert "exchanged before it: %86 concat float[48], %75 concat float[2,16]" in back
    assert re.search(r"\n *path: 11 tasks, 11 instructions, 1.00 exchanges a task", text)
    # Statistics agree with the script.
    count = int(re.search(r"instructions: (\d+); waits", text)[1])
    stages = re.findall(r"(\d+) tasks, (\d+) instructions", text)
    assert sum(int(n) for _, n in stages) == count
    assert f"Script of processor 0, the first 16 of {count} instructions" in text
    script = text.partition(f"of {count} instructions\n")[2].splitlines()
    assert len(script) == explain_host.HEAD
    assert script[0] == "    0 eager[0].0 rows 0..29"


def test_groups_of_one_exchange_nothing() -> None:
    text = explained("tree-lstm", 1)
    assert "persistent, 2 x 1 processors" in text
    assert "exchanged before it" not in text
    assert "; waits: 0" in text


@pytest.mark.parametrize("model", models.names())
def test_every_model_is_explained(model: str) -> None:
    text = explained(model, 2, "reference")
    assert re.search(r"product \S+' ", text)
    assert "Script of processor 0" in text
    text = explained(model, 2, "paper")
    assert "Weights on chip" in text
    assert "Script of all processors" in text
    assert ("Phases that run as cells" in text) or ("run in turn, by all processors" in text)


def test_on_a_gpu_groups_and_how_they_meet_are_shown() -> None:
    text = explained("tree-lstm", 17, "paper", 18)
    assert "; kernel calls: 1 kernel, which runs all of them and the end of the step" in text
    assert "processors: 18 blocks of 256 threads; groups: 1 of 17 processors" in text
    assert "processors without a group: 1" in text
    assert "groups are no clusters: they send words with flags, in " in text
    text = explained("tree-lstm", 2, "paper", 5, clusters=2)
    assert "processors: 4 blocks of 256 threads; groups: 2 of 2 processors" in text
    assert "groups are clusters: they meet at barriers in shared memory" in text
    assert "waits for no other on the path" in explained("tree-lstm", 1, "paper", 3)


def test_on_a_gpu_the_weights_that_a_processor_holds_are_shown() -> None:
    text = explained("tree-lstm", 2, "paper")
    forward, back = text.partition("Weights on chip")[2].split("backward: ", 1)
    assert "in registers while there is room in 144 of each thread, then in shared mem" in forward
    assert "u_iou: 24 rows of 16, " in forward
    assert "u_f: 8 rows of 16, " in forward
    assert "u_iou: 8 columns of 48, " in back
    held, rows = re.search(
        r": ([\d,]+) in registers, 0 in shared[^\n]*\n(.*)", forward, re.S
    ).groups()
    each = re.findall(r"([\d,]+) in registers", rows)
    assert int(held.replace(",", "")) == sum(int(n.replace(",", "")) for n in each)
    elements = 2 * (48 * 16 + 16 * 16)  # both sides
    groups = 4 // 2
    assert f"loaded a step, by all groups: {4 * elements * groups:,} bytes" in text


def test_on_a_gpu_weights_in_shared_memory_are_shown() -> None:
    net = on_paper(TreeLSTM(10, 8, 192, 5), 4, of_device=4)
    text = net.explain_batch(batch_of("tree-lstm", 1))
    sizes = re.search(r"forward: ([\d,]+) in registers, ([\d,]+) in shared memory", text).groups()
    registers, shared = (int(n.replace(",", "")) for n in sizes)
    assert registers > 0
    assert shared > 0
    assert registers + shared == 4 * 192 * 256  # a quarter of four matrices; 192 have room for 256


def test_on_a_gpu_gradients_are_shown_where_they_are_made() -> None:
    after = "gradients made after the path, by products over all rows: u_iou, u_f"
    assert after in explained("tree-lstm", 2, "paper")


def test_on_a_gpu_cells_are_shown_as_they_are_printed() -> None:
    net = on_paper(TreeLSTM(10, 8, 64, 5), 2)
    net.explain_batch(batch_of("tree-lstm", 1))
    cell = net.explain(kernels="ir").partition("struct side_0_cell_0 {\n")[2].partition("\n  };")[0]
    assert "static constexpr int SLOTS = 2" in cell
    assert "struct stage_0 {" in cell


def test_on_a_gpu_phases_in_turn_are_shown_with_the_reason() -> None:
    net = on_paper(FUNCTIONS["attention"][0](), 2)
    text = net.explain_batch(batch_of("attention", 1))
    in_turn = text.partition("Phases of the path that run in turn, by all processors\n")[2]
    assert re.match(r"  forward: vectors of .* elements\n  backward: vectors of", in_turn)
    net = on_paper(TreeLSTM(10, 8, 32, 5), 2, passes=Passes(hold=False))
    text = net.explain_batch(batch_of("tree-lstm", 1))
    assert "  forward: weights are not held\n  backward: weights are not held\n" in text
    assert "those of phases in turn are in memory, and read by each product" in text


def test_on_a_gpu_scripts_are_those_that_run() -> None:
    text = explained("tree-lstm", 2, "paper")
    script = text.partition("Script of all processors\n")[2].partition("\n\n")[0].splitlines()
    count, rounds = re.match(r"  instructions: (\d+); rounds: (\d+); ", script[0]).groups()
    ops = [re.match(r"    (\S+?)(?:, outside the groups)?: (\d+) ops in (\d+)", x) for x in script]
    assert [m[1] for m in ops if m] == ["eager", "path", "lazy", "path'", "final"]
    special = [x.strip() for x, m in zip(script[1:], ops[1:], strict=True) if not m]
    weights = "weights are loaded, and groups follow their scripts"
    check = "whether what the update makes is finite"
    assert special == [f"forward {weights}", f"backward {weights}", "loss", check, "update", "end"]
    assert sum(int(m[2]) for m in ops if m) + len(special) == int(count)
    assert int(rounds) > sum(int(m[3]) for m in ops if m)
    cells = text.partition("Phases that run as cells")[2].partition("\n\n")[0].splitlines()
    assert re.match(r"  forward: \d cells?, up to 8 rows a level, \d+ places for rows", cells[1])
    assert re.match(r"    group 0: \d+ rows in \d+ levels, \d+ taken from memory", cells[2])


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
