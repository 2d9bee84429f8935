"""Train in several processes: each batch is shared out, gradients are added up in a fixed order."""

from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.start import init

__all__ = ["ProcessGroup", "init"]
