"""Vertex functions that the backend tests run: small ones, each with something of its own to break.

Sizes are primes or near, so that a transposed product or a wrong stride cannot pass by chance.
"""

from __future__ import annotations

from collections.abc import Callable

import vertexrt as vrt
from tests.declared import Declared
from tests.strategies import CLASSES, MARK, WORDS
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM

E, H = 3, 5  # embedding and hidden elements


def table() -> vrt.Parameter:
    return vrt.Parameter((WORDS, E), init=vrt.init.normal(0.7))


class GRU(
    Declared,
    arity=2,
    state={"h": H},
    embedding=(WORDS, E),
    w_r=(H, E),
    w_z=(H, E),
    w_n=(H, E),
    u_r=(H, H),
    u_z=(H, H),
    u_n=(H, H),
    b_z=(H,),
    v=(CLASSES, H),
):
    """A GRU over the sum of two children, every matrix declared apart; no bias on one gate."""

    def forward(self) -> None:
        h = self.gather(0).h + self.gather(1).h
        x = vrt.embed(self.embedding, self.pull("word"))
        r = vrt.sigmoid(self.w_r @ x + self.u_r @ h)
        z = vrt.sigmoid(self.w_z @ x + self.u_z @ h + self.b_z)
        n = vrt.tanh(self.w_n @ x + r * (self.u_n @ h))
        h = (1.0 - z) * n + z * h
        self.scatter(h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class LSTMChain(vrt.VertexFunction):
    """A language model of one LSTM layer, as one function."""

    def __init__(self, vocab: int, embed: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__(arity=1, state={"c": hidden, "h": hidden})
        self.dropout = dropout
        self.embedding = vrt.Parameter((vocab, embed), init=vrt.init.uniform(0.1))
        self.w = vrt.Parameter((4 * hidden, embed))  # i, f, o, u
        self.u = vrt.Parameter((4 * hidden, hidden))
        self.b = vrt.Parameter((4 * hidden,), init=vrt.init.zeros)
        self.v = vrt.Parameter((vocab, hidden))
        self.v_b = vrt.Parameter((vocab,), init=vrt.init.zeros)

    def forward(self) -> None:
        before = self.gather(0)
        word = vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), self.dropout)
        i, f, o, u = vrt.split(self.w @ word + self.b + self.u @ before.h, 4)
        c = vrt.sigmoid(i) * vrt.tanh(u) + vrt.sigmoid(f) * before.c
        h = vrt.sigmoid(o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ vrt.random.dropout(h, self.dropout) + self.v_b)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class ForgetAll(
    Declared,
    state={"c": H, "h": H},
    embedding=(WORDS, E),
    w=(4 * H, E),
    u_iou=(3 * H, H),
    u_f=(H, H),
    b=(4 * H,),
    v=(CLASSES, H),
):
    """Child-sum Tree-LSTM over any number of children, with a forget gate for each."""

    def forward(self) -> None:
        kids = self.gather_all()
        x = vrt.embed(self.embedding, self.pull("word"))
        x_i, x_f, x_o, x_u = vrt.split(self.w @ x + self.b, 4)
        i, o, u = vrt.split(self.u_iou @ vrt.sum(kids.h), 3)
        c = vrt.sigmoid(x_i + i) * vrt.tanh(x_u + u)
        c = c + vrt.sum(vrt.sigmoid(x_f + self.u_f @ kids.h) * kids.c)
        h = vrt.sigmoid(x_o + o) * vrt.tanh(c)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Attention(
    Declared, state={"h": H}, embedding=(WORDS, E), w=(H, E), key=(4, H), query=(4, H), value=(H, H)
):
    """Softmax attention of a vertex over its children, by max, exp and sum."""

    def forward(self) -> None:
        kids = self.gather_all()
        x = vrt.tanh(self.w @ vrt.embed(self.embedding, self.pull("word")))
        query = self.query @ x
        products = (self.key @ kids.h) * query
        score = products[0] + products[1] + products[2] + products[3]
        weight = vrt.exp(score - vrt.max(score))
        total = vrt.maximum(vrt.sum(weight), 1e-3)
        h = vrt.tanh(x + vrt.sum((weight / total) * (self.value @ kids.h)))
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.losses.squared_error(h, 0.3))


class MaxMean(Declared, state={"h": H}, embedding=(WORDS, E), w=(H, E), u=(H, 2 * H), b=(H,)):
    """The largest and the mean over the children, and the degree in between."""

    def forward(self) -> None:
        kids = self.gather_all()
        x = self.w @ vrt.embed(self.embedding, self.pull("word"))
        joined = vrt.concat(vrt.max(vrt.tanh(kids.h + self.b)), vrt.mean(kids.h * x))
        h = vrt.tanh(x + self.u @ joined + self.b)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Tied(Declared, arity=1, state={"h": E}, embedding=(WORDS, E), u=(E, E)):
    """The embedding is also the matrix of the softmax, so its gradient is dense and summed."""

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word"))
        h = vrt.tanh(x + self.u @ self.gather(0).h)
        self.scatter(h=h)
        logits = self.push("logits", self.embedding @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Dropout(Declared, state={"h": H}, embedding=(WORDS, E), w=(H, E), u=(H, H), v=(CLASSES, H)):
    """Dropout before, on and after the path, for each child too."""

    def forward(self) -> None:
        kids = self.gather_all()
        x = vrt.random.dropout(vrt.embed(self.embedding, self.pull("word")), 0.3)
        each = vrt.sum(vrt.random.dropout(kids.h, 0.4))
        h = vrt.tanh(vrt.random.dropout(self.w @ x + self.u @ each, 0.2))
        self.scatter(h=h)
        logits = self.push("logits", self.v @ vrt.random.dropout(h, 0.5))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class NoGather(Declared, state={}, embedding=(WORDS, E), v=(CLASSES, E), b=(CLASSES,)):
    """A classifier of words: no state, no gather, nothing on the path."""

    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word"))
        logits = self.push("logits", self.v @ vrt.tanh(x) + self.b)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class PassOn(
    Declared,
    arity=2,
    state={"word": E, "left": E, "bias": E, "mark": MARK},
    embedding=(WORDS, E),
    b=(E,),
    u=(E, 3 * E + MARK),
):
    """States scattered straight from an embedding, a gather, a parameter and a pull."""

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        mark = self.pull("mark", shape=(MARK,))
        self.scatter(
            word=vrt.embed(self.embedding, self.pull("word")),
            left=left.word,
            bias=self.b,
            mark=mark,
        )
        kids = vrt.concat(right.word, left.left, right.bias, left.mark)
        out = self.push("out", vrt.tanh(self.u @ kids))
        self.push("loss", vrt.sum(out * left.bias))


class Marks(Declared, arity=2, state={"h": H}, w=(H, MARK), u=(H, H), b=(H,)):
    """Real pulls of several shapes, through index maps, before, on and after the path."""

    def forward(self) -> None:
        mark = self.pull("mark", shape=(MARK,))
        gain = self.pull("gain", dtype="float")
        x = self.w @ mark + self.present("mark") * self.b
        h = vrt.tanh(x + gain * (self.u @ (self.gather(0).h - self.gather(1).h)))
        self.scatter(h=h)
        out = self.push("out", h * gain)
        self.push("mark", mark)
        error = vrt.losses.squared_error(out[:MARK], mark)
        self.push("loss", self.present("gain") * error)


class Oddments(
    Declared, arity=2, state={"h": H, "unread": 1, "s": 1}, u=(H, H), b=(H,), scale=(), lonely=(2,)
):
    """Pushes of leaves and constants, one value pushed twice, a field that nobody reads."""

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        h = vrt.tanh(self.u @ left.h + self.scale * self.b + right.h)
        s = vrt.sum(h) + right.s[0] - self.present(1)
        self.scatter(h=h, unread=s * self.b[:1], s=s * self.b[1:2])
        self.push("child", left.h)
        self.push("bias", self.b)
        self.push("one", vrt.exp(0.0 * self.scale))
        self.push("h", h)
        self.push("again", h)
        self.push("s", s)
        self.push("lonely", self.lonely)
        self.push("loss", self.scale * s)


class Both(Declared, arity=2, state={"h": H}, embedding=(WORDS, E), u=(4, H), v=(H, 4), w=(H, E)):
    """Slots and gather_all of the same field together; two products in a row on the path."""

    def forward(self) -> None:
        kids, first = self.gather_all(), self.gather(0)
        x = self.w @ vrt.embed(self.embedding, self.pull("word"))
        inner = vrt.relu(self.u @ first.h + 0.1)
        each = vrt.sum(vrt.tanh(self.v @ (self.u @ kids.h)))
        h = vrt.tanh(x + self.v @ inner + each)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.logsumexp(h))


class Elementwise(Declared, arity=2, state={"h": H}, b=(H,), u=(H, H)):
    """The elementwise ops and row reductions that the cells leave out."""

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(1).h
        x = self.u @ (left - right) + self.b
        p = vrt.softmax(x)
        y = vrt.maximum(p, 0.15) + vrt.minimum(x, 0.2) * vrt.sqrt(vrt.exp(x) + 1.0)
        z = vrt.where(self.present(0), vrt.log(1.5 + vrt.sigmoid(y)), y / (2.0 + x * x))
        h = vrt.tanh(z) - 0.1 * vrt.max(x)
        self.scatter(h=h)
        self.push("p", p)
        self.push("loss", vrt.sum(vrt.log_softmax(h)[1:4]) + vrt.mean(z))


class Looked(vrt.VertexFunction):
    """A table that is looked up in and, if asked for, multiplied in the same stage."""

    def __init__(self, multiplied: bool = True) -> None:
        super().__init__(arity=1, state={"h": E})
        self.multiplied = multiplied
        self.embedding = table()
        self.u = vrt.Parameter((WORDS, E))

    def forward(self) -> None:
        y = (self.embedding if self.multiplied else self.u) @ self.gather(0).h
        x = vrt.embed(self.embedding, self.pull("word"))
        h = vrt.tanh(x + y[:E] * y[E : 2 * E])
        self.scatter(h=h)
        self.push("loss", vrt.sum(self.push("h", h)))


class StackedAndAlone(Declared, arity=2, state={"h": E}, b=(E,), w=(2 * E, E), u=(E, E)):
    """`u` is stacked under `w`, and also multiplies a vector alone."""

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(1).h
        gate = vrt.sigmoid(self.u @ vrt.tanh(right))
        h = vrt.tanh((self.w @ left)[E:] + (self.u @ left) * gate + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.sum(self.push("h", h)))


Make = Callable[[], vrt.VertexFunction]

# name -> (makes the function, arity of the graphs that it takes)
FUNCTIONS: dict[str, tuple[Make, int]] = {
    "tree-lstm": (lambda: TreeLSTM(WORDS, E, H, CLASSES), 2),
    "tree-lstm-3": (lambda: TreeLSTM(WORDS, E, H, CLASSES, arity=3), 3),
    "tree-fc": (lambda: TreeFC(WORDS, H), 2),
    "lstm-lm": (lambda: LSTMChain(WORDS, E, H), 1),
    "gru": (GRU, 2),
    "forget-all": (ForgetAll, 5),
    "attention": (Attention, 5),
    "max-mean": (MaxMean, 4),
    "tied": (Tied, 1),
    "dropout": (Dropout, 3),
    "no-gather": (NoGather, 3),
    "pass-on": (PassOn, 2),
    "marks": (Marks, 2),
    "oddments": (Oddments, 2),
    "both": (Both, 2),
    "elementwise": (Elementwise, 2),
}
