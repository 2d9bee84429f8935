"""Tree-FC of PyTorch as one CUDA graph a step: the strongest peer where all trees are alike.

It knows that trees are complete and of one size, so that only words and targets change: no schedule
is built, and a step is an upload and one launch. The backward pass is the one written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.cuda_graph import Graph
from benchmarks.peers.torch_peer import Buffers, pack_floats, unpack_floats
from benchmarks.peers.tree_fc import LevelBatchedManual, Plan
from vertexrt import GraphBatch, Rows
from vertexrt.bench.measure import Arrays


@dataclass(frozen=True, slots=True)
class Captured:
    """A CUDA graph, what it reads, and the memory that it works in, which lives as long."""

    plan: Plan
    graph: Graph
    buffers: Buffers


class CapturedLevels(LevelBatchedManual):
    """Batch by level, a CUDA graph for each number of trees."""

    def __init__(self, parameters: Arrays, device: str = "cuda") -> None:
        super().__init__(parameters, device)
        self._graphs: dict[tuple[int, float | None], Captured] = {}

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""
        self._loss = self._run(batch, lr)

    def infer(self, batch: GraphBatch) -> Tensor:
        """Return the output of every vertex in the order of the batch; complete after `sync`."""
        found = self._run(batch, None)
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        return host.copy_(found, non_blocking=True)

    def _run(self, batch: GraphBatch, lr: float | None) -> Tensor:
        """Upload words and targets and launch a graph: a step where there is a rate."""
        key = batch.num_graphs, lr
        if key not in self._graphs:
            self._graphs[key] = self._capture(batch, lr)
        held = self._graphs[key]
        words, targets = words_and_targets(batch)
        dtype = self.weights["w"].dtype
        targets = targets.astype(str(dtype).removeprefix("torch."))
        word, packed = self.upload(words, pack_floats(targets))
        held.plan.word.copy_(word, non_blocking=True)
        read = unpack_floats(packed, dtype, len(targets))
        held.plan.target.copy_(read.unsqueeze(1), non_blocking=True)
        held.graph()
        found: Tensor = held.graph.result
        return found

    def _capture(self, batch: GraphBatch, lr: float | None) -> Captured:
        """Capture what a batch of so many trees takes; the parameters stay as they are."""
        plan = self.plan(batch)
        plan = replace(plan, word=plan.word.clone(), target=plan.target.clone())
        before = {name: value.clone() for name, value in self.weights.items()}
        self._buffers = Buffers(self.weights["v"])

        def call() -> Tensor:
            if lr is not None:
                return self.accumulate(plan, self.weights, -lr)
            with torch.no_grad():
                return self.outputs(plan).index_select(0, plan.row)

        graph = Graph(call)
        for name, value in before.items():
            self.weights[name].copy_(value)
        return Captured(plan, graph, self._buffers)


def words_and_targets(batch: GraphBatch) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return words int64 [leaves] and targets [K, 1] of complete trees, as `build_complete` does.

    Leaves come first in each tree, from left to right, and have words alone; roots have targets.
    """
    word, target = np.asarray(batch.pulls["word"]), batch.pulls["target"]
    assert isinstance(target, Rows), type(target)
    index = target.index
    assert index is not None, "targets of the roots alone"
    return word[word >= 0].astype(np.int64), np.asarray(target.table)[index[index >= 0]]
