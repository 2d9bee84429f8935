"""`vertexrt train` writes what it promises, stops when it should, and resumes to the same bits."""

import json
import math
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.device_rows import Taken, put_row, watch_steps
from tests.train.cli_runs import (
    COMMAND,
    ROOT,
    SMALL,
    TRAIN,
    Cli,
    Parts,
    interrupt_after,
    records,
    require_in,
    require_same_checkpoint,
    require_same_run,
    spoil_before,
    start,
    state_of,
    train,
    write_trees,
)
from vertexrt.cli import run_folder
from vertexrt.cli import session as run_state
from vertexrt.cli.interrupt import Interrupt, Interrupted
from vertexrt.cli.options import TASKS, parse
from vertexrt.cli.run_folder import ScalarLog
from vertexrt.cli.session import make_optimizer, open_session, rate_of, resolve
from vertexrt.cli.train import KEPT, WARM_UP
from vertexrt.config import usable_threads
from vertexrt.engine import devices
from vertexrt.engine.executor import Executor
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import NumericError, number_of
from vertexrt.ir.program import Program

SAME = "--epochs 3 --dropout 0.2"  # as of the runs that every folder has
PERSISTENT = "--engine persistent --device cpu --threads 2"
SECONDS = 60


def test_a_run_leaves_what_it_promises(cli: Cli) -> None:
    names = {path.name for path in Path("run").iterdir()}
    assert names == {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}
    lines = records("run")
    assert [(line["epoch"], line["split"]) for line in lines[:-1]] == [
        (epoch, split) for epoch in (1, 2, 3) for split in ("train", "dev")
    ]
    assert lines[-1]["split"] == "test"
    for line in lines:
        assert list(line) == [
            *("epoch", "split", "loss", *TASKS["classification"].measures),
            *("graphs_per_s", "seconds", *(["lr"] if line["split"] == "train" else [])),
        ]
        assert 0.0 <= line["root_accuracy"] <= 1.0
        assert line["graphs_per_s"] > 0
    assert lines[4]["loss"] < lines[0]["loss"]
    dev = [line for line in lines if line["split"] == "dev"]
    state = vrt.load_checkpoint("run/best.safetensors").meta["state"]
    best = max(dev, key=lambda line: (line["root_accuracy"], -line["loss"]))
    assert (state["best"], state["best_loss"]) == (best["root_accuracy"], best["loss"])
    assert state["best_epoch"] == state["epoch"] == best["epoch"]


def test_what_a_run_prints(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = cli.train("a run", "--epochs 1").splitlines()
    assert lines[0] == (
        f"tree-lstm (classification, embed 5, hidden 6, dropout 0.3) on {cli.folder / 'data'} "
        "(24 / 8 / 8 graphs): adagrad, lr 0.05, batch size 8, seed 0, 1 epoch; "
        f"auto, {number_of(usable_threads(), 'thread')}"
    )
    require_in("epoch 1/1  train loss  ...  graphs/s, ", lines[1])
    assert len(lines[1]) < 100
    best, test, *end = lines[-5:]
    require_in("best dev root accuracy  ... (epoch 1 of 1)", best)
    assert test.startswith("test of that checkpoint: loss ")
    assert end == [
        "run: a run",
        "evaluate it: vertexrt eval 'a run' --split test",
        "train it further: vertexrt train --resume 'a run' --epochs 2",
    ]
    # A terminal shows a bar.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.capsys.readouterr()
    assert train("data", "barred", "--epochs", "1") == 0
    shown = cli.capsys.readouterr()
    require_in(f"epoch 1/1   0%| ... {TRAIN}/{TRAIN} [ ... , loss  ...  graphs/s]", shown.err)
    assert shown.out.splitlines()[1].startswith("epoch 1/1  train loss ")
    assert train("data", "quiet", "--epochs", "1", "--quiet") == 0
    shown = cli.capsys.readouterr()
    assert shown.out.startswith("best dev")
    assert shown.err == ""


@pytest.mark.parametrize(
    "words",
    [
        SAME,
        f"{SAME} --average 0.75",
        "--epochs 3 --dropout 0.2 --device cpu --threads 2 --optimizer adam",
    ],
)
def test_resume_after_interruptions(words: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three minibatches an epoch: inside of one, inside of the next, at its end."""
    whole = {SAME: "run", f"{SAME} --average 0.75": "averaged"}.get(words, "whole")
    if whole == "whole":
        cli.train(whole, words)
    done = 0
    for minibatches in (1, 3, 2):
        with monkeypatch.context() as patch:
            interrupt_after(patch, minibatches)
            if done:
                shown = cli("train --resume again", code=143)
            else:
                shown = cli.train("again", words, code=143)
        require_in("checkpoint again/last.safetensors written", shown)
        require_in("continue it: vertexrt train --resume again", shown)
        done += minibatches
        state = state_of("again")
        assert state["epoch"] * 3 + state["batch"] == done
    cli("train --resume again")
    require_same_run("again", whole)


def test_a_run_goes_on_with_more_epochs_where_its_data_have_moved(cli: Cli) -> None:
    """--data was refused, and without it nothing could be found."""
    write_trees(Path("first"))
    cli.train("again", "--epochs 2 --dropout 0.2", data="first")
    with Path("again/metrics.jsonl").open("a") as file:  # a crash before the checkpoint leaves it
        file.write(json.dumps({"epoch": 3, "split": "train", "loss": 0.0}) + "\n")
    Path("first").rename("moved")
    more = "train tree-lstm --resume again --epochs 3"
    assert "there is no " in cli(more, code=2)
    other = write_trees(cli.folder / "other", train=TRAIN - 1)
    told = f"[--resume] the  ... splits of '{other}' are not those of again"
    require_in(told, cli(f"{more} --data other", code=1))
    cli(f"{more} --data moved")
    require_same_run("again", "run")


def test_patience_ends_a_run(cli: Cli) -> None:
    shown = cli.train("still", "--epochs 9 --patience 2 --lr 0")
    assert "stopped early: no better dev value for 2 epochs" in shown
    assert records("still")[-2]["epoch"] == 3
    cli("train --resume still --patience 3")
    assert records("still")[-2]["epoch"] == 4


def test_a_run_is_repeated_from_its_configuration(cli: Cli) -> None:
    sgd = "--momentum 0.5 --optimizer sgd --lr 0.01"
    cli.train("first", f"--epochs 1 --set arity=3 {sgd}")
    stored = json.loads(Path("first/config.json").read_text())
    assert (stored["model"], stored["set"], stored["hidden"]) == ("tree-lstm", {"arity": 3}, 6)
    cli("train --config first/config.json --out again")
    require_same_checkpoint("first/best.safetensors", "again/best.safetensors")
    # The command line comes first.
    given = parse([*["train", "--config", "first/config.json", "--lr", "0.5"], "--set", "arity=2"])
    assert (given.lr, given.set, given.momentum) == (0.5, [("arity", 2)], 0.5)
    # A run folder stands for its configuration.
    assert "TreeLSTM: 3 children, state c[6], h[6]" in cli("explain first")


def test_a_full_path_that_nobody_would_type(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_trees(cli.folder / "a\nb" / "data").parent
    monkeypatch.chdir(folder)
    cli.train(str(cli.folder / "typed"), "--epochs 1")
    monkeypatch.chdir(cli.folder)
    cli("train --resume typed --epochs 2")


# Averages of parameters.


def test_an_average_follows_its_definition_and_training_does_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run again has the same bits, and its parameters after each update."""
    plain, found = (run_state.load(Path(run, "last.safetensors")) for run in ("run", "averaged"))
    expected = {k: value.copy() for k, value in open_session(plain.options).net.parameters.items()}

    def after(taken: Taken) -> None:
        store = taken.executor.model.store
        store.refresh()
        for name, value in expected.items():
            value[...] = 0.75 * value + 0.25 * store.value(name)

    with monkeypatch.context() as patch:
        watch_steps(patch, after=after)
        cli.train("again", SAME)
    require_same_run("again", "run")
    assert plain.checkpoint.average == {}
    assert plain.judged is plain.checkpoint.parameters
    for name, value in plain.checkpoint.parameters.items():
        np.testing.assert_array_equal(found.checkpoint.parameters[name], value)
        np.testing.assert_allclose(found.judged[name], expected[name], rtol=1e-5, atol=1e-7)
    # Dev is judged by the average.
    session = open_session(found.options)
    dev, losses = session.dataset.splits["dev"], []
    for values in (found.checkpoint.average, found.checkpoint.parameters):
        session.net.parameters.update(values)
        losses.append(session.net(dev)["loss"].sum() / dev.num_graphs)
    *_, line = (r for r in records("averaged") if r["split"] == "dev")
    assert line["loss"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[1] - losses[0]) > 1e-3
    assert f"dev: loss {line['loss']:.4f}" in cli("eval averaged/last.safetensors")


def test_averages_that_are_not_those_of_the_run(cli: Cli) -> None:
    parts, path = Parts(Path("averaged/last.safetensors")), Path("averaged/last.safetensors")

    def complaint() -> str:
        parts.write(path)
        return cli("train --resume averaged --epochs 4", code=1)

    parts.tensors["average/b"][0] = np.nan
    assert "holds the average 'b' that is not finite" in complaint()
    del parts.tensors["average/b"]
    assert "missing ['b'], unknown []; the parameters of the average" in complaint()
    parts.tensors = {k: v for k, v in parts.tensors.items() if not k.startswith("average/")}
    assert "0 averages, --average 0.75" in complaint()


# Learning rates that change over the epochs.


def test_schedules_are_those_of_the_library(cli: Cli) -> None:
    options = replace(run_state.load(Path("run/last.safetensors")).options, epochs=6, lr=0.5)
    for name, wanted in {
        "constant": [0.5] * 6,
        "cosine": map(vrt.schedules.cosine(0.5, steps=6), range(6)),
        "linear": map(vrt.schedules.linear(0.5, 0.0, steps=6), range(6)),
        "halving": [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625],
    }.items():
        found = [rate_of(replace(options, schedule=name), epoch) for epoch in range(6)]
        assert found == pytest.approx([*wanted]), name


# Event files of TensorBoard, which hold the lines of metrics.jsonl; read back here.


def event_files(run: str) -> list[Path]:
    return sorted(Path(run).glob("events.out.tfevents.*"))


def require_logged(run: str) -> None:
    """Assert that event files hold the metrics, each once.

    Records (their length, its check sum, an event, its check sum) are read as TensorBoard does: a
    start at a step drops what follows.
    """
    from tensorboardX.proto.event_pb2 import Event

    found: dict[tuple[str, int], float] = {}
    for content in [path.read_bytes() for path in event_files(run)]:
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.WhichOneof("what") == "session_log":
                found = {key: value for key, value in found.items() if key[1] < event.step}
            for each in event.summary.value:
                assert each.tag.endswith("/test") or (each.tag, event.step) not in found
                found[each.tag, event.step] = each.simple_value
    wanted = {
        (f"{name}/{line['split']}", line["epoch"]): value
        for line in records(run)
        for name, value in line.items()
        if name not in ("epoch", "split") and value is not None
    }
    assert {key[0] for key in found} == {key[0] for key in wanted}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)  # float32
    assert ("loss/train", 9) not in found


def test_event_files_hold_the_metrics_and_rates_go_on(cli: Cli) -> None:
    pytest.importorskip("tensorboardX")
    cli.train("logged", "--epochs 2 --schedule linear --lr 0.1 --log tensorboard")
    assert len(event_files("logged")) == 1
    lost = ScalarLog()  # of an epoch whose checkpoint was not written any more
    lost.add(Path("logged"), [{"epoch": 9, "split": "train", "loss": -1.0}])
    lost.close()
    time.sleep(1.1)  # names of event files count seconds
    cli("train --resume logged --epochs 3 --log tensorboard")
    before = event_files("logged")
    assert len(before) == 3
    require_logged("logged")
    cli("train --resume logged --epochs 4")
    assert event_files("logged") == before  # only where it is asked for
    rates = [line["lr"] for line in records("logged") if "lr" in line]
    assert rates == pytest.approx([0.1, 0.05, 0.1 / 3, 0.025])


def test_a_missing_library_stops_the_run_before_it_begins(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tensorboardX", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    shown = cli.train("logged", "--log tensorboard", code=2)
    assert "pip install -e '.[tensorboard]' in the checkout" in shown
    assert not Path("logged").exists()


# Processors of a persistent engine, and their timeline.


def test_a_run_writes_the_timeline_of_its_first_minibatches(cli: Cli) -> None:
    words = f"{PERSISTENT} --batch-size 3 --epochs 1"
    told = f"timeline of {KEPT} minibatches: trace.json"
    assert told in cli.train("traced", f"{words} --trace trace.json")
    slices = [
        e for e in json.loads(Path("trace.json").read_text())["traceEvents"] if e["ph"] == "X"
    ]
    assert {e["args"]["run"] for e in slices} == set(range(KEPT))
    assert any(e["name"] == "path.0" for e in slices)
    told = f"no timeline: it starts after {WARM_UP} minibatches, and there were 1"
    shown = cli.train("plain", f"{PERSISTENT} --batch-size 24 --epochs 1 --trace none.json")
    assert told in shown
    assert not Path("none.json").exists()


def test_processors_are_kept_with_the_run(cli: Cli) -> None:
    losses = {}
    for count in (2, 1):  # dropout draws anew for each group
        cli.train(f"of {count}", f"{PERSISTENT} --epochs 1 --dropout 0 --processors {count}")
        losses[count] = [line["loss"] for line in records(f"of {count}")]
    options = vrt.load_checkpoint("of 2/last.safetensors").meta["options"]
    assert (options["processors"], options["threads"]) == (2, 2)
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    cli("train --resume 'of 2' --epochs 2")
    cli("train --resume 'of 2' --epochs 3 --threads 3 --processors 3")
    cli("eval 'of 2' --threads 1")
    # Without threads there are whole groups.
    cli.train("of 5", "--engine persistent --device cpu --epochs 1 --processors 5")
    assert vrt.load_checkpoint("of 5/last.safetensors").meta["options"]["threads"] % 5 == 0


# What stops a run.


def test_a_loss_that_is_not_finite_stops_training(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_before(monkeypatch, 5)  # the second minibatch of the second epoch
    shown = cli.train("spoilt", "--epochs 3", code=1)
    require_in("vertex ... The last good checkpoint is spoilt/last.safetensors.\n", shown)
    assert state_of("spoilt")["epoch"] == 1
    assert [line["epoch"] for line in records("spoilt")] == [1, 1]


def test_parameters_that_are_not_finite_are_never_saved(cli: Cli) -> None:
    session = open_session(resolve(parse(["train", "tree-lstm", "--data", "data", *SMALL])))
    session.net.executor.model.store.value("b")[0] = math.inf
    text = r"^\[save_checkpoint\] the parameter 'b' is not finite; finite numbers; nothing was"
    with pytest.raises(NumericError, match=text):
        run_state.save(Path("new"), session, make_optimizer(session), run_state.RunState())
    assert not Path("new").exists()


def test_an_interrupt_before_training_leaves_at_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = devices.module_of("reference")

    def compile_for(traced: Program, options: CompileOptions) -> Executor:
        signal.raise_signal(signal.SIGINT)
        return row.compile_for("reference", traced, options)

    put_row(monkeypatch, "reference", row, compile_for)
    before = signal.getsignal(signal.SIGINT)
    assert "interrupted before the end" in cli.train("new", code=130)
    assert not Path("new").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_does_not_wait() -> None:
    with Interrupt() as interrupt:
        interrupt.defer()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.number == signal.SIGTERM
        with pytest.raises(Interrupted) as stop:
            signal.raise_signal(signal.SIGINT)
    assert stop.value.number == signal.SIGINT


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_a_process_writes_a_checkpoint(
    number: signal.Signals, code: int, cli: Cli
) -> None:
    """It ends the run after the current minibatch, and the run goes on to the same bits."""
    run = cli.folder / "signalled"
    data = ("--data", str(cli.folder / "data"), "--out", str(run))
    process = start(
        *COMMAND, "train", "tree-lstm", *SMALL, *data, "--epochs", "40", "--dropout", "0.2"
    )
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tree-lstm (classification, ")
    assert process.stdout.readline().startswith("epoch 1/40")
    process.send_signal(number)
    _, err = process.communicate()
    watchdog.cancel()
    assert process.returncode == code
    require_in(f"{number.name} came; stopped at epoch ", err)
    require_in(f"continue it: vertexrt train --resume {run}", err)
    assert "Traceback" not in err
    epoch = state_of(run)["epoch"]
    assert 1 <= epoch < 40
    for each in ("signalled", "run"):
        cli(f"train --resume {each} --epochs {max(epoch + 1, 3)}")
    require_same_run("signalled", "run")


def test_training_goes_on_without_a_reader(cli: Cli) -> None:
    words = f"train tree-lstm --data {cli.folder}/data --out {cli.folder}/new --epochs 2"
    line = f"{' '.join([*COMMAND, words, *SMALL])} | head -1"
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "nobody reads the output any more; training goes on without it" in done.stderr
    assert state_of("new")["epoch"] == 2


def test_a_default_folder_is_fresh(cli: Cli) -> None:
    first, second = run_folder.fresh(None, "tree-lstm"), run_folder.fresh(None, "tree-lstm")
    assert first.path != second.path
    assert first.path.parent == Path("runs")
    assert first.path.name.startswith("tree-lstm-2")
