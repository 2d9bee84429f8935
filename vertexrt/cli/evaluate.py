"""A trained run: `vertexrt eval`, `vertexrt predict`, `vertexrt export`, and what that has written.

`export` writes a folder of the shape that the Hugging Face Hub has; the others read it like a run.

DIR/model.safetensors   the parameters by name
DIR/config.json         what a checkpoint of the run says: options, position, data; the library
DIR/vocabularies.json   words by pull, in the order of their numbers
DIR/FILE.py             of a model of the user
DIR/README.md           the card, which is not read back

No path of the machine that wrote it is in it.
"""

import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.api.checkpoint import read_parameters, write_tensors
from vertexrt.bench.record import aligned
from vertexrt.cli.interrupt import say
from vertexrt.cli.measures import MEASURES, counted, in_words, scores, shown, table_of
from vertexrt.cli.options import CONFIG_NAME, GENERATION, TASKS
from vertexrt.cli.run_folder import RunFolder, find_checkpoint, json_text, read_json
from vertexrt.cli.session import (
    EVALUATION_BATCH,
    RunOptions,
    RunSession,
    StoredRun,
    checked,
    compile_model,
    data_name,
    device_lines,
    load,
    require_graphs,
    spec_of,
    with_model,
)
from vertexrt.cli.session import evaluate as evaluate_split
from vertexrt.data import Loader, catalogue
from vertexrt.data import load as load_data
from vertexrt.data.dataset import END, UNKNOWN, Dataset, OpenVocabulary, Vocabulary
from vertexrt.data.files import WHOLE, expanded
from vertexrt.data.records import line_of
from vertexrt.errors import CheckpointError, UsageError, from_system, number_of, one_line
from vertexrt.graph import GraphBatch
from vertexrt.models.catalogue import is_own
from vertexrt.plain_files import read_plain, write_atomically

MODEL = "model.safetensors"
VOCABULARIES = "vocabularies.json"
CARD = "README.md"
LIBRARY = "vertexrt"
WRITER = "`vertexrt export`"
WRITTEN = f"expected what {WRITER} writes"
FORMAT, VERSION = "vertexrt-parameters", 1
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
DIGITS = 6  # of probabilities and numbers
LONGEST = 100  # words of a translation
UNMEASURED = "Nothing was measured of these parameters."
ACTION = "Export the run again, or fetch the whole folder"


def open_run(run: str) -> StoredRun:
    """Read what `eval` and `predict` are given: an exported folder, a run folder or a checkpoint.

    Raises: UsageError, when nothing is there; CheckpointError, when it is neither, or damaged.
    """
    path = Path(run)
    folder = path.parent if path.name == MODEL else path
    if any((folder / name).is_file() for name in (MODEL, VOCABULARIES)):
        return read(folder)
    return load(find_checkpoint(run))


def read(folder: Path) -> StoredRun:
    """Read an exported folder.

    Raises: CheckpointError, that names the file that is missing, damaged or of another library.
    """
    fields = read_json(folder / CONFIG_NAME, WRITTEN, ACTION)
    if "library_name" not in fields.unread() or fields.text("library_name") != LIBRARY:
        got = "it does not say that the model is of vertexrt"
        raise CheckpointError.at(fields.where, got, WRITTEN, ACTION)
    fields.text("library_version")
    words = read_json(folder / VOCABULARIES, WRITTEN, ACTION)
    parameters = read_parameters(folder / MODEL, FORMAT, VERSION, WRITER)
    checkpoint = vrt.types.Checkpoint(parameters, {}, {}, {}, {})
    stored = checked(folder / MODEL, checkpoint, fields, words)
    if not is_own(stored.options.model):
        return stored
    path, _, title = stored.options.model.rpartition(":")
    model = f"{folder.resolve() / Path(path).name}:{title}"
    return stored._replace(options=replace(stored.options, model=model))


def files_of(stored: StoredRun) -> dict[str, bytes]:
    """Return the files of a folder that `read` reads, by name; the parameters last.

    Raises: CheckpointError, when the file of the user's model cannot be read.
    """
    options, meta = stored.options, dict(stored.checkpoint.meta)
    texts = {"format": FORMAT, "version": str(VERSION)}
    files = {VOCABULARIES: json_text(meta.pop("vocabularies"))}
    library = {"library_name": LIBRARY, "library_version": vrt.__version__}
    files[CONFIG_NAME] = json_text({**library, **meta, "options": asdict(public(options))})
    if is_own(options.model):
        source = Path(options.model.rpartition(":")[0])
        with from_system(
            CheckpointError,
            str(source),
            "the file of the model cannot be read",
            "expected it where the run was trained",
            "Put it back, or name it with --model",
        ):
            files[source.name] = read_plain(source)
    files[MODEL] = write_tensors(stored.judged, texts)
    return files


def public(options: RunOptions) -> RunOptions:
    """Return options without paths: of the model and of data the last part of it, the name."""
    named = any(entry.name == options.data for entry in catalogue())
    path, colon, title = options.model.rpartition(":")
    return replace(
        options,
        model=f"{Path(path).name}{colon}{title}",
        data=options.data if named else Path(options.data).name,
        reading=options.format_options(),
    )


def export(given: Namespace) -> int:
    """Run `vertexrt export`: write the best checkpoint with all that loading it takes; return 0.

    Raises: UsageError, when there is no such run, the folder is not empty or cannot be written, or
        it cannot be pushed; CheckpointError, when the checkpoint or the model's file is damaged or
        missing.
    """
    push = given.push
    if push is not None and REPOSITORY.fullmatch(push) is None:
        got = f"'{push}'" if push.isprintable() else ascii(push)
        raise UsageError.at("--push", got, "expected OWNER/NAME", "Correct it")
    if push is not None:
        _require("huggingface_hub", "--push", "to reach the Hugging Face Hub", "hub")
    stored = load(find_checkpoint(given.run))
    stored = stored._replace(options=with_model(stored.options, given))
    files = {CARD: _card(stored, given.out).encode(), **files_of(stored)}
    out = Path(given.out)
    with from_system(
        UsageError, "OUT", f"{out} cannot be written", "expected a folder", "Give another one"
    ):
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError.at(
                "OUT",
                f"the folder {out} is not empty",
                "expected a new or empty folder",
                "Give another one",
            )
        for name, content in files.items():
            write_atomically(out / name, content)
    say(f"{stored.options.title} of {stored.path}: {out}")
    say(f"its card is {out / CARD}: say there which license it has")
    if push is None:
        return 0
    # Optional, so that it is imported where it is asked for. httpx is what it speaks through.
    hub, httpx = import_module("huggingface_hub"), import_module("httpx")
    try:
        hub.create_repo(push, private=True, exist_ok=True)
        hub.upload_folder(repo_id=push, folder_path=str(out))
    except (OSError, httpx.HTTPError) as error:
        raise UsageError.at(
            "--push",
            f"{push} was not reached ({error}); {out} is written",
            "expected a network, and leave to write there",
            "Log in with `hf auth login`",
        ) from error
    say(f"pushed to {push}; where it is new it is private")
    return 0


def _require(package: str, flag: str, use: str, extra: str) -> None:
    if find_spec(package) is None:
        raise UsageError.at(
            flag,
            f"{package} is not installed",
            f"expected it, {use}",
            f"Get it with: pip install -e '.[{extra}]' in the checkout",
        )


def _card(stored: StoredRun, out: str) -> str:
    """Return the model card: a header that the Hub reads, then what was trained, on what, how well.

    Source: huggingface.co/docs/hub/model-cards.
    """
    options = public(stored.options)
    count = sum(array.size for array in stored.judged.values())
    sizes = [
        f"- {split}: {graphs:,} graphs, {vertices:,} vertices"
        for split, (graphs, vertices) in stored.data.splits.items()
    ]
    state, names = stored.state, ("loss", *TASKS[options.task].measures)
    measured = [
        f"- {line['split']}: " + shown(line, names)
        for line in RunFolder(stored.path.parent).records()
        if line["epoch"] == state.epoch and line["split"] != "train" and not state.batch
    ]
    lines = [
        "---",
        f"library_name: {LIBRARY}",
        *("tags:", f"- {LIBRARY}", f'- "{options.title}"', f"- {options.task}"),
        "# license: name yours here, such as apache-2.0",
        "---",
        *("", f"# {options.title}", ""),
        f"`{options.model}`, {count:,} parameters, trained by vertexrt {vrt.__version__}: "
        f"{TASKS[options.task].text} (`{options.task}`).",
        *("", "## Measured", "", *(measured or [UNMEASURED])),
        *("", "## Data", "", f"`{options.data}` (format `{options.format}`)", "", *sizes),
        *("", "## Use", "", *_use(options, os.path.basename(os.path.realpath(out)))),
    ]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _use(options: RunOptions, folder: str) -> list[str]:
    quoted, model, argument = shlex.quote(folder), "", ""
    if is_own(options.model):
        named = f"{folder}/{options.model}"
        model, argument = f" --model {shlex.quote(named)}", f", model={named!r}"
    lines = [
        f"    vertexrt predict {quoted} --data FILE{model}",
        f"    vertexrt eval {quoted} --data FILE{model}",
        "",
        "```python",
        "from vertexrt.hub import load_pretrained",
        "",
        f"model = load_pretrained({folder!r}{argument})",
        'outputs = model.net(model.read("FILE"))',
        "```",
    ]
    if is_own(options.model):
        file = os.path.basename(options.model.rpartition(":")[0])
        lines += ["", f"`{file}` is a program, and each of these runs it: read it first."]
    return lines


def evaluate(given: Namespace) -> int:
    """Run `vertexrt eval`: print loss and accuracy or perplexity of one split; return 0.

    Of a translation also how well what is generated fits: exact match, and BLEU with `--bleu`.

    Raises: UsageError, when there is no such run or data set; CheckpointError, when the
        checkpoint is damaged or does not fit the data; DataError, when the split has no graphs.
    """
    if given.bleu:
        _require("sacrebleu", "--bleu", "which computes BLEU", "bleu")
    compared = [_evaluated(Namespace(**{**vars(given), "run": run})) for run in given.run]
    if len(compared) > 1:
        say(table_of(compared))
    return 0


def _evaluated(given: Namespace) -> dict[str, str]:
    """Evaluate one run and print what was found; return its row of a table."""
    stored = open_run(given.run)
    session, split = open_trained(stored, given)
    dataset, task = session.dataset, session.task
    graphs = dataset.splits[split]
    say(*device_lines(session))
    if given.data is not None:
        say(*unknown_words(graphs, dataset))
    totals = evaluate_split(session, split, batch_size=given.batch_size)
    assert totals is not None
    totals.require_finite(split)
    told = ", given the words before" if task.name == "translation" else ""
    say(
        f"{split}{told}: {shown(totals.values(task))}; "
        f"{number_of(totals.graphs, 'graph')} of {dataset.name}, "
        f"{totals.graphs_per_s():.0f} graphs/s; {stored.path}"
    )
    made = [words for words, _ in _generated(session, graphs, given)]
    if made:
        known = dataset.vocabularies["label"]
        labels = np.split(np.asarray(graphs.pulls["label"]), graphs.graph_ptr[1:-1])
        right = [known.decode(each[each >= 0][:-1]) for each in labels]  # without <eos>
        share = np.mean([one == other for one, other in zip(made, right, strict=True)])
        text = f"{split}, generated: exact match {100 * share:.2f} %"
        if given.bleu:
            texts = [[" ".join(map(str, words)) for words in side] for side in (made, right)]
            # Optional, so that it is imported where it is asked for.
            bleu = import_module("sacrebleu").corpus_bleu(texts[0], texts[1:], tokenize="none")
            text += f", BLEU {bleu.score:.2f}"
        say(text)
    confusions = counted(totals) if given.classes else {}
    if given.classes and not confusions:
        text = f"the task {task.name}, or {split}, has no classes to count"
        raise UsageError.at("--classes", text, "expected a classification", "Leave it out")
    for title, cells in confusions.items():
        named = dataset.labels or range(len(cells))
        columns = named, cells.sum(1), *(each.round(4) for each in scores(cells))
        rows = [tuple(map(str, row)) for row in zip(*columns, strict=True)]
        say(one_line(title), aligned(("class", "labelled", "precision", "recall", "f1"), rows))
    return {"run": given.run, **in_words(totals.values(task), MEASURES)}


def _generated(
    session: RunSession, graphs: GraphBatch, given: Namespace
) -> Iterator[tuple[list[str | None], float]]:
    """Yield the words that the model generates for each graph, and their score.

    Nothing, where that is not asked for, or the class of the model has no `generate`.
    """
    dataset, options = session.dataset, session.options
    spec = spec_of(options)
    names = [name for name in (*GENERATION, "bleu") if getattr(given, name, None) is not None]
    model = spec.model
    translates = options.task == "translation"
    if not names and not translates:
        return
    if not hasattr(model, "generate") or not (translates or given.command == "predict"):
        got = f"{options.title} is of the task {options.task}"
        if names:
            flag = f"--{names[0].replace('_', '-')}"
            expected = "expected a translation, or to predict with a language model"
            raise UsageError.at(flag, got, expected, "Leave it out, or give it a method generate")
        say(f"{options.title} has no method generate: true words are before each", to=sys.stderr)
        return
    if "carried" in spec.arguments():
        options = replace(options, shape={**options.shape, "carried": True})
    net, known = compile_model(options, dataset), dataset.vocabularies["label"]
    net.load_state({"parameters": session.net.state()["parameters"]})
    chosen: dict[str, Any] = {"max_length": LONGEST, "end": known.index(END)}
    chosen |= {name: getattr(given, name) for name in names if name != "bleu"}
    for batch in Loader(graphs, given.batch_size or EVALUATION_BATCH, shuffle=False):
        for best, *_ in model.generate(net, batch, **chosen):
            words = best.words if best.missing else best.words[:-1]  # without <eos>
            yield known.decode(words), best.score


def open_trained(
    stored: StoredRun, given: Namespace, *, labelled: bool = True
) -> tuple[RunSession, str]:
    """Load one split, with words numbered as the run did, and the network as it was trained.

    Args:
        labelled: False where nothing is compared with labels; words that are not known have
            numbers of their own then, see `known_words`.
    Returns: the session, and the split: `all` for one file, else the one that was named.
    Raises: as `evaluate` does.
    """
    options = with_model(stored.options, given)
    asked = ((name, getattr(given, name)) for name in ("device", "precision", "threads"))
    changes: dict[str, Any] = {name: value for name, value in asked if value is not None}
    split = given.split
    if given.data is not None:  # of its splits nothing is said
        changes |= {"data": data_name(given.data), "reading": options.format_options()}
        if os.path.isfile(expanded(given.data)):
            split = WHOLE
    if "device" in changes:
        changes.setdefault("precision", "float32")  # the run's may be one that only a GPU has
    if "threads" in changes:
        changes["processors"] = None  # which may not divide them
    options = replace(options, **changes)
    spec_of(options)  # a missing file is told before data are read, which may take long
    dataset = load_data(
        options.data,
        format=options.format,
        splits=(split,),
        vocabularies=stored.vocabularies if labelled else opened(stored.vocabularies),
        reals=stored.reals,
        labelled=labelled,
        **options.reading,
    )
    require_graphs(dataset, split)
    for pull, count in dataset.counts.items():
        most = stored.data.counts.get(pull, 0)
        if count > most:
            got = f"it tells {most} classes apart, '{dataset.name}' has {count}"
            if pull != "label":
                got = f"its numbers '{pull}' are below {most}, '{dataset.name}' has {count - 1}"
            raise CheckpointError.at(
                str(stored.path),
                got,
                "expected data of the same task",
                "Give other data, or train a model for these",
            )
    source = options.reading.get(split, dataset.name)  # dev and test may be files of their own
    dataset = replace(dataset, counts=stored.data.counts, name=source)
    session = RunSession(options, dataset, compile_model(options, dataset))
    session.net.load_state({"parameters": stored.judged})
    return session, split


def unknown_words(graphs: GraphBatch, dataset: Dataset) -> Iterator[str]:
    """Yield a line for each pull of words of which the training data did not have some."""
    for name, vocabulary in dataset.vocabularies.items():
        pull = graphs.pulls.get(name)
        if isinstance(pull, np.ndarray) and vocabulary.unknown == UNKNOWN and not pull.all():
            present, unknown = np.count_nonzero(pull >= 0), np.count_nonzero(pull == 0)
            share = f"{unknown:,} of {present:,} ({100 * unknown / present:.1f} %)"
            yield f"{share} of the values of '{name}' are unknown words, {UNKNOWN}"


def predict(given: Namespace) -> int:
    """Run `vertexrt predict`: one JSON object a graph, in the order of the data; return 0.

    Translations, and what language models go on with, are generated.

    Raises: as `evaluate` does; UsageError, when the file cannot be written.
    """
    stored = open_run(given.run)
    session, split = open_trained(stored, given, labelled=False)
    graphs, words = known_words(session.dataset.splits[split], session.dataset.vocabularies)
    say(*device_lines(session), *unknown_words(graphs, session.dataset), to=sys.stderr)
    found: Iterable[dict[str, Any]] = [
        {"prediction": text, "score": round(score, DIGITS)}
        for text, score in _generated(session, graphs, given)
    ] or predictions(session, graphs, words, given.batch_size or EVALUATION_BATCH)
    named = with_ids(found, session.dataset.ids.get(split, ()))
    lines = (f"{line_of(record)}\n" for record in named)
    if given.out is None:
        sys.stdout.writelines(lines)
        return 0
    with from_system(
        UsageError,
        "--out",
        f"{given.out} cannot be written",
        "expected a plain file in a folder that exists",
        "Name another file",
    ):
        write_atomically(Path(given.out), "".join(lines).encode())
    count = number_of(graphs.num_graphs, "graph")
    say(f"predictions of {count} of {session.dataset.name}: {given.out}")
    return 0


def opened(vocabularies: Mapping[str, Vocabulary]) -> dict[str, Vocabulary]:
    """Return vocabularies of which that of "word" numbers all of other data: see `known_words`."""
    words = vocabularies.get("word")
    if words is None or words.unknown != UNKNOWN:
        return dict(vocabularies)
    return {**vocabularies, "word": OpenVocabulary(words.words)}


def known_words(
    graphs: GraphBatch, vocabularies: Mapping[str, Vocabulary]
) -> tuple[GraphBatch, list[str | None]]:
    """Return graphs in which words that are not known are `<unk>`, and the words as they are.

    Args:
        vocabularies: as `opened` returns them, with which the graphs were read.
    Returns: graphs; the value of the pull "word" of each vertex, [] where no words are pulled.
    """
    numbers, known = graphs.pulls.get("word"), vocabularies.get("word")
    if not isinstance(numbers, np.ndarray) or not isinstance(known, OpenVocabulary):
        return graphs, []
    closed = replace(
        graphs, pulls={**graphs.pulls, "word": np.where(numbers < len(known), numbers, 0)}
    )
    names = [*known.numbered, None]  # the last for -1
    return closed, [names[number] for number in numbers]


def with_ids(records: Iterable[dict[str, Any]], ids: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield records with what the data call each graph, if they do; `ids` may be ()."""
    for name, record in zip(ids or repeat(None), records, strict=False):
        yield record if name is None else {"id": name, **record}


def predictions(
    session: RunSession, graphs: GraphBatch, words: Sequence[str | None], size: int
) -> Iterator[dict[str, Any]]:
    """Yield what a network makes of each graph: values by vertex, or by vertex type and vertex.

    Args:
        words: of each vertex of all graphs; [] for none.
        size: graphs at a time.
    """
    push, program = session.task.answer or "loss", session.net.program
    nodes = (program.nodes[k] for k in program.find("push"))
    # Functions without it push a constant, so that each vertex has a row.
    answering = {
        program.sites[node.function].name if graphs.types is not None else ""
        for node in nodes
        if program.nodes[node.inputs[0]].op != "const" and node["name"] == push
    }
    start = 0  # the first vertex of a minibatch
    for batch in Loader(graphs, size, shuffle=False):
        answer = np.asarray(session.net(batch, outputs=(push,))[push], np.float64)
        values: dict[str, Any] = {push: np.round(answer, DIGITS)}  # of each vertex, by name
        same: dict[str, Any] = {}  # of all vertices
        if push == "logits":
            share = np.exp(answer - answer.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            named: list[Any] = [*(session.dataset.labels or range(answer.shape[1]))]
            same = {"classes": named}
            values = {
                # Names as they are, in Python.
                "prediction": np.array(named, object)[answer.argmax(axis=1)],
                "probabilities": np.round(share, DIGITS),
            }
        is_root = np.zeros(batch.num_vertices, np.bool_)
        is_root[batch.roots] = True
        types = batch.types
        for begin, end in pairwise(batch.graph_ptr.tolist()):
            record: dict[str, Any] = {}
            for owner in [""] if types is None else types.names:
                at = np.arange(begin, end)
                if types is not None:
                    at = at[types.of_vertex[at] == types.number(owner)]
                of = record if types is None else {}
                said = [words[vertex] for vertex in start + at] if words else []
                if any(said):
                    of["word"] = said
                if owner in answering:
                    of |= {"roots": np.flatnonzero(is_root[at]).tolist(), **same}
                    of |= {name: value[at].tolist() for name, value in values.items()}
                if types is not None and of:
                    record[owner] = of
            yield record
        start += batch.num_vertices
