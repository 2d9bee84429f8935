"""Sentiment of trees in PyTorch Lightning: a Tree-LSTM as an encoder, the rest in PyTorch.

Run: python examples/lightning_trees.py   (pip install -e ".[torch]" lightning)
Words are looked up by PyTorch, the trees are encoded by one network, and a layer of PyTorch
classifies the roots. A loader of PyTorch's, with workers if asked, hands over batches of graphs.
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader

import vertexrt as vrt
import vertexrt.torch as vt
from vertexrt import nn
from vertexrt.data import load

SIZE, BATCH = 32, 25


class Encoder(vrt.VertexFunction):
    """A binary Tree-LSTM. Pulls `x`, the vector of a word (leaves)."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": SIZE, "c": SIZE})
        self.cell = nn.NaryTreeLSTMCell(SIZE, SIZE, 2)

    def forward(self) -> None:
        """Compute one vertex."""
        children = [self.gather(k) for k in range(2)]
        h, c = self.cell(self.pull("x", shape=SIZE), [(each.h, each.c) for each in children])
        self.scatter(h=h, c=c)
        self.push("h", h)


class Sentiment(lightning.LightningModule):
    """Embeddings, an encoder of trees, a classifier of their roots."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words + 1, SIZE, padding_idx=0)
        self.encoder = vt.Module(vrt.compile(Encoder(), device="cpu", threads=1))
        self.classify = torch.nn.Linear(SIZE, classes)

    def forward(self, batch: vt.BatchTensors) -> torch.Tensor:
        """Return [graphs, classes]."""
        words = torch.tensor(batch.graphs.pulls["word"]) + 1  # -1: no word
        h = self.encoder(batch, outputs=["h"], x=self.words(words))["h"]
        scores: torch.Tensor = self.classify(h[batch.roots])
        return scores

    def training_step(self, batch: vt.BatchTensors, _: int) -> torch.Tensor:
        """Return the loss of a minibatch."""
        loss = torch.nn.functional.cross_entropy(self(batch), labels(batch))
        self.log("loss", loss, batch_size=len(batch.roots))
        return loss

    def validation_step(self, batch: vt.BatchTensors, _: int) -> None:
        """Note the share of roots that are right."""
        right = self(batch).argmax(1) == labels(batch)
        self.log("accuracy", right.float().mean(), batch_size=len(batch.roots))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one optimizer for all."""
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def labels(batch: vt.BatchTensors) -> torch.Tensor:
    """Return the labels of the roots."""
    return torch.tensor(batch.graphs.pulls["label"])[batch.roots].long()


def loader(pool: vrt.GraphBatch, shuffle: bool) -> DataLoader[Any]:
    """Return minibatches: a data set of PyTorch's is what has a length and items."""
    return DataLoader(
        range(pool.num_graphs),  # type: ignore[arg-type]
        BATCH,
        shuffle,
        collate_fn=lambda ids: vt.BatchTensors.of(pool.take(ids)),
    )


def train(epochs: int = 3) -> float:
    """Train on generated trees; return the accuracy on others."""
    lightning.seed_everything(1, verbose=False)
    data = load("generated", format="trees")
    sizes = data.sizes()
    model = Sentiment(sizes["vocab"], sizes["classes"])
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        gradient_clip_val=5.0,
    )
    splits = data.splits
    trainer.fit(model, loader(splits["train"], True), loader(splits["dev"], False))
    return float(trainer.callback_metrics["accuracy"])


if __name__ == "__main__":
    print(f"accuracy of the roots: {train():.3f}")
