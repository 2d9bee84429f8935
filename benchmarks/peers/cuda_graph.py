"""What PyTorch does again and again, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3  # calls before a graph is captured


def captured(call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Capture what a call asks of the GPU.

    Args:
        call: reads and writes tensors that stay where they are.
    Returns: what repeats it, without waiting, and what the call returned: tensors that each
        repetition writes again.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph.replay, found
