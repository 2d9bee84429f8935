"""What PyTorch does again and again, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3  # calls before a graph is captured


class Graph:
    """A CUDA graph of what a call asks of the GPU; calling it does not wait.

    Args:
        call: reads and writes tensors that stay where they are. A graph has their addresses alone,
            so it keeps the call, which keeps them.
    Attributes:
        result: what the call returned: tensors that each repetition writes again.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._kept = call
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.result = call()

    def __call__(self) -> None:
        """Ask for it once more."""
        self._graph.replay()
