"""Say what each option may be, wherever it comes from: a command line or a checkpoint.

The limits are far above what is trained in practice; they keep a slip of the keyboard, or a damaged
file, from becoming a size that no machine has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vertexrt.ir.updates import OPTIMIZERS as ROWS

POLICIES: Final = ("frontier", "depth", "agenda", "serial")
OPTIMIZERS: Final = {row.name: row for row in ROWS}
WITH_MOMENTUM: Final = tuple(name for name, row in OPTIMIZERS.items() if "momentum" in row.names())
SCHEDULES: Final = ("constant", "cosine", "linear", "halving")  # of the learning rate
SPLITS: Final = ("dev", "test", "train")
LOGS: Final = ("tensorboard",)  # where metrics are written besides metrics.jsonl

# Least and most of whole numbers.
WHOLE: Final = {
    "batch_size": (1, 2**31 - 1),
    "embed": (1, 2**16),
    "epochs": (1, 10**9),
    "hidden": (1, 2**16),
    "layers": (1, 60),  # types of vertices are numbered below 64
    "min_count": (1, 2**31 - 1),
    "patience": (0, 10**9),
    "pieces": (1, 2**31 - 1),
    "processors": (1, 2**16),
    "seed": (0, 2**64 - 1),
    "shares": (1, 2**16),
    "spelling": (1, 2**16),
    "streams": (1, 2**31 - 1),
    "threads": (1, 1024),
    "window": (1, 2**31 - 1),
}
# Numbers from 0 up to, and without, this one.
REAL: Final = {
    "average": 1.0,
    "clip_norm": 1e30,
    "dropout": 1.0,
    "lr": 1e30,
    "momentum": 1.0,
    "weight_decay": 1e30,
}
CONFIG_NAME: Final = "config.json"  # of the options in a run folder
LONGEST_PATH = 4095  # bytes; what systems take
LONGEST_NAME = 255  # bytes of one part of a path
# What holds where neither the command line nor the model says anything.
NEUTRAL: Final[Mapping[str, Any]] = {
    "window": 1,
    "seed": 0,
    "patience": 0,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
    "schedule": "constant",
    "average": 0.0,
    "policy": "frontier",
    "dtype": "float32",
    "device": "auto",
    "precision": "float32",
    "engine": "auto",
}
