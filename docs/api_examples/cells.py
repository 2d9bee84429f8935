"""Examples of cells."""

import numpy as np
from given import batch

import vertexrt as vrt


#: vrt.nn.Cell
class Gate(vrt.nn.Cell):
    def __init__(self, size):
        self.linear = vrt.nn.Linear(size, size)

    def __call__(self, x, h):
        gate = vrt.sigmoid(self.linear(h))
        return gate * h + (1.0 - gate) * vrt.concat(x, x[:1])


#: vrt.nn.Linear, vrt.nn.Embedding, vrt.nn.LayerNorm
class Encoder(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"h": 4})
        self.embedding, self.norm = vrt.nn.Embedding(10, 3), vrt.nn.LayerNorm(4)
        self.out = vrt.nn.Linear(3, 4)

    def forward(self):
        h = self.norm(self.out(self.embedding(self.pull("word"))))
        self.scatter(h=h)
        self.push("h", h)


encoder = vrt.compile(Encoder(), device="reference")
assert encoder.parameters["out.weight"].shape == (4, 3)
assert abs(encoder(batch)["h"].sum()) < 1e-4  # layers are normalised


#: vrt.nn.RNNCell, vrt.nn.GRUCell
class Recurrent(vrt.VertexFunction):
    def __init__(self, cell):
        super().__init__(arity=1, state={"h": 4})
        self.cell = cell

    def forward(self):
        h = self.cell(self.pull("x", shape=(3,)), self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)


vectors = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3, {"x": np.ones((3, 3))})])
for cell in (vrt.nn.RNNCell(3, 4), vrt.nn.GRUCell(3, 4), Gate(4)):
    recurrent = vrt.compile(Recurrent(cell), device="reference")
    assert recurrent(vectors)["h"].shape == (3, 4)


#: vrt.nn.LSTMCell
class LSTM(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state={"h": 4, "c": 4})
        self.cell = vrt.nn.LSTMCell(3, 4, peephole=True)

    def forward(self):
        before = self.gather(0)
        h, c = self.cell(self.pull("x", shape=(3,)), (before.h, before.c))
        self.scatter(h=h, c=c)
        self.push("h", h)


lstm = vrt.compile(LSTM(), device="reference")
assert lstm(vectors)["h"].shape == (3, 4)


#: vrt.nn.SLSTMCell
class SLSTM(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=1, state=dict.fromkeys("hcnm", 4))
        self.cell = vrt.nn.SLSTMCell(3, 4, heads=2)

    def forward(self):
        b = self.gather(0)
        h, c, n, m = self.cell(self.pull("x", shape=(3,)), (b.h, b.c, b.n, b.m))
        self.scatter(h=h, c=c, n=n, m=m)
        self.push("h", h)


slstm = vrt.compile(SLSTM(), device="reference")
assert slstm(vectors)["h"].shape == (3, 4)


#: vrt.nn.ChildSumTreeLSTMCell
class ChildSum(vrt.VertexFunction):
    def __init__(self):
        super().__init__(state={"h": 4, "c": 4})
        self.cell = vrt.nn.ChildSumTreeLSTMCell(3, 4)

    def forward(self):
        h, c = self.cell(self.pull("x", shape=(3,)), self.gather_all())
        self.scatter(h=h, c=c)
        self.push("h", h)


child_sum = vrt.compile(ChildSum(), device="reference")
assert child_sum(vectors)["h"].shape == (3, 4)


#: vrt.nn.NaryTreeLSTMCell
class Nary(vrt.VertexFunction):
    def __init__(self):
        super().__init__(arity=2, state={"h": 4, "c": 4})
        self.cell = vrt.nn.NaryTreeLSTMCell(3, 4, arity=2)

    def forward(self):
        kids = [self.gather(k) for k in range(2)]
        h, c = self.cell(self.pull("x", shape=(3,)), [(kid.h, kid.c) for kid in kids])
        self.scatter(h=h, c=c)
        self.push("h", h)


nary = vrt.compile(Nary(), device="reference")
assert nary(vectors)["h"].shape == (3, 4)
