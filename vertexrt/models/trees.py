"""Classifiers of trees with a label at every vertex: Tree-LSTMs and a recursive network."""

from collections.abc import Sequence
from typing import Any

import vertexrt as vrt
from vertexrt import nn


class TreeClassifier(vrt.VertexFunction):
    """What classifiers of trees have in common: words that are looked up, and labels.

    Pulls `word` and `label`; pushes `logits` and `loss`. The `forward` of a subclass composes h of
    `self.word()` and of the children's states, scatters it, and hands it to `self.classify`.

    Args:
        vocab: words; embed: elements of each; classes: labels.
        dropout: share of zeros in the words and in the classifier's input.
        class_weights: of the loss.
        declared: arguments of `VertexFunction`; the state has a field h.
    """

    def __init__(
        self,
        vocab: int,
        embed: int,
        classes: int,
        dropout: float,
        class_weights: Sequence[float] | None,
        **declared: Any,
    ) -> None:
        super().__init__(**declared)
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.normal(0.1))
        self.out = nn.Linear(self.state["h"], classes)
        self.dropout, self.class_weights = dropout, class_weights

    def word(self) -> Any:
        """Return the vector of the word of this vertex: zeros where it has none."""
        return vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)

    def classify(self, h: Any) -> None:
        """Push what the label of this vertex is held to be, and the loss."""
        logits = self.push("logits", self.out(vrt.random.dropout(h, self.dropout)))
        self.push(
            "loss", vrt.losses.cross_entropy(logits, self.pull("label"), weights=self.class_weights)
        )


class NaryTreeLSTM(TreeClassifier):
    """N-ary Tree-LSTM (Tai et al., ACL 2015, section 3.2), the one of its constituency trees.

    Each slot has weights of its own. Pulls `word` (leaves) and `label`; pushes `logits` and `loss`.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
        arity: slots; dropout, class_weights: as those of `TreeClassifier`.
    """

    def __init__(
        self,
        vocab: int,
        embed: int,
        hidden: int,
        classes: int,
        arity: int = 2,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        state = {"h": hidden, "c": hidden}
        super().__init__(vocab, embed, classes, dropout, class_weights, arity=arity, state=state)
        self.cell = nn.NaryTreeLSTMCell(embed, hidden, arity)

    def forward(self) -> None:
        """Compute one vertex."""
        children = [self.gather(k) for k in range(self.arity or 0)]
        h, c = self.cell(self.word(), [(child.h, child.c) for child in children])
        self.scatter(h=h, c=c)
        self.classify(h)


class ChildSumTreeLSTM(TreeClassifier):
    """Child-sum Tree-LSTM (Tai et al., ACL 2015, section 3.1), the one of its dependency trees.

    A vertex may have any number of children, and a word of its own as well. Pulls `word` and
    `label`; pushes `logits` and `loss`.

    Args:
        vocab: words; embed, hidden: elements; classes: labels.
        dropout, class_weights: as those of `TreeClassifier`.
    """

    def __init__(
        self,
        vocab: int,
        embed: int,
        hidden: int,
        classes: int,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        state = {"h": hidden, "c": hidden}
        super().__init__(vocab, embed, classes, dropout, class_weights, state=state)
        self.cell = nn.ChildSumTreeLSTMCell(embed, hidden)

    def forward(self) -> None:
        """Compute one vertex."""
        h, c = self.cell(self.word(), self.gather_all())
        self.scatter(h=h, c=c)
        self.classify(h)


class RvNN(TreeClassifier):
    """h = tanh(W [left, right] + b), of words their vectors (Socher et al., ICML 2011).

    Pulls `word` (leaves) and `label`; pushes `logits` and `loss`. Over a tree it is RvNN; over a
    pyramid, in which neighbours share a child, it is the time-delay network TD-RNN of VPPS
    (Khorasani et al., MICRO 2018; Waibel et al. 1989).

    Args:
        vocab: words; hidden: elements; classes: labels.
        dropout, class_weights: as those of `TreeClassifier`.
    """

    def __init__(
        self,
        vocab: int,
        hidden: int,
        classes: int,
        dropout: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        state = {"h": hidden}
        super().__init__(vocab, hidden, classes, dropout, class_weights, arity=2, state=state)
        self.compose = nn.Linear(2 * hidden, hidden)

    def forward(self) -> None:
        """Compute one vertex."""
        both = vrt.concat(self.gather(0).h, self.gather(1).h)
        h = self.word() + self.present(0) * vrt.tanh(self.compose(both))
        self.scatter(h=h)
        self.classify(h)
