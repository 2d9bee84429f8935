"""The binary Tree-LSTM in DyNet: one expression graph a minibatch, batched by DyNet itself.

Written for speed as its users would: only what a vertex has is computed (a leaf has no product with
children's states, an inner vertex none with a word), the three gates of a vertex are one product,
and automatic batching (agenda) joins what vertices have in common. DyNet runs on one thread.
"""

from __future__ import annotations

from typing import Any

import dynet_config

dynet_config.set(autobatch=1, weight_decay=0.0, random_seed=1)

import dynet as dy  # noqa: E402  reads the settings above as it loads
import numpy as np  # noqa: E402

from benchmarks.peers.gates import join_gates, split_gates  # noqa: E402
from benchmarks.peers.levels import children_first  # noqa: E402
from vertexrt.bench.measure import Arrays, Contender  # noqa: E402
from vertexrt.graph import GraphBatch  # noqa: E402


class DynetTreeLstm(Contender):
    """A Tree-LSTM whose graph is built anew for each minibatch.

    Args:
        parameters: by the names of the vertex function.
    """

    def __init__(self, parameters: Arrays) -> None:
        self.collection = dy.ParameterCollection()
        values = split_gates(parameters)
        self.hidden = len(values["b_f"])
        table = self.collection.add_lookup_parameters(values["embedding"].shape)
        self.weights: dict[str, Any] = {"embedding": table}
        for name, value in values.items():
            if name != "embedding":
                self.weights[name] = self.collection.add_parameters(value.shape)
        self.trainer = dy.SimpleSGDTrainer(self.collection, 0.0)
        self.trainer.set_clip_threshold(0.0)
        self.set_parameters(parameters)
        self._loss = float("nan")

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD, of looked-up rows alone."""
        dy.renew_cg()
        label = np.asarray(batch.pulls["label"]).tolist()
        logits = self._logits(batch)
        losses = [dy.pickneglogsoftmax(x, label[v]) for v, x in logits.items() if label[v] >= 0]
        loss = dy.esum(losses) * (1.0 / batch.num_graphs)
        self._loss = loss.value()
        loss.backward()
        self.trainer.learning_rate = lr
        self.trainer.update()

    def loss(self) -> float:
        """Return the loss of the last `train`."""
        return self._loss

    def infer(self, batch: GraphBatch) -> np.ndarray:
        """Return the logits of every vertex in the order of the batch."""
        dy.renew_cg()
        logits = self._logits(batch)
        found = dy.concatenate_cols([logits[v] for v in range(batch.num_vertices)])
        return np.asarray(found.npvalue()).T

    def sync(self) -> None:
        """Wait for nothing: every call has returned its values."""

    def parameters(self) -> Arrays:
        """Return copies of the parameters, by the names and layouts of the vertex function."""
        values = {name: np.array(held.as_array()) for name, held in self.weights.items()}
        return join_gates(values)

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        for name, value in split_gates(values).items():
            held = self.weights[name]
            if name == "embedding":
                held.init_from_array(value)
            else:
                held.set_value(value)

    def _logits(self, batch: GraphBatch) -> dict[int, Any]:
        """Build the expressions of all vertices; return the logits of each."""
        w, hidden = self.weights, self.hidden
        word = np.asarray(batch.pulls["word"]).tolist()
        child_ptr, child = batch.child_ptr.tolist(), batch.child.tolist()
        h: dict[int, Any] = {}
        c: dict[int, Any] = {}
        logits: dict[int, Any] = {}
        for v in children_first(batch):
            kids = child[child_ptr[v] : child_ptr[v + 1]]
            if kids:
                h_sum = h[kids[0]] + h[kids[1]]
                gates = dy.affine_transform([w["b_iou"], w["u_iou"], h_sum])
            else:
                x = dy.lookup(w["embedding"], word[v])
                gates = dy.affine_transform([w["b_iou"], w["w_iou"], x])
            i = dy.logistic(dy.pick_range(gates, 0, hidden))
            o = dy.logistic(dy.pick_range(gates, hidden, 2 * hidden))
            u = dy.tanh(dy.pick_range(gates, 2 * hidden, 3 * hidden))
            state = dy.cmult(i, u)
            for kid in kids:
                forget = dy.logistic(dy.affine_transform([w["b_f"], w["u_f"], h[kid]]))
                state = state + dy.cmult(forget, c[kid])
            c[v] = state
            h[v] = dy.cmult(o, dy.tanh(state))
            logits[v] = w["v"] * h[v]
        return logits
