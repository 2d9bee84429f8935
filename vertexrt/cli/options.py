"""Hold the options of a run, and read them back from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from vertexrt import models
from vertexrt.api.json_record import JsonRecord
from vertexrt.cli.limits import (
    OPTIMIZERS,
    POLICIES,
    REAL,
    SCHEDULES,
    WHOLE,
    WITH_MOMENTUM,
)
from vertexrt.cli.tasks import TASKS
from vertexrt.data import FORMATS
from vertexrt.engine.devices import DEVICES, DTYPES, ENGINES, PRECISIONS
from vertexrt.models import ModelSpec
from vertexrt.models.catalogue import is_own

SHAPE = ("hidden", "embed", "dropout", "layers")  # options of models that have flags of their own
READING = ("pieces", "binary", "min_count", "dev", "test")  # those of formats
OF_MODELS = ("crf", "layers", "letters", "pyramid", "streams")  # of formats: the model decides


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Hold everything that a run's result depends on; kept in each of its checkpoints.

    Attributes:
        model, task, data, format: names; `model` and `data` are full paths where they are paths.
        reading: options of the format by name.
        shape: options of the model by name (hidden, embed, dropout, and what --set names).
        epochs, patience: when to stop; patience 0 never stops early.
        batch_size, window, seed, policy, dtype, device, precision, engine, threads: as on the
            command line.
        processors: of a group of the persistent engine; None where it chooses.
        shares: that each minibatch is cut into for several processes; None for one a process.
        optimizer, lr, momentum, weight_decay, clip_norm: the update; clip_norm 0 does not clip.
        schedule: of the learning rate, over epochs: see `rate_of`.
        average: share that the average of the parameters keeps at each update; 0 takes none.
    """

    model: str
    task: str
    data: str
    format: str
    reading: dict[str, Any]
    shape: dict[str, Any]
    epochs: int
    patience: int
    batch_size: int
    window: int
    seed: int
    optimizer: str
    lr: float
    momentum: float
    weight_decay: float
    clip_norm: float
    schedule: str
    average: float
    policy: str
    dtype: str
    device: str
    precision: str
    engine: str
    threads: int
    processors: int | None
    shares: int | None

    @property
    def title(self) -> str:
        """Return the name of the model, without the path of its file."""
        return title_of(self.model)

    def as_given(self) -> dict[str, Any]:
        """Return the options as a file for --config has them, by the names of their flags."""
        found = asdict(self)
        shape, reading = found.pop("shape"), found.pop("reading")
        flags = {name: shape.pop(name) for name in SHAPE if name in shape}
        found |= {**reading, **flags, "set": shape}
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the options for the meta data of a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: JsonRecord) -> Self:
        """Read the options back.

        Raises: CheckpointError, when one is missing, unknown, or not what the command line takes.
        """
        found: dict[str, Any] = {
            **_of_model(fields),
            "data": fields.text("data"),
            "optimizer": fields.text("optimizer", tuple(OPTIMIZERS)),
            "schedule": fields.text("schedule", SCHEDULES),
            "policy": fields.text("policy", POLICIES),
            "dtype": fields.text("dtype", DTYPES),
            "device": fields.text("device", DEVICES),
            "precision": fields.text("precision", PRECISIONS),
            "engine": fields.text("engine", ENGINES),
        }
        for name in ("processors", "shares"):
            none = name not in fields.unread() or fields.null(name)  # earlier runs have no shares
            found[name] = None if none else fields.whole(name, *WHOLE[name])
        for name in ("epochs", "patience", "batch_size", "window", "seed", "threads"):
            found[name] = fields.whole(name, *WHOLE[name])
        for name in ("lr", "momentum", "weight_decay", "clip_norm", "average"):
            found[name] = _real(fields, name)
        fields.end()
        if found["momentum"] and found["optimizer"] not in WITH_MOMENTUM:
            fields.refuse("momentum", f"0, since {found['optimizer']} has none")
        return cls(**found)


def title_of(model: str) -> str:
    """Return the name of a model without the path of its file, which may have moved."""
    return model.rpartition(":")[2]


def _of_model(fields: JsonRecord) -> dict[str, Any]:
    """Read the model and what depends on it; a file of the user is not run to do so."""
    model = fields.text("model")
    if is_own(model):
        spec = None
        task, format = fields.text("task", TASKS), fields.text("format", FORMATS)
    else:
        spec = models.get(fields.text("model", models.names()))
        task, format = fields.text("task", (spec.task,)), fields.text("format", (spec.format,))
    reading = _reading(fields.record("reading"), format)
    shape = _shape(fields.record("shape"), spec)
    return {"model": model, "task": task, "format": format, "reading": reading, "shape": shape}


def _reading(fields: JsonRecord, format: str) -> dict[str, Any]:
    """Read the options that a format was given."""
    known = [name for name in (*READING, *OF_MODELS) if name in FORMATS[format].options]
    given = [name for name in fields.unread() if name in known]
    found = {name: _option(fields, name) for name in given}
    fields.end()
    if type(found.get("binary", True)) is not bool:
        fields.refuse("binary", "true or false")
    return found


def _shape(fields: JsonRecord, spec: ModelSpec | None) -> dict[str, Any]:
    """Read the options that a model has: any, of a file that has not been run."""
    needed = [] if spec is None else list(spec.options)
    shape = {name: _option(fields, name) for name in needed}
    known = fields.unread() if spec is None else spec.arguments()
    shape |= {name: _option(fields, name) for name in fields.unread() if name in known}
    fields.end()
    return shape


def _option(fields: JsonRecord, name: str) -> bool | int | float | str:
    """Read an option within its limits, where it has some."""
    if name in REAL:
        return _real(fields, name)
    return fields.whole(name, *WHOLE[name]) if name in WHOLE else fields.scalar(name)


def _real(fields: JsonRecord, name: str) -> float:
    value = fields.real(name, 0.0)
    if value >= REAL[name]:
        fields.refuse(name, f"a number less than {REAL[name]:g}")
    return value
