"""Load a model that `vertexrt export` wrote, or that was fetched from the Hugging Face Hub."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vertexrt.api.network import Network
from vertexrt.cli.evaluate import known_words, opened, predictions, read, with_ids
from vertexrt.cli.session import EVALUATION_BATCH, RunOptions, RunSession, compile_model
from vertexrt.data import Dataset, Vocabulary, from_records, load
from vertexrt.data.files import WHOLE
from vertexrt.graph import GraphBatch
from vertexrt.models.catalogue import require_known
from vertexrt.models.own import full_name

__all__ = ["PretrainedModel", "load_pretrained"]


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """Hold a trained network and what it takes to read graphs for it.

    Attributes:
        net: the network, with the parameters that were exported.
        options: of the run that trained it: model, task, format of the data, and so on.
        vocabularies: by pull, what numbers its words; those of "label" are the classes.
        reals: the pulls that are real numbers.
    """

    net: Network
    options: RunOptions
    vocabularies: Mapping[str, Vocabulary]
    reals: tuple[str, ...]

    def read(self, path: str | os.PathLike[str]) -> GraphBatch:
        """Read all graphs of a file, with words numbered as in training.

        Args:
            path: of a file of the format that the model was trained on.
        Raises: UsageError, when there is no such file; DataError, when it cannot be read.
        """
        options = self.options
        dataset = load(
            os.fspath(path),
            format=options.format,
            splits=(WHOLE,),
            vocabularies=self.vocabularies,
            reals=self.reals,
            **options.reading,
        )
        return dataset.splits[WHOLE]

    def predict(self, records: Iterable[Any]) -> list[dict[str, Any]]:
        """Return what `vertexrt predict` writes of graphs, one dict a graph.

        Args:
            records: as `vrt.data.from_records` takes them. Labels are not looked at.
        Raises: as that does; PullError, when they lack what the network reads.
        """
        known = opened(self.vocabularies)
        called = self.options.reading
        names = {called.get(pull) or pull: "" for pull in ("label", "target")}
        names[called.get("word") or "word"] = "word"
        batch, _, ids = from_records(records, vocabularies=known, reals=self.reals, names=names)
        graphs, words = known_words(batch, known)
        dataset = Dataset("", "", {}, self.vocabularies, {}, "")
        session = RunSession(self.options, dataset, self.net)
        return list(with_ids(predictions(session, graphs, words, EVALUATION_BATCH), ids))


def load_pretrained(
    folder: str | os.PathLike[str], *, device: str | None = None, model: str | None = None
) -> PretrainedModel:
    """Load an exported folder.

    **A model of a user's own is a file of Python, which is run.** So it is named: read it first.

    Args:
        folder: with the `model.safetensors`, `config.json` and `vocabularies.json` of an export.
        device: as `vrt.compile` takes it; by default the one it was trained with, in the
            precision of that.
        model: of a model of a user's own its file and class, "FOLDER/my_model.py:MyNet".
    Raises: CheckpointError, that names the file that is missing, damaged or of another library;
        UsageError, when a file would be run that was not named; whatever that file raises.
    """
    stored = read(Path(folder))
    options = stored.options
    if model is None:
        require_known(options.model, str(folder), f"pass model={options.model!r}")
    else:
        options = replace(options, model=full_name(model))
    if device is not None:
        options = replace(options, device=device, precision="float32")
    sizes = (stored.vocabularies, stored.data.counts)
    dataset = Dataset(options.data, options.format, {}, *sizes, "")
    net = compile_model(options, dataset)
    net.load_state({"parameters": stored.judged})
    return PretrainedModel(net, options, stored.vocabularies, stored.reals)
